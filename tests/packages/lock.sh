# Run in a root where Lockgate is installed: starts a Redis, and the service by its unit's own command; locks.
set -eu
fail() { echo "FAILED: $*" >&2; cat /tmp/lockgate.log >&2 || true; exit 1; }

redis-server --port 6379 --save '' >/dev/null 2>&1 &
for _ in $(seq 200); do redis-cli ping >/dev/null 2>&1 && break; sleep 0.1; done
mkdir -p /run/lockgate && chown lockgate:lockgate /run/lockgate && chmod 700 /run/lockgate
as_user() { setpriv --reuid lockgate --regid lockgate --clear-groups "$@"; }
as_user /usr/bin/lockgate init /etc/lockgate/lockgate.yaml >/dev/null || fail "init"
command=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/lockgate.service)
# Words of the unit's line are words here.
as_user $command >/tmp/lockgate.log 2>&1 &
for _ in $(seq 200); do
  as_user /usr/bin/lockgate health /etc/lockgate/lockgate.yaml >/dev/null 2>&1 && break
  sleep 0.1
done
granted=$(redis-cli -p 6380 LOCK job PX 30000)
token=$(printf '%s\n' "$granted" | head -n 1)
[ "$(printf '%s\n' "$granted" | wc -l)" = 3 ] || fail "LOCK was answered: $granted"
[ -z "$(redis-cli -p 6380 LOCK job PX 30000)" ] || fail "the lock was granted twice"
[ "$(redis-cli -p 6379 GET lock:job)" = "$token" ] || fail "the lock node does not have it"
[ "$(redis-cli -p 6380 UNLOCK job "$token")" = 1 ] || fail "UNLOCK"
