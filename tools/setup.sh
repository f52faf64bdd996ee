#!/usr/bin/env bash
# Makes .venv with everything the project, its demo and its tests need, and fetches etcd servers of other versions into .cache.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
updated=
apt_update() { [ -n "$updated" ] || { say "apt-get update"; as_root apt-get update -qq; updated=1; }; }

[ -n "${PYTHON:-}" ] || { say "no Python of 3.11 or newer found; install python3.11 and python3.11-venv"; exit 1; }
say "virtual environment with $($PYTHON --version)"
if ! "$PYTHON" -m venv .venv 2>/dev/null; then
  apt_update
  as_root apt-get install -y -qq python3-venv >/dev/null
  "$PYTHON" -m venv .venv
fi
say "packages of pyproject.toml (a minute)"
.venv/bin/pip install -q --disable-pip-version-check -e '.[demo,test]'

if ! command -v h2load >/dev/null || ! command -v nghttp >/dev/null; then
  if command -v apt-get >/dev/null; then
    apt_update
    say "nghttp2-client"
    as_root apt-get install -y -qq --no-install-recommends nghttp2-client >/dev/null
  else
    say "no apt-get: install h2load and nghttp by hand, or their tests are skipped"
  fi
fi

# Debian's etcd 3.4, unpacked only: the installed package would start a service.
if [ ! -x .cache/etcd-3.4/usr/bin/etcd ] && command -v apt-get >/dev/null; then
  apt_update
  say "etcd 3.4 from Debian's packages"
  mkdir -p .cache/etcd-3.4
  (cd .cache/etcd-3.4 && apt-get download -qq etcd-server etcd-client && for each in *.deb; do dpkg -x "$each" .; rm "$each"; done) ||
    say "could not get it; tests run without 3.4"
fi

# etcd 3.7 and 3.6, where there is Go.
build_etcd() {
  local name=$1 version=$2 dir=.cache/etcd-$1
  [ -x "$dir/etcd" ] && return
  say "etcd $name, built with $(go version | cut -d' ' -f3) (a minute)"
  mkdir -p "$dir"
  cp tools/etcd/main.go.txt "$dir/main.go"
  (cd "$dir" && rm -f go.mod go.sum && go mod init etcd && go get "go.etcd.io/etcd/server/v3@$version" && go mod tidy &&
    CGO_ENABLED=0 go build -o etcd .) >"$dir/build.log" 2>&1 || say "the build failed ($dir/build.log); tests run without $name"
}
if command -v go >/dev/null; then
  build_etcd 3.7 v3.7.3
  build_etcd 3.6 v3.6.16
  if [ ! -x .cache/bin/h2spec ]; then
    say "h2spec"
    GOBIN="$PWD/.cache/bin" go install github.com/summerwind/h2spec/cmd/h2spec@latest >/dev/null 2>&1 || say "the build failed; its test is skipped"
  fi
else
  say "no Go on this machine: tests run without etcd 3.6 and 3.7 and without h2spec"
fi
say "done"
