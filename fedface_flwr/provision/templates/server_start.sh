#!/usr/bin/env bash
# Starts the server of federation @FEDERATION@ and keeps it up until this script is ended. Written by fedface-provision.
#
#   start.sh             the SuperLink on the loopback interface, and the door, for the parties, on port @PORT@
#   start.sh --no-door   the SuperLink alone: only parties on this machine can join, at @CONTROL@
#
# Three processes are kept up, each started again when it ends: superlink, superexec (which runs the jobs, and lives on
# when the SuperLink is started again, so that a run goes on) and door. run/NAME.pid is a process's id, logs/NAME.log
# its log.
set -uo pipefail
umask 077
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
cd "$here" || exit 1
mkdir -p run logs state flwr
case "$here" in *[\"\'\\|\&]*) echo "$here: a path must not hold quotes, backslashes, | or &; move it"; exit 1 ;; esac
# Where Debian keeps nginx, and not every PATH reaches.
PATH="$PATH:/usr/sbin:/usr/local/sbin"

control=@CONTROL@
door=1
[ "${1:-}" != --no-door ] || door=

say() { printf '%s fedface: %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a logs/start.log; }
die() {
  say "$*"
  exit 1
}

command -v flower-superlink >/dev/null ||
  die "flower-superlink is not on PATH: activate the Python environment in which fedface-flwr is installed"
[ -z "$door" ] || command -v nginx >/dev/null ||
  die "nginx is not installed: install it (apt install nginx), or use --no-door, by which only parties on this machine can join"
exec 9>run/lock
flock -n 9 || die "this kit is started already"
for log in logs/*.log; do
  [ ! -f "$log" ] || [ "$(stat -c %s "$log")" -lt 10000000 ] || mv "$log" "$log.1"
done

export FLWR_HOME="$here/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}" NO_PROXY="127.0.0.1,localhost${no_proxy:+,$no_proxy}"
# Flower wants an absolute path here, and this folder may have been moved.
sed -i "s|^root-certificates = .*|root-certificates = \"$here/tls/ca.pem\"|" flwr/config.toml

# Runs a command until this is ended, starting it again when it ends; gives up when it ends at once several times.
keep() {
  local name=$1 child= begun code hasty=0
  shift
  trap 'trap "" TERM; end_child "$child"; rm -f "run/$name.pid"; exit 0' TERM
  trap '' INT HUP
  while :; do
    begun=$SECONDS
    # A session of its own: Ctrl-C is for this script, which ends them in order.
    setsid "$@" </dev/null >>"logs/$name.log" 2>&1 9>&- &
    child=$!
    echo "$child" >"run/$name.pid"
    wait "$child"
    code=$?
    # nginx's workers outlive a master that was killed, and hold the port.
    [ "$name" != door ] || kill -KILL -- "-$child" 2>/dev/null
    ((SECONDS - begun < 15)) && hasty=$((hasty + 1)) || hasty=0
    say "$name ended with code $code ($(tail -n 1 "logs/$name.log")); see $here/logs/$name.log"
    ((hasty < 3)) || exit 1
    sleep 1 9>&- &
    wait $!
  done
}

end_child() {
  kill -TERM "$1" 2>/dev/null
  for _ in {1..150}; do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null
}

keepers=()
end() {
  trap '' TERM INT HUP
  local keeper
  # In the order of their start backwards, so that nobody finds half a server.
  for ((i = ${#keepers[@]} - 1; i >= 0; i--)); do
    keeper=${keepers[i]}
    kill -TERM "$keeper" 2>/dev/null
    wait "$keeper" 2>/dev/null
  done
  say "$1"
  exit "$2"
}
trap 'end "the server of @FEDERATION@ has ended" 0' TERM INT HUP

# Waits for something that a process is to bring about; $1 is a command that succeeds when it is there.
await() {
  for _ in {1..600}; do
    "$1" && return
    for keeper in "${keepers[@]}"; do
      kill -0 "$keeper" 2>/dev/null || end "$2" 1
    done
    sleep 0.2 9>&- &
    wait $!
  done
  end "$2" 1
}
superlink_answers() { (exec 3<>"/dev/tcp/${control%:*}/${control#*:}") 2>/dev/null; }
door_answers() { (exec 3<>"/dev/tcp/@DOOR_HOST@/@PORT@") 2>/dev/null; }

# nginx or a second server would go unnoticed behind a port that somebody else holds.
! superlink_answers || die "port ${control#*:} is in use by another program: end it, or change server.control_port"
[ -z "$door" ] || ! door_answers || die "port @PORT@ is in use by another program: end it, or change server.port"

keep superlink flower-superlink --host "${control%:*}" --port "${control#*:}" \
  --ssl-ca-certfile tls/ca.pem --ssl-certfile tls/server.pem --ssl-keyfile tls/server.key \
  --enable-supernode-auth --database state/superlink.db --isolation process \
  --disable-runtime-dependency-installation &
keepers+=($!)
await superlink_answers "the SuperLink does not start; see $here/logs/superlink.log"

keep superexec flower-superexec --runtime-api-address "$control" --root-certificates tls/ca.pem &
keepers+=($!)

./register.sh 9>&- || end "the parties' keys could not be registered; see above" 1

if [ -n "$door" ]; then
  keep door nginx -p "$here/" -c nginx.conf -e logs/door.log &
  keepers+=($!)
  await door_answers "the door does not open; see $here/logs/door.log"
  say "federation @FEDERATION@ is open at @ENDPOINT@"
else
  say "federation @FEDERATION@ is open at $control, to parties on this machine only: there is no door"
fi

wait -n "${keepers[@]}"
end "a process of the server does not stay up; see the lines above" 1
