#!/usr/bin/env bash
# README's two commands in a root of Debian 12 with nothing but Rust, make and certificates, in a clone of HEAD:
# `make run` until it answers LOCK, and `make test`. As root; run by `make fresh-test`.
#
#   tests/packages/fresh.sh            both
#   tests/packages/fresh.sh run|test   one of them
#
# The root is made anew each time, from what debootstrap made and target/roots keeps. Rust is this machine's own. The
# network is this machine's too: both commands install what they need.
set -euo pipefail
cd "$(dirname "$0")/../.."
base=$PWD/target/roots/fresh
root=$PWD/target/fresh
mirror=${MIRROR:-http://deb.debian.org/debian}
[ $# -gt 0 ] || set -- run test

say() { printf '== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "not root: debootstrap, mounts and chroot need it"

# Runs words in the root, which is a mount there, with processes of its own that end with this.
within() {
  unshare --mount --pid --fork --kill-child --propagation private sh -c '
    set -e
    mount --bind "$0" "$0"
    mount -t proc proc "$0/proc"
    mount -t tmpfs tmpfs "$0/run"
    mount --rbind /sys "$0/sys"
    mount --rbind /dev "$0/dev"
    mount --bind "$1" "$0/opt/rust"
    shift
    exec chroot "$0" "$@"' "$root" "$(rustc --print sysroot)" \
    env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SSL_CERT_FILE=/opt/ca.crt CARGO_HTTP_CAINFO=/opt/ca.crt PIP_CERT=/opt/ca.crt NODE_EXTRA_CA_CERTS=/opt/ca.crt \
    sh -c 'cd /root/lockgate && exec "$@"' sh "$@"
}

if [ ! -e "$base/.ready" ]; then
  say "debootstrap bookworm"
  rm -rf --one-file-system "$base"; mkdir -p "${base%/*}"
  debootstrap --variant=minbase --include=make,ca-certificates bookworm "$base" "$mirror" >"$base.log" 2>&1 ||
    { tail "$base.log"; fail "debootstrap"; }
  touch "$base/.ready"
fi
rm -rf --one-file-system "$root"
cp -a "$base" "$root"
mkdir -p "$root/opt/rust"
# What a proxy between here and the registries is trusted by is in this machine's list alone.
cp /etc/ssl/certs/ca-certificates.crt "$root/opt/ca.crt"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
git clone --quiet --no-hardlinks . "$root/root/lockgate"

for command in "$@"; do
  begun=$SECONDS
  case $command in
    run)
      say "make run"
      within make run >"$root/run.log" 2>&1 &
      running=$!
      trap 'kill "$running" 2>/dev/null || :' EXIT
      until granted=$(chroot "$root" redis-cli -p 6380 LOCK fresh PX 1000 2>/dev/null) && [ "$(wc -l <<<"$granted")" = 3 ]; do
        kill -0 "$running" 2>/dev/null || { tail -n 30 "$root/run.log"; fail "make run"; }
        sleep 1
      done
      # The tool between takes no SIGTERM, and ends with its child. A shell may stand before it.
      between=$(pgrep -P "$running" -x unshare) || between=$running
      pkill -TERM -P "$between" || kill "$running"
      wait "$running" || :
      say "make run answers LOCK after $((SECONDS - begun)) s" ;;
    test)
      say "make test"
      within make test || fail "make test, after $((SECONDS - begun)) s"
      say "make test passes after $((SECONDS - begun)) s" ;;
    *) fail "usage: $0 [run|test]" ;;
  esac
done
