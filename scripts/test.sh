#!/usr/bin/env bash
# `make test`: formatting, lints, docs and all tests but the longest. The build lints what it compiles: clippy is the
# compiler. The tests' clients are installed beside it. What computes has the time that the tests with real servers
# leave, whose time limits are for a machine that has time.
# What each part says goes to a file in target/tests/, and is shown where the part fails.
# THREADS is how many tests with servers run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
threads=${THREADS:-$((4 * $(nproc)))}
logs=target/tests
rm -rf "$logs"
mkdir -p "$logs"

failed=()
# Runs a command whose words go to the file of this name. Prints how long it took, and of the processors' time.
part() {
  local name=$1 begun=$SECONDS result=FAILED TIMEFORMAT='%U %S'
  shift
  if { time "$@" >"$logs/$name.log" 2>&1; } 2>"$logs/$name.cpu"; then
    result=$(sed -n 's/^test result: ok. \(.* failed\);.*/\1/p' "$logs/$name.log" | tail -n 1)
  else
    touch "$logs/$name.failed"
  fi
  printf '%4d s  %4.0f s CPU  %-14s %s\n' $((SECONDS - begun)) "$(awk '{print $1 + $2}' "$logs/$name.cpu")" "$name" "$result"
}
# With what is left of the processors.
spare() { nice -n 19 "$@"; }
lint_and() { RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/lint.sh CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__ "$@"; }
# The name of a test binary, whose file has a hash behind it; with the hash where another has the name.
named() {
  local name
  name=$(basename "${1%-*}")
  if [ -e "$logs/$name.log" ]; then basename "$1"; else echo "$name"; fi
}
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT

# What the build needs comes before it; the clients and libraries of the tests beside it.
scripts/setup.sh run
"$cargo" fmt --all --check
"$cargo" fmt --manifest-path tests/model/Cargo.toml --check
part setup nice -n 5 scripts/setup.sh test &
setup=$!
TIMEFORMAT='   %0R s  %U + %S s CPU  build'
time lint_and "$cargo" test --no-run 2>&1 | tee "$logs/build.log" | { grep -E '^(warning|error)' -A 12 || :; }
mapfile -t binaries < <(sed -n 's/^ *Executable .* (\(.*\))$/\1/p' "$logs/build.log")
[ ${#binaries[@]} -gt 5 ] || { echo "the tests were not built: $logs/build.log" >&2; exit 1; }

compute=() alone=()
for binary in "${binaries[@]}"; do
  case $(named "$binary") in
    servers) servers=$binary ;;
    # It has namespaces full of servers, and mostly waits.
    chaos) chaos=$binary ;;
    # One takes a server that is silent for 120 ms for one that has said all; the other raises its limits.
    transparency | guards_bypass) alone+=("$binary") ;;
    *) compute+=("$binary") ;;
  esac
done
{
  for binary in "${compute[@]}"; do part "$(named "$binary")" spare "$binary" --test-threads 2; done
  RUSTDOC=$PWD/scripts/rustdoc.sh part docs lint_and spare "$cargo" test --doc --quiet
} &
wait "$setup"
[ ! -e "$logs/setup.failed" ] || { cat "$logs/setup.log" >&2; exit 1; }
part chaos "$chaos" --test-threads 2 &
chaos=$!
# Many tests with clients wait for one another.
part clients "$servers" --test-threads 4 clients:: &
clients=$!
# Lock nodes on processors that have much else to do are too slow to vote, which the chaos takes for a fault of the proxy;
# and a client's program is started so slowly that another has given up waiting.
wait "$chaos" "$clients"
part servers "$servers" --test-threads "$threads" --skip clients::
for binary in "${alone[@]}"; do part "$(named "$binary")" "$binary" --test-threads 2 & done
wait

for file in "$logs"/*.failed; do
  [ -e "$file" ] || break
  name=$(basename "$file" .failed)
  failed+=("$name")
  printf '\n== %s\n' "$name"
  # The tests that failed and what they said; of what is no test, its end.
  if grep -q '^failures:$' "$logs/$name.log"; then sed -n '/^failures:$/,$p' "$logs/$name.log"; else tail -n 60 "$logs/$name.log"; fi
done
[ ${#failed[@]} = 0 ] || { printf '\nfailed: %s\n' "${failed[*]}" >&2; exit 1; }
