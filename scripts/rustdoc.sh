#!/usr/bin/env bash
# Stands in for rustdoc in `cargo test --doc`: makes the documentation, and fails where a link in it leads nowhere. It
# goes by the libraries that the tests are linked with; `cargo doc` would compile all of them once more.
set -euo pipefail
arguments=() is_documented=no
while [ $# -gt 0 ]; do
  case $1 in
    --test) is_documented=yes ;;
    --test-run-directory) shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
# What cargo asks of it besides.
[ $is_documented = yes ] || exec rustdoc "${arguments[@]}"
exec rustdoc "${arguments[@]}" -D warnings -A rustdoc::private-intra-doc-links --out-dir target/tests/doc
