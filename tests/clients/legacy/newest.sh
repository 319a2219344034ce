#!/usr/bin/env bash
# Drives the newest lock libraries that the registries have through a proxy that adopts their locks, in place of the
# versions that tests/clients/legacy lists. A library that sends other commands by now, which no rule recognises, fails
# and is printed with its version.
#
# Libraries of Rust and PHP stay as they are listed, and so do ioredis and redis, the clients under those for Node.js.
set -euo pipefail
cd "$(dirname "$0")/../../.."
scripts/setup.sh test
uv=$PWD/target/uv/bin/uv
cd tests/clients/legacy

# The next make test installs the listed versions again.
rm -f .venv/installed node_modules/installed

before=$("$uv" pip freeze --quiet --python .venv/bin/python)
sed 's/==.*//' requirements.txt | "$uv" pip install --quiet --python .venv/bin/python --upgrade -r -
while IFS== read -r package _; do
  rm -rf ".venv/beside/$package"
  "$uv" pip install --quiet --python .venv/bin/python --no-deps --target ".venv/beside/$package" "$package"
done <beside.txt
echo "== Python: listed (-) and newest (+)"
diff <(echo "$before") <("$uv" pip freeze --quiet --python .venv/bin/python) | sed -n 's/^</-/p;s/^>/+/p'

# Names that begin with npm: are versions of one library, each of which has a row.
read -ra names < <(node -p 'Object.entries(require("./package.json").dependencies)
  .filter(([name, version]) => !version.startsWith("npm:") && !["ioredis", "redis"].includes(name))
  .map(([name]) => name + "@latest").join(" ")')
npm install --silent --no-audit --no-fund --no-save --no-package-lock "${names[@]}"
echo "== Node.js: newest"
npm ls --depth=0 || true

cd ../../..
cargo test --quiet --test servers -- lock_libraries_lock_on_the_quorum
