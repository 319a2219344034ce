#!/usr/bin/env bash
# Brings up config/compose.yaml, with the image lockgate:latest, and locks through it. Run by `make docker-test`.
# The ports of that file must be free.
#
#   MONITORING="prometheus grafana" tests/packages/container.sh      these too
set -euo pipefail
cd "$(dirname "$0")/../.."
export COMPOSE_PROJECT_NAME=lockgate-test REDISCLI_AUTH=lockgate
compose() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }
files=(--file config/compose.yaml --profile monitoring)
read -ra monitoring <<<"${MONITORING:-}"
work=$(mktemp -d)
chmod 755 "$work"
clean() {
  # These first: they are in the network of compose, which stays while anything is in it.
  docker rm --force lockgate-test-open lockgate-test-other >/dev/null 2>&1 || true
  compose "${files[@]}" down --volumes >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean EXIT
clean; mkdir -p "$work"; chmod 755 "$work"

say() { printf '== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; compose "${files[@]}" logs --tail 20 >&2; exit 1; }
# Tries words until they succeed.
until_so() {
  for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
  fail "never so: $*"
}
is_healthy() { [ "$(docker inspect --format '{{.State.Health.Status}}' "$1")" = healthy ]; }
# Not through a pipe: grep that has found its word ends curl, and the pipe has failed.
says() { local text; text=$(curl -sf "$1") && grep -q "$2" <<<"$text"; }

say "the image: a user by number, a health check, labels"
image() { docker image inspect --format "$1" lockgate; }
[ "$(image '{{.Config.User}}')" = 6380:6380 ] || fail "the user is no number"
[ -n "$(image '{{index .Config.Labels "org.opencontainers.image.version"}}')" ] || fail "no label for the version"

say "compose: init goes before the proxies, which become healthy"
compose "${files[@]}" up --detach --no-build proxy1 proxy2 "${monitoring[@]}" 2>"$work/log" || { cat "$work/log"; fail up; }
id() { compose "${files[@]}" ps --all --quiet "$1" 2>/dev/null || compose "${files[@]}" ps --quiet "$1"; }
until_so is_healthy "$(id proxy1)"
until_so is_healthy "$(id proxy2)"
[ "$(docker inspect --format '{{.State.ExitCode}}' "$(id init)")" = 0 ] || fail "init"

say "a lock through one proxy is held against the other"
until_so says http://127.0.0.1:9380/readyz 'lock nodes: 5 of 5 up'
until_so says http://127.0.0.1:9381/readyz 'lock nodes: 5 of 5 up'
[ "$(redis-cli -p 6380 LOCK job PX 30000 | wc -l)" = 3 ] || fail "LOCK"
[ -z "$(redis-cli -p 6381 LOCK job PX 30000)" ] || fail "the lock was granted twice"
grep -q NOAUTH <<<"$(env --unset REDISCLI_AUTH redis-cli -p 6380 LOCK other PX 30000)" || fail "served without a password"

say "a lock node that ends is started again, and waits before it votes"
docker exec --env REDISCLI_AUTH "$(id lock1)" redis-cli shutdown nosave >/dev/null 2>&1 || true
until_so says http://127.0.0.1:9380/readyz 'lock1.*wait'
[ "$(redis-cli -p 6381 LOCK meanwhile PX 30000 | wc -l)" = 3 ] || fail "LOCK by four nodes of five"

say "on all addresses nobody is served before a data node without a password"
network=${COMPOSE_PROJECT_NAME}_default
docker run --detach --name lockgate-test-open --network "$network" --network-alias open redis:7-bookworm \
  redis-server --protected-mode no >/dev/null
printf 'listen: 0.0.0.0:6380\nadmin: 0.0.0.0:9999\ndata: redis://open:6379\n' >"$work/lockgate.yaml"
until_so docker exec lockgate-test-open redis-cli ping
run=(docker run --network "$network" --volume "$work/lockgate.yaml:/etc/lockgate/lockgate.yaml:ro")
timeout 60 "${run[@]}" --rm --name lockgate-test-other lockgate >"$work/log" 2>&1 && fail "it ended well"
docker rm --force lockgate-test-other >/dev/null 2>&1 || true
grep -q 'asks nobody for a password' "$work/log" || { cat "$work/log"; fail "it ended otherwise"; }

say "the health check follows the configuration"
echo 'allow_open: true' >>"$work/lockgate.yaml"
"${run[@]}" --detach --name lockgate-test-other lockgate >/dev/null
until_so is_healthy lockgate-test-other

if [[ " ${monitoring[*]} " == *" prometheus "* ]]; then
  say "Prometheus reads both proxies, and has the rules and alerts"
  until_so says 'http://127.0.0.1:9090/api/v1/query?query=lockgate_ready' 'proxy2:9380'
  until_so says http://127.0.0.1:9090/api/v1/rules LockgateProxyGone
fi
if [[ " ${monitoring[*]} " == *" grafana "* ]]; then
  say "Grafana has the board"
  until_so says http://127.0.0.1:3000/api/dashboards/uid/lockgate Lockgate
fi
say "all well"
