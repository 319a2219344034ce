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

say "checksums"
(cd "$packages" && sha256sum --quiet --check SHA256SUMS)

say "the binary needs nothing: a root without any other file, names by /etc/hosts and by DNS"
binary=$(ls "$packages"/../package/lockgate-*-linux-x86_64/lockgate)
readelf --program-headers "$binary" | grep -q INTERP && fail "it needs a dynamic linker"
readelf --sections "$binary" | grep -q '\.symtab' && fail "it is not stripped"
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
  for file in share/man/man1/lockgate.1.gz share/man/man1/lockgate-doctor.1.gz lib/sysusers.d/lockgate.conf \
    share/bash-completion/completions/lockgate share/doc/lockgate/copyright; do
    # Minimal roots may leave out pages; the package must not.
    grep -q "/usr/$file$" "$work/files" || fail "the package has no /usr/$file"
  done
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
for file in /usr/bin/lockgate /etc/lockgate/lockgate.yaml /usr/lib/systemd/system/lockgate.service \
  /usr/lib/sysusers.d/lockgate.conf /usr/share/man/man1/lockgate.1.gz /usr/share/licenses/lockgate/LICENSE-MIT; do
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

if command -v systemd-sysusers >/dev/null; then
  say "systemd-sysusers makes the user"
  mkdir -p "$work/users/etc" "$work/users/usr/lib/sysusers.d"
  cp config/package/lockgate.sysusers "$work/users/usr/lib/sysusers.d/lockgate.conf"
  systemd-sysusers --root "$work/users" 2>/dev/null
  grep -q '^lockgate:.*:/usr/sbin/nologin$' "$work/users/etc/passwd" || fail "no user lockgate"
fi

arm=$(ls "$packages"/../package/lockgate-*-linux-aarch64/lockgate 2>/dev/null || true)
if [ -n "$arm" ]; then
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
