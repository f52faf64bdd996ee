#!/usr/bin/env bash
# Makes .venv with what the demo needs (`setup.sh demo`), or all that the tests need as well (`setup.sh test`): foreign clients, and etcd
# servers of other versions, unpacked or built into .cache. What can't be had is named and left out, as are its tests.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
apt() { # install packages; the index is fetched once
  command -v apt-get >/dev/null || { say "no apt-get here; install $* by hand"; return 1; }
  [ -n "${updated:-}" ] || { say "apt-get update"; as_root apt-get update -qq >/dev/null; updated=1; }
  [ $# = 0 ] || { say "apt-get install $*"; DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
}

environment() {
  .venv/bin/python -c 'import ssl, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && .venv/bin/pip --version >/dev/null 2>&1 && return
  [ -n "${PYTHON:-}" ] || { say "no Python 3.11 or newer; install python3.11 and python3.11-venv, or set PYTHON"; exit 1; }
  say "virtual environment .venv with $($PYTHON --version)"
  rm -rf .venv # of another Python, or half of one: Debian's python3 without python3-venv leaves that
  "$PYTHON" -m venv .venv >/dev/null 2>&1 && return
  rm -rf .venv
  apt python3-venv && "$PYTHON" -m venv .venv
}

packages() {
  say "Python packages: $1"
  .venv/bin/pip install -q --disable-pip-version-check -e ".[$1]"
}

foreign_clients() {
  command -v h2load >/dev/null && command -v nghttp >/dev/null || apt nghttp2-client || say "without h2load and nghttp their tests are skipped"
  # A second package that calls itself etcd3; it gets a folder of its own. It waits for locks as tenacity had it before version 7.
  [ -d .cache/python-etcd3/tenacity ] || {
    say "python-etcd3"
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --target .cache/python-etcd3 'etcd3>=0.12,<0.13' 'tenacity>=6.2,<7' 'six>=1.12' ||
      say "without it its test is skipped"
  }
}

# Debian's etcd, unpacked only: the installed package would start a service.
debian_etcd() {
  local folder=.cache/etcd-3.4
  [ ! -x $folder/usr/bin/etcd ] || return 0
  apt || return 0
  say "etcd 3.4 from Debian's packages"
  mkdir -p $folder
  (cd $folder && apt-get download -qq -o APT::Sandbox::User=root etcd-server etcd-client && for each in *.deb; do dpkg -x "$each" . && rm "$each"; done) ||
    say "could not get it; the tests run without etcd 3.4"
}

# etcd of a newer version, where there is Go.
built_etcd() {
  local minor=$1 version=$2 folder=.cache/etcd-$1
  [ ! -x "$folder/etcdctl" ] || return 0
  command -v go >/dev/null || { say "no Go here; the tests run without etcd $minor"; return 0; }
  say "etcd $version, built with $(go version | cut -d' ' -f3): a few minutes"
  mkdir -p "$folder"
  cp tools/etcd/*.go "$folder"
  (
    cd "$folder" && rm -f go.mod go.sum && go mod init etcd &&
      go get "go.etcd.io/etcd/server/v3@$version" "go.etcd.io/etcd/etcdctl/v3@$version" && go mod tidy &&
      CGO_ENABLED=0 go build -trimpath -o etcd etcd.go && CGO_ENABLED=0 go build -trimpath -o etcdctl etcdctl.go
  ) >"$folder/build.log" 2>&1 || say "the build failed, see $folder/build.log; the tests run without etcd $minor"
}

h2spec() {
  [ ! -x .cache/bin/h2spec ] && command -v go >/dev/null || return 0
  say "h2spec"
  GOBIN="$PWD/.cache/bin" go install github.com/summerwind/h2spec/cmd/h2spec@latest >/dev/null 2>&1 || say "the build failed; its test is skipped"
}

environment
case ${1:-test} in
demo) packages demo ;;
test)
  packages demo,test
  foreign_clients
  debian_etcd
  built_etcd 3.7 v3.7.3
  case ${SHARDGATE_TEST_ETCD:-} in *3.6* | all) built_etcd 3.6 v3.6.16 ;; esac
  h2spec
  ;;
esac
say "done"
