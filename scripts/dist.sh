#!/usr/bin/env bash
# Builds what can be downloaded: a binary that needs no library, as tar.gz, .deb and .rpm, the chart, and the clients'
# packages, into target/packages.
#
#   scripts/dist.sh                  for x86_64, and for aarch64
#   scripts/dist.sh x86_64           for one
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(cargo metadata --no-deps --format-version 1 | python3 -c \
  'import json, sys; print(json.load(sys.stdin)["packages"][0]["version"])')
# The time of the commit, so that the same commit gives the same files.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
# One of Debian's compilers makes C for arm64, and links; musl itself comes with the target.
export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc
# Names of files in messages do not tell where it was built.
export CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=/crates"
CARGO_ENCODED_RUSTFLAGS+=$'\x1f'"--remap-path-prefix=$PWD=/lockgate"

stage=target/package   # what Cargo.toml's [package.metadata.*] name
out=target/packages
rm -rf "$stage" "$out"
mkdir -p "$stage" "$out"

# Man pages, completions and the schema are told by a binary that runs here.
host="$(uname -m)-unknown-linux-musl"
cargo build --locked --profile dist --target "$host" --bin lockgate
"target/$host/dist/lockgate" manual "$stage"
gzip -9n "$stage"/man/*.1
# Upgrades without a lost connection are possible from the start.
sed 's|^upgrade_socket: off$|upgrade_socket: /run/lockgate/upgrade.sock|' config/lockgate.yaml >"$stage/lockgate.yaml"
if cmp -s config/lockgate.yaml "$stage/lockgate.yaml"; then
  echo "dist.sh: config/lockgate.yaml has no line for upgrade_socket to replace" >&2
  exit 1
fi
"target/$host/dist/lockgate" check "$stage/lockgate.yaml" >/dev/null
python3 scripts/pages.py "$stage/doc"

[ $# -gt 0 ] || set -- x86_64 aarch64
for arch in "$@"; do
  target="$arch-unknown-linux-musl"
  cargo build --locked --profile dist --target "$target" --bin lockgate
  cargo deb --quiet --no-build --no-strip --profile dist --target "$target" --output "$out/"
  # Compressed as an rpm of ten years ago can read it.
  cargo generate-rpm --profile dist --target "$target" --payload-compress gzip --output "$out/"

  name="lockgate-$version-linux-$arch"
  tree="$stage/$name"
  mkdir -p "$tree"
  cp "target/$target/dist/lockgate" LICENSE* "$tree/"
  cp -r "$stage/doc/." "$tree/"
  cp -r "$stage/man" "$stage/completions" "$stage/lockgate.schema.json" "$tree/"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    -C "$stage" -c "$name" | gzip -9n >"$out/$name.tar.gz"
done

# The chart: the rules and the board of config/ in place of the links to them.
tar --dereference --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  -C charts -c lockgate | gzip -9n >"$out/lockgate-chart-$version.tgz"

# The helper for Python. uv has what builds it, and gives all files in it the same time.
target/uv/bin/uv build --quiet --offline --wheel --no-create-gitignore --out-dir "$out" clients/python
# The package for Node.js.
scripts/npm.sh "$out" >/dev/null

# What the binary is made of; what its tests need is no part of it.
cargo cyclonedx --quiet --format json --target "$host" --override-filename "lockgate-$version.cdx"
# Where it was built is nobody's matter.
sed "s|file://$PWD|file:///lockgate|g" "lockgate-$version.cdx.json" >"$out/lockgate-$version.cdx.json"
rm "lockgate-$version.cdx.json"
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
