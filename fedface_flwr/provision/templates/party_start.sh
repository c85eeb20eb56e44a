#!/usr/bin/env bash
# Starts the SuperNode of @PARTY@ and keeps it up until this script is ended. Written by fedface-provision.
#
#   FEDFACE_SUPERLINK=HOST:PORT   where the federation's server is, instead of @ENDPOINT@
#   FEDFACE_SILO_DIR=/path        where this party's private state lies, instead of state/ in this folder
#   FEDFACE_NODE_CONFIG='k="v"'   more of Flower's node configuration
#   FEDFACE_RUNTIME_PORT=N        loopback port of the SuperNode's own processes, instead of a free one
set -uo pipefail
umask 077
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
cd "$here" || exit 1
mkdir -p run logs flwr

party=@PARTY@
role=@ROLE@
data=@DATA@
# A validator works all the time and is waited for by nobody: on a machine that parties share, training goes first.
[ "$role" = validator ] && niceness=10 || niceness=0
superlink="${FEDFACE_SUPERLINK:-@ENDPOINT@}"
silo="${FEDFACE_SILO_DIR:-$here/state}"
# Seconds for which a refused key is tried again: a server takes about one minute to notice that this party's last
# SuperNode was killed, and refuses a second one until then.
patience=120

say() { printf '%s fedface: %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a logs/supernode.log; }
die() {
  say "$*"
  exit 1
}

# Prints and keeps what the SuperNode prints, and says in plain words what the known lines mean.
# What stands in run/refused afterwards is why the SuperNode ended.
explain() {
  trap '' TERM INT HUP
  local line waiting=
  while IFS= read -r line; do
    printf '%s\n' "$line"
    printf '%s\n' "$line" >>logs/supernode.log
    case "$line" in
      *'[code: 2004]'*)
        echo "the server does not accept the key of $party: either it is not registered (ask the operator to run" \
          "fedface-provision with this party, and register.sh on the server), or this party's last SuperNode still" \
          "counts as connected, for about a minute after it was killed" >run/refused ;;
      *'[code: 2001]'*)
        echo "the server takes no SuperNode without a registered key: start this kit as it was handed out, with its" \
          "party.key" >run/refused ;;
      *'certificate has expired'* | *'not yet valid'*)
        echo "the server's certificate is not valid at this machine's time, $(date -u +%FT%TZ): set the clock, or ask" \
          "the operator to run fedface-provision again" >run/refused ;;
      *'Hostname mismatch'* | *'IP address mismatch'*)
        echo "the server at $superlink has a certificate for another address: check the address with the operator" \
          >run/refused ;;
      *'CERTIFICATE_VERIFY_FAILED'* | *'certificate verify failed'*)
        echo "the server at $superlink is not the one of federation @FEDERATION@: its certificate is not signed by" \
          "this kit's ca.pem. Nothing was sent. Check the address, and that kit and server are of one provisioning" \
          >run/refused ;;
      *'WRONG_VERSION_NUMBER'* | *'wrong version number'*)
        echo "what answers at $superlink does not speak TLS: check the address and port with the operator" \
          >run/refused ;;
      *'Connection attempt failed'*)
        [ -n "$waiting" ] || [ -e run/stopping ] ||
          say "no answer from $superlink yet; trying on. Is the server up, and does a firewall let this machine reach it?"
        waiting=1 ;;
      *'SuperNode ID:'*)
        waiting=
        say "$party is connected to federation @FEDERATION@ at $superlink" ;;
      *'Connection successful'*)
        [ -z "$waiting" ] || say "$superlink answers again"
        waiting= ;;
    esac
  done
}

command -v fedface-supernode >/dev/null ||
  die "fedface-supernode is not on PATH: activate the Python environment in which fedface-flwr is installed"
[ -r party.key ] || die "$here/party.key is missing: a SuperNode is known by it; ask the operator for the kit"
[ -r ca.pem ] || die "$here/ca.pem is missing: the server is known by it; ask the operator for the kit"
[ -r policy.toml ] || die "$here/policy.toml is missing: it says what this silo lets itself be asked; restore it from the kit"
case "$here$silo" in *[\"\'\\]*) die "$here, $silo: a path must not hold quotes or backslashes; move it" ;; esac
# The silo looks for its policy beside its state; the one file to edit is the kit's.
mkdir -p "$silo" && ln -sfn "$here/policy.toml" "$silo/policy.toml" || die "$silo cannot be written"
[ -e "$data" ] || say "the data, $data, is not there (yet)"
exec 9>run/lock
flock -n 9 || die "this kit is started already: two SuperNodes with one key would be refused"
[ "$(stat -c %s logs/supernode.log 2>/dev/null || echo 0)" -lt 10000000 ] ||
  mv logs/supernode.log logs/supernode.log.1

export FLWR_HOME="$here/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export CUDA_VISIBLE_DEVICES=@GPUS@
# The SuperNode's own processes talk over the loopback interface, which no proxy reaches.
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}" NO_PROXY="127.0.0.1,localhost${no_proxy:+,$no_proxy}"

# Flower starts a ClientApp for every message by its name on PATH, and looks for one to start once a second: from a fork
# server they start in no time, so that looking more often pays.
case "${FEDFACE_NODE_CONFIG:-}" in
  *service=false*) ;;
  *)
    if fedface-silo warm run/bin >/dev/null; then
      export PATH="$here/run/bin:$PATH"
    else
      say "every message costs a second more, for fedface-silo warm failed"
    fi ;;
esac
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"

free_port() {
  local port
  while :; do
    port=$((10000 + RANDOM % 20000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

node= stopping=
rm -f run/stopping
trap 'stopping=1; touch run/stopping; [ -z "$node" ] || kill -TERM "$node" 2>/dev/null' TERM INT HUP

# A party that trusts code only when named reviewers have signed it keeps their public keys in this file.
trusted=()
[ ! -f trusted-entities.yaml ] || trusted=(--trusted-entities trusted-entities.yaml)

# Runs one SuperNode until it has ended; its exit code is in $code.
run_once() {
  local reader
  rm -f run/refused
  exec 3> >(exec 9>&-; explain)
  reader=$!
  setsid nice -n "$niceness" fedface-supernode --superlink "$superlink" --root-certificates ca.pem \
    --auth-supernode-private-key party.key \
    --port "${FEDFACE_RUNTIME_PORT:-$(free_port)}" "${trusted[@]}" \
    --node-config "party=\"$party\" role=\"$role\" silo-dir=\"$silo\" data=\"$data\" ${FEDFACE_NODE_CONFIG:-}" \
    </dev/null >&3 2>&1 3>&- 9>&- &
  node=$!
  exec 3>&-
  echo "$node" >run/supernode.pid
  [ -z "$stopping" ] || kill -TERM "$node" 2>/dev/null
  code=0
  while kill -0 "$node" 2>/dev/null; do
    wait "$node"
    code=$?
  done
  node=
  rm -f run/supernode.pid
  # A process of its own that outlives it keeps the pipe open; what it said itself has been read by then.
  for _ in {1..20}; do kill -0 "$reader" 2>/dev/null || break; sleep 0.1; done
}

refused_since= hasty=0
while :; do
  begun=$SECONDS
  run_once
  if [ -n "$stopping" ]; then
    say "$party has left"
    exit 0
  fi
  ((SECONDS - begun < 60)) || refused_since=
  if [ -s run/refused ]; then
    say "$(cat run/refused)"
    grep -q 'counts as connected' run/refused || exit 1
    : "${refused_since:=$SECONDS}"
    ((SECONDS - refused_since < patience)) || die "given up after $patience s"
    say "trying again for $((patience - SECONDS + refused_since)) s"
  elif [ "$code" = 0 ]; then
    say "the server has sent this party away: it was unregistered there, or this machine's clock is wrong; trying again"
  else
    ((SECONDS - begun < 10)) && hasty=$((hasty + 1)) || hasty=0
    ((hasty < 5)) || die "the SuperNode ended with code $code, as often before; the lines above say why"
    say "the SuperNode ended with code $code; starting it again"
  fi
  sleep 5 9>&- &
  wait $!
  [ -z "$stopping" ] || exit 0
done
