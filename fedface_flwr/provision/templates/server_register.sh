#!/usr/bin/env bash
# Makes the SuperLink's list of parties that of keys/: registers the new ones, unregisters those that are gone.
# start.sh runs it; run it yourself when parties were added or removed while the server is up.
set -uo pipefail
umask 077
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
cd "$here" || exit 1
link=@LINK@
nodes=state/nodes # one file per registered party: its node's number, and its key's digest

export FLWR_HOME="$here/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}" NO_PROXY="127.0.0.1,localhost${no_proxy:+,$no_proxy}"

say() { printf '%s fedface: %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a logs/start.log; }
digest_of() { sha256sum <"$1" | cut -d ' ' -f 1; }

exec 8>run/register.lock
flock 8
# What was registered went with the database.
[ -f state/superlink.db ] || rm -rf "$nodes"
mkdir -p "$nodes" logs

failed=0
for record in "$nodes"/*; do
  [ -f "$record" ] || continue
  party="$(basename "$record")"
  read -r node digest <"$record"
  [ ! -f "keys/$party.pub" ] || [ "$digest" != "$(digest_of "keys/$party.pub")" ] || continue
  answer="$(flwr supernode unregister "$node" "$link" --format json 2>&1 8>&-)"
  if grep -qE '"success": true|not found' <<<"$answer"; then
    rm "$record"
    say "$party is no longer of the federation: its key is refused"
  else
    say "$party could not be unregistered: $answer"
    failed=1
  fi
done

for key in keys/*.pub; do
  party="$(basename "$key" .pub)"
  [ ! -f "$nodes/$party" ] || continue
  answer="$(flwr supernode register "$key" "$link" --name "$party" --format json 2>&1 8>&-)"
  node="$(sed -nE 's/.*"node-id": "?([0-9]+).*/\1/p' <<<"$answer")"
  if [ -n "$node" ]; then
    echo "$node $(digest_of "$key")" >"$nodes/$party"
    say "$party is registered"
  elif grep -q 'already in use' <<<"$answer"; then
    say "$party has a key that is, or once was, registered: if it is refused, give it a new one (see README.md)"
  else
    say "$party could not be registered: $answer"
    failed=1
  fi
done
exit "$failed"
