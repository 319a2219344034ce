#!/usr/bin/env bash
# Packs clients/node, with the licenses, as npm takes it.
#
#   scripts/npm.sh FOLDER            where the tarball goes; its path is printed
set -euo pipefail
out=$(realpath "$1")
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p;T;q' Cargo.toml)
if ! grep -qF "\"version\": \"$version\"" clients/node/package.json; then
  echo "npm.sh: clients/node/package.json is not of version $version, as Cargo.toml is" >&2
  exit 1
fi
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp clients/node/* LICENSE* "$stage/"
packed=$(cd "$stage" && npm pack --silent --offline --pack-destination "$stage")
# Beside the packages of the proxy it should be known for what it is.
mv "$stage/$packed" "$out/lockgate-node-$version.tgz"
echo "$out/lockgate-node-$version.tgz"
