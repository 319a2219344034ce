#!/usr/bin/env bash
# Installs what is missing, and nothing where nothing is.
#
#   scripts/setup.sh run        redis-server and what the build needs
#   scripts/setup.sh test       the same, and the clients that the tests run
#   scripts/setup.sh languages  the same as run, and Debian's Go, Ruby, Perl, PHP and Lua with their Redis libraries
#   scripts/setup.sh chaos      the same as run, what makes networks and wrong clocks, redis-py
#   scripts/setup.sh picture    the same as run, and what makes the picture of the status page
#   scripts/setup.sh bench      the same as run, and the peers of the benchmarks
#   scripts/setup.sh coordinators  the same as run, etcd and ZooKeeper and their clients
#   scripts/setup.sh lock-set   the same as run, etcd and its client, lock libraries for Python
#   scripts/setup.sh dist       what the packages are built with, and installed in by their test
#   scripts/setup.sh fresh      what makes a bare root of Debian
#   scripts/setup.sh deny       what looks at the dependencies' licenses and known weaknesses
#   scripts/setup.sh chart      Helm, as a library for Python 3.12 or later, and Kubernetes's schemas
#   scripts/setup.sh fuzz       the same as run, and cargo-fuzz; says how to get a nightly
#   scripts/setup.sh docs       mdBook, and what its build needs
set -euo pipefail
cd "$(dirname "$0")/.."

# "command package": what must be there, and the Debian package that has it.
wanted=("redis-server redis-server" "redis-cli redis-tools" "setpriv util-linux")
chaos=("ip iproute2" "nsenter util-linux" "mount mount" "faketime faketime")
case "${1:-run}" in
  run) ;;
  chaos) wanted+=("${chaos[@]}" "python3 python3") ;;
  test) wanted+=("${chaos[@]}" "python3 python3" "node nodejs" "npm npm"
    "script bsdutils" "tmux tmux" "haproxy haproxy" "php php-cli" "chromium chromium"
    "prometheus prometheus" "promtool prometheus" "openssl openssl" "systemd-analyze systemd") ;;
  languages) wanted+=("python3 python3" "go golang-go" "ruby ruby" "sidekiq ruby-sidekiq" "perl perl" "php php-cli"
    "lua5.1 lua5.1") ;;
  picture) wanted+=("chromium chromium" "unshare util-linux" "pngquant pngquant") ;;
  bench) wanted+=("haproxy haproxy" "nutcracker nutcracker" "valgrind valgrind" "redis-benchmark redis-tools"
    "openssl openssl" "python3 python3" "node nodejs" "npm npm") ;;
  coordinators) wanted+=("etcd etcd-server" "go golang-go" "java default-jre-headless"
    "javac default-jdk-headless" "python3 python3") ;;
  lock-set) wanted+=("etcd etcd-server" "go golang-go" "python3 python3") ;;
  dist) wanted+=("musl-gcc musl-tools" "aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu"
    "python3 python3" "node nodejs" "npm npm" "rpm rpm" "debootstrap debootstrap"
    "qemu-aarch64-static qemu-user-static" "ip iproute2" "readelf binutils" "cpio cpio") ;;
  fresh) wanted=("debootstrap debootstrap" "unshare util-linux" "git git") ;;
  chart | deny) ;;
  # libFuzzer is C++.
  fuzz) wanted+=("c++ g++") ;;
  docs) wanted=("git git") ;;
  *)
    echo "usage: $0 run|test|languages|chaos|picture|bench|coordinators|lock-set|dist|fresh|deny|chart|fuzz|docs" >&2
    exit 2
    ;;
esac

missing=()
for pair in "${wanted[@]}"; do
  read -r command package <<<"$pair"
  command -v "$command" >/dev/null || PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null ||
    missing+=("$package")
done
if [ "${1:-run}" = dist ] && [ ! -e /usr/aarch64-linux-gnu/include/stdlib.h ]; then
  missing+=(libc6-dev-arm64-cross)
fi
# A compiler alone, without the C library's files, cannot link.
if ! echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null; then
  missing+=(gcc libc6-dev)
fi
if [[ "${1:-run}" == @(test|chaos|bench|lock-set|dist) ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  missing+=(python3-venv)
fi

# Lock libraries for PHP, and what Debian calls them.
if [ "${1:-run}" = test ]; then
  for pair in "Predis php-predis" "Illuminate/Cache php-illuminate-cache" \
    "Illuminate/Redis php-illuminate-redis" "Symfony/Component/Lock php-symfony-lock"; do
    read -r place package <<<"$pair"
    [ -e "/usr/share/php/$place/autoload.php" ] || missing+=("$package")
  done
  if [[ $(php -m 2>/dev/null) != *redis* ]]; then missing+=(php-redis); fi
fi

# Libraries without a command of their own.
if [ "${1:-run}" = languages ]; then
  for package in golang-github-gomodule-redigo-dev golang-gopkg-redis.v5-dev ruby-redis libredis-perl \
    libredis-fast-perl php-redis php-predis lua-redis lua-socket; do
    [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
fi
# Clients that come as their source, or as classes.
if [[ "${1:-run}" == @(coordinators|lock-set) ]]; then
  [ -e /usr/share/gocode/src/go.etcd.io/etcd/clientv3 ] || missing+=(golang-etcd-server-dev)
fi
if [ "${1:-run}" = coordinators ]; then
  for pair in "zookeeper zookeeper" "curator-recipes libcurator-recipes-java" "slf4j-nop libslf4j-java"; do
    read -r jar package <<<"$pair"
    [ -e "/usr/share/java/$jar.jar" ] || missing+=("$package")
  done
fi

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ]; then
    as_root=()
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo)
  else
    echo "Missing, and neither root nor sudo to install it: ${missing[*]}" >&2
    echo "On Debian or Ubuntu: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  if ! command -v apt-get >/dev/null; then
    echo "Missing, and no apt-get to install it: ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing: ${missing[*]}"
  # Debian starts a service with the package, on a port that may be somebody's.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod +x "$policy"
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! command -v cargo >/dev/null; then
  echo "Missing: Rust 1.88 or later, with cargo (https://rustup.rs)" >&2
  exit 1
fi

# Lock libraries that the tests run need Node.js 20, and Debian 12 has 18. The Makefile puts this folder at the front of
# PATH. npm comes along, as Debian's finds its parts by Debian's Node.js alone.
PATH="$PWD/target/node/node_modules/.bin:$PATH"
is_new_enough() { node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; }
if [ "${1:-run}" = test ] && ! is_new_enough; then
  echo "Installing: Node.js 22 into target/node, as $(command -v node) is $(node --version 2>/dev/null || echo broken)"
  rm -rf target/node
  mkdir -p target/node
  # Outside of any folder with a package.json, whose own packages npm would install.
  echo '{"private": true}' >target/node/package.json
  (cd target/node && npm install --silent --no-audit --no-fund --no-package-lock node@22.23.3 npm@10.9.9) || true
  hash -r
  if ! is_new_enough; then
    echo "Missing: Node.js 20 or later, and npm could not fetch it. Put one at the front of PATH, with its npm" >&2
    echo "(https://nodejs.org/en/download)." >&2
    exit 1
  fi
fi

# Python's packages come by uv, which takes a fifth of pip's time. It builds that of clients/python too.
uv=target/uv/bin/uv
install_uv() {
  cmp -s scripts/python.txt target/uv/installed 2>/dev/null && return
  rm -rf target/uv
  python3 -m venv target/uv
  target/uv/bin/pip install --quiet --disable-pip-version-check -r scripts/python.txt
  cp scripts/python.txt target/uv/installed
}

case "${1:-run}" in
  run | fresh | languages | coordinators) exit ;;
  docs)
    command -v mdbook >/dev/null || cargo install --quiet --locked mdbook@0.5.4
    exit
    ;;
  dist)
    for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
      [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
    done
    for tool in cargo-deb cargo-generate-rpm cargo-cyclonedx cargo-deny; do
      command -v "$tool" >/dev/null || cargo install --quiet --locked "$tool"
    done
    install_uv
    exit
    ;;
  deny)
    command -v cargo-deny >/dev/null || cargo install --quiet --locked cargo-deny
    exit
    ;;
  chart)
    if ! cmp -s tests/packages/requirements.txt target/chart/installed 2>/dev/null; then
      for python in "${PYTHON:-python3}" python3.14 python3.13 python3.12; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break
      done
      "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null ||
        { echo "Missing: Python 3.12 or later; PYTHON=… names one" >&2; exit 1; }
      rm -rf target/chart
      "$python" -m venv target/chart
      target/chart/bin/pip install --quiet --disable-pip-version-check -r tests/packages/requirements.txt
      cp tests/packages/requirements.txt target/chart/installed
    fi
    exit
    ;;
  fuzz)
    if ! cargo +nightly --version >/dev/null 2>&1; then
      echo "Missing: a nightly Rust, which libFuzzer's coverage needs: rustup toolchain install nightly" >&2
      exit 1
    fi
    command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz
    exit
    ;;
  # Lock libraries have places of their own: their clients are not the newest.
  test) libraries=(tests/clients tests/clients/legacy) ;;
  chaos) libraries=(tests/clients) ;;
  bench | lock-set) libraries=(bench/peers) ;;
esac
install_uv
for place in "${libraries[@]}"; do
  lists=(scripts/python.txt "$place/requirements.txt")
  # Packages beside the others, as they share a module's name or want other versions.
  if [ -e "$place/beside.txt" ]; then lists+=("$place/beside.txt"); fi
  # Marked with what was installed, so that a change of the lists is noticed.
  if ! cat "${lists[@]}" | cmp -s - "$place/.venv/installed" 2>/dev/null; then
    rm -rf "$place/.venv"
    "$uv" venv --quiet --python python3 "$place/.venv"
    # What builds packages that come as their source is of one version everywhere.
    install=("$uv" pip install --quiet --python "$place/.venv" --build-constraint scripts/python.txt)
    "${install[@]}" -r "$place/requirements.txt"
    if [ -e "$place/beside.txt" ]; then
      while read -r package; do
        "${install[@]}" --no-deps --target "$place/.venv/beside/${package%%==*}" "$package"
      done <"$place/beside.txt"
    fi
    cat "${lists[@]}" >"$place/.venv/installed"
  fi
  if [[ "$1" != @(chaos|lock-set) ]] && ! cmp -s "$place/package-lock.json" "$place/node_modules/installed" 2>/dev/null; then
    (cd "$place" && npm ci --silent --no-audit --no-fund)
    cp "$place/package-lock.json" "$place/node_modules/installed"
  fi
done
