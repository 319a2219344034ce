#!/usr/bin/env bash
# Installs what scripts/dist.sh has built, in fresh roots of Debian, and locks there. As root; run by
# `make dist-test`.
#
#   tests/packages/run.sh [SUITE …]        Debian releases; by default one of 2021 and one of 2023
#
# No root has systemd, so the service's own command is run, by the service's user.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
packages=$PWD/target/packages
roots=$PWD/target/roots
mirror=${MIRROR:-http://deb.debian.org/debian}
[ $# -gt 0 ] || set -- bullseye bookworm

[ "$(id -u)" = 0 ] || { echo "as root: debootstrap and chroot need it" >&2; exit 1; }
ls "$packages"/lockgate_*_amd64.deb >/dev/null || { echo "first: make dist" >&2; exit 1; }
work=$(mktemp -d)
# Every process of a root is in a namespace that ends with the test.
trap 'rm -rf --one-file-system "$work"' EXIT

say() { printf '== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# A binary is for a machine, as uname names it.
is_for() {
  local machine=Advanced
  [ "$1" = aarch64 ] && machine=AArch64
  readelf --file-header "$2" >"$work/elf"
  grep -q "Machine:.*$machine" "$work/elf" || fail "$2 is not for $1"
}

# Runs words in a root, with a network of its own that has loopback alone.
within() {
  local root=$1; shift
  unshare --net --pid --fork --mount --kill-child sh -c '
    ip link set lo up
    mount -t proc proc "$0/proc"
    exec chroot "$0" "$@"' "$root" "$@"
}

# A root of Debian with Redis, kept from run to run.
debian() {
  local suite=$1 root=$2
  if [ ! -e "$roots/$suite/.ready" ]; then
    say "debootstrap $suite"
    rm -rf "${roots:?}/$suite"; mkdir -p "$roots"
    debootstrap --variant=minbase --include=redis-server "$suite" "$roots/$suite" "$mirror" >"$work/log" 2>&1 ||
      { tail "$work/log"; fail "debootstrap $suite"; }
    rm -f "$roots/$suite"/var/cache/apt/archives/*.deb
    touch "$roots/$suite/.ready"
  fi
  cp -a "$roots/$suite" "$root"
  cp "$here/lock.sh" "$root/lock.sh"
}

# What both packages have at the same place.
pages=(/usr/bin/lockgate /usr/lib/systemd/system/lockgate.service)
for page in lockgate lockgate-doctor lockgate-init lockgate-top lockgate-nodes; do
  pages+=("/usr/share/man/man1/$page.1.gz")
done
pages+=(/usr/share/lockgate/lockgate.schema.json)
pages+=(/usr/share/bash-completion/completions/lockgate /usr/share/fish/vendor_completions.d/lockgate.fish)
for page in README.md SECURITY.md CHANGELOG.md docs/run-it.md docs/images/status-page.png config/compose.yaml \
  config/compose/lockgate.yaml config/grafana/lockgate.json config/alerts.yml; do
  pages+=("/usr/share/doc/lockgate/$page")
done

# The completions and man pages of a tree are those of this command line.
knows_commands() {
  local tree=$1 zsh=$2 file
  for file in "$zsh" /usr/share/bash-completion/completions/lockgate \
    /usr/share/fish/vendor_completions.d/lockgate.fish; do
    for word in doctor nodes top if-new at-most; do
      grep -q -- "$word" "$tree$file" || fail "$file does not complete $word"
    done
  done
  gzip --decompress --stdout "$tree/usr/share/man/man1/lockgate-top.1.gz" >"$work/page"
  grep -q -- '\\-\\-interval' "$work/page" || fail "the page of top has no --interval"
  gzip --decompress --stdout "$tree/usr/share/man/man1/lockgate-nodes.1.gz" >"$work/page"
  grep -q -- '\\-\\-change' "$work/page" || fail "the page of nodes has no --change"
}

say "checksums"
(cd "$packages" && sha256sum --quiet --check SHA256SUMS)

say "the SBOM names the crates of the binary, and no place where it was built"
python3 - "$packages"/lockgate-*.cdx.json <<'EOF'
import json, pathlib, re, sys, tomllib
text = open(sys.argv[1]).read()
bom = json.loads(text)
cargo = tomllib.loads(pathlib.Path("Cargo.toml").read_text())
assert bom["bomFormat"] == "CycloneDX" and bom["specVersion"] >= "1.3", (bom["bomFormat"], bom["specVersion"])
ours = bom["metadata"]["component"]
assert (ours["name"], ours["version"]) == ("lockgate", cargo["package"]["version"]), ours
crates = {one["name"]: one for one in bom["components"]}
wanted = {it.get("package", name) if isinstance(it, dict) else name for name, it in cargo["dependencies"].items()}
assert wanted <= set(crates), f"without {wanted - set(crates)}"
# They run in tests alone.
assert not {"proptest", "stateright", "mlua"} & set(crates), "has what tests need"
assert all(one["version"] and one["purl"].startswith("pkg:cargo/") for one in crates.values())
places = re.findall(r"file:///(?!lockgate)[^\"]*|/home/[^\"]*|/root/[^\"]*", text)
assert not places, places
EOF

say "the binary needs nothing: a root without any other file, names by /etc/hosts and by DNS"
binary=$(ls "$packages"/../package/lockgate-*-linux-x86_64/lockgate)
# Not through a pipe: grep that has found its word ends readelf, and the pipe has failed like one that found nothing.
readelf --wide --program-headers --sections "$binary" >"$work/elf"
grep -q LOAD "$work/elf" || fail "readelf tells nothing"
! grep -q INTERP "$work/elf" || fail "it needs a dynamic linker"
! grep -q '\.symtab' "$work/elf" || fail "it is not stripped"
mkdir -p "$work/empty/proc" "$work/empty/etc"
cp "$binary" "$work/empty/lockgate"
echo "127.0.0.1 by-hosts.test" >"$work/empty/etc/hosts"
echo "nameserver 127.0.0.1" >"$work/empty/etc/resolv.conf"
printf 'data: redis://by-hosts.test:6379\nlocks: {nodes: ["redis://by-dns.test:6379"]}\n' >"$work/empty/lockgate.yaml"
unshare --net --pid --fork --mount --kill-child sh -c '
  ip link set lo up
  python3 "$1/name_server.py" by-dns.test 127.0.0.1
  redis-server --port 6379 --save "" --daemonize no >/dev/null &
  for _ in $(seq 100); do redis-cli ping >/dev/null 2>&1 && break; sleep 0.1; done
  chroot "$0" /lockgate init /lockgate.yaml &&
  chroot "$0" /lockgate doctor /lockgate.yaml' "$work/empty" "$here" >"$work/doctor" 2>&1 || true
grep -q 'markers are written' "$work/doctor" || { cat "$work/doctor"; fail "by-dns.test was not found"; }
! grep -q 'by-hosts.test.*\(lookup\|resolve\|refused\)' "$work/doctor" ||
  { cat "$work/doctor"; fail "by-hosts.test was not found"; }

for suite in "$@"; do
  say "the .deb in $suite"
  root=$work/$suite
  debian "$suite" "$root"
  cp "$packages"/lockgate_*_amd64.deb "$root/lockgate.deb"
  within "$root" dpkg --install /lockgate.deb >"$work/log" 2>&1 || { cat "$work/log"; fail "dpkg --install"; }
  [ "$(within "$root" stat --format '%U %G %a' /etc/lockgate/lockgate.yaml)" = "root lockgate 640" ] ||
    fail "others than the service may read its passwords"
  within "$root" sh /lock.sh || fail "no lock in $suite"
  dpkg-deb --contents "$root/lockgate.deb" >"$work/files"
  for file in "${pages[@]}" /usr/lib/sysusers.d/lockgate.conf /usr/share/zsh/vendor-completions/_lockgate \
    /usr/share/doc/lockgate/copyright; do
    # Minimal roots may leave out pages; the package must not.
    grep -q "$file$" "$work/files" || fail "the package has no $file"
  done
  rm -rf "$work/tree"
  dpkg-deb --extract "$root/lockgate.deb" "$work/tree"
  python3 "$here/links.py" "$work/tree/usr/share/doc/lockgate" || fail "pages of the .deb lead nowhere"
  knows_commands "$work/tree" /usr/share/zsh/vendor-completions/_lockgate
  say "what its owner has changed stays: installed again, removed; all goes when it is purged"
  echo "# changed" >>"$root/etc/lockgate/lockgate.yaml"
  chmod 600 "$root/etc/lockgate/lockgate.yaml"
  within "$root" dpkg --install /lockgate.deb >/dev/null 2>&1
  grep -q '^# changed' "$root/etc/lockgate/lockgate.yaml" || fail "a changed configuration was overwritten"
  [ "$(stat --format %a "$root/etc/lockgate/lockgate.yaml")" = 600 ] || fail "its mode was set again"
  within "$root" dpkg --remove lockgate >/dev/null 2>&1
  [ -e "$root/etc/lockgate/lockgate.yaml" ] || fail "removed with its configuration"
  [ ! -e "$root/usr/bin/lockgate" ] || fail "the binary was left"
  within "$root" dpkg --purge lockgate >/dev/null 2>&1
  [ ! -e "$root/etc/lockgate" ] || fail "purged, and something is left"
done

say "the .rpm, in a root of Debian for want of another"
root=$work/rpm
debian "$1" "$root"
rpm=$(ls "$packages"/lockgate-*.x86_64.rpm)
rpm --query --package --list "$rpm" >"$work/files"
for file in "${pages[@]}" /etc/lockgate/lockgate.yaml /usr/lib/sysusers.d/lockgate.conf \
  /usr/share/zsh/site-functions/_lockgate /usr/share/licenses/lockgate/LICENSE-MIT; do
  grep -qx "$file" "$work/files" || fail "the package has no $file"
done
[ "$(rpm --query --package --configfiles "$rpm")" = /etc/lockgate/lockgate.yaml ] || fail "its configuration is not one"
rpm --checksig --nosignature "$rpm" >/dev/null
# Its own list of packages is empty there, so that it would miss everything.
mkdir -p "$root/var/lib/rpm"
rpm --root "$root" --install --nodeps "$rpm" 2>"$work/log" || { cat "$work/log"; fail "rpm --install"; }
[ "$(within "$root" stat --format '%U %G %a' /etc/lockgate/lockgate.yaml)" = "root lockgate 640" ] ||
  fail "others than the service may read its passwords"
within "$root" sh /lock.sh || fail "no lock after rpm --install"
python3 "$here/links.py" "$root/usr/share/doc/lockgate" || fail "pages of the .rpm lead nowhere"
knows_commands "$root" /usr/share/zsh/site-functions/_lockgate

if command -v systemd-sysusers >/dev/null; then
  say "systemd-sysusers makes the user"
  mkdir -p "$work/users/etc" "$work/users/usr/lib/sysusers.d"
  cp config/package/lockgate.sysusers "$work/users/usr/lib/sysusers.d/lockgate.conf"
  systemd-sysusers --root "$work/users" 2>/dev/null
  grep -q '^lockgate:.*:/usr/sbin/nologin$' "$work/users/etc/passwd" || fail "no user lockgate"
fi

say "the tar.gz of each machine"
for tarball in "$packages"/lockgate-*-linux-*.tar.gz; do
  name=$(basename "$tarball" .tar.gz)
  rm -rf "$work/tree"; mkdir "$work/tree"
  tar -C "$work/tree" -xf "$tarball"
  python3 "$here/links.py" "$work/tree/$name" || fail "pages of $name lead nowhere"
  for file in LICENSE-MIT config/lockgate.service man/lockgate-top.1.gz completions/_lockgate \
    lockgate.schema.json; do
    [ -s "$work/tree/$name/$file" ] || fail "$name has no $file"
  done
  is_for "${name##*-}" "$work/tree/$name/lockgate"
done

arm=$(ls "$packages"/../package/lockgate-*-linux-aarch64/lockgate 2>/dev/null || true)
if [ -n "$arm" ]; then
  say "the packages for arm64 have what the others have, for arm64"
  deb=$(ls "$packages"/lockgate_*_arm64.deb)
  [ "$(dpkg-deb --field "$deb" Architecture)" = arm64 ] || fail "the .deb says that it is for another machine"
  names() { dpkg-deb --fsys-tarfile "$1" | tar -t | sort; }
  diff <(names "$packages"/lockgate_*_amd64.deb) <(names "$deb") || fail "the .deb has other files"
  rm -rf "$work/tree"; dpkg-deb --extract "$deb" "$work/tree"
  is_for aarch64 "$work/tree/usr/bin/lockgate"
  rpm=$(ls "$packages"/lockgate-*.aarch64.rpm)
  [ "$(rpm --query --package --queryformat '%{ARCH}' "$rpm")" = aarch64 ] || fail "the .rpm is for another machine"
  diff <(rpm --query --package --list "$packages"/lockgate-*.x86_64.rpm) <(rpm --query --package --list "$rpm") ||
    fail "the .rpm has other files"
  rpm --checksig --nosignature "$rpm" >/dev/null
  rm -rf "$work/tree"; mkdir "$work/tree"
  # It is for another machine, and would not be installed here.
  # rpm2cpio of RPM 4.18 ends with 1 behind a whole payload of these packages. Its digests were checked above, and
  # cpio fails where an archive is cut.
  rpm2cpio "$rpm" >"$work/cpio" || true
  (cd "$work/tree" && cpio --extract --make-directories --quiet <"$work/cpio")
  is_for aarch64 "$work/tree/usr/bin/lockgate"
  say "the binary for arm64, under qemu, in a root without any other file"
  root=$work/arm; debian "$1" "$root"
  mkdir -p "$root/etc/lockgate"; cp "$arm" "$root/usr/bin/lockgate.arm64"
  cp "$(command -v qemu-aarch64-static)" "$root/usr/bin/"
  printf '#!/bin/sh\nexec /usr/bin/qemu-aarch64-static /usr/bin/lockgate.arm64 "$@"\n' >"$root/usr/bin/lockgate"
  chmod +x "$root/usr/bin/lockgate"
  mkdir -p "$root/usr/lib/systemd/system"; cp config/lockgate.service "$root/usr/lib/systemd/system/"
  printf 'admin: 127.0.0.1:9380\n' >"$root/etc/lockgate/lockgate.yaml"
  within "$root" useradd --system lockgate
  within "$root" sh /lock.sh || fail "no lock by the binary for arm64"
fi
say "all well"
