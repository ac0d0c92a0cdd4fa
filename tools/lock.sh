#!/bin/sh
# Write requirements.lock, requirements-dev.lock and requirements-docs.lock anew from pyproject.toml, for every platform and
# Python 3.11 or newer.
#
#   sh tools/lock.sh                what is pinned stays pinned where it still fits
#   sh tools/lock.sh --upgrade      everything to the newest version that fits
#   sh tools/lock.sh --check        write nothing; fail when the files are not what would be written
#
# Needs uv. The locks are plain requirements with hashes, without any index address, so that pip and uv can both read
# them. There is no uv.lock: it would name the registry's hosts.
set -eu
cd "$(dirname "$0")/.."

upgrade=
check=
case ${1:-} in
'') ;;
--upgrade) upgrade=--upgrade ;;
--check) check=yes ;;
*)
    printf 'usage: sh tools/lock.sh [--upgrade | --check]\n' >&2
    exit 2
    ;;
esac
command -v uv >/dev/null 2>&1 || {
    printf 'lock: uv is not on PATH; one way to get it: python3 -m venv DIR && DIR/bin/pip install uv\n' >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile LOCK SOURCES AND OPTIONS…: what is in the lock now is preferred, so that only asked changes happen.
compile() {
    lock=$1
    shift
    [ ! -f "$lock" ] || cp "$lock" "$work/$lock"
    uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
        --no-config $upgrade "$@" -o "$work/$lock" >/dev/null
}

compile requirements.lock pyproject.toml --group build
compile requirements-dev.lock pyproject.toml --group build --group dev -c "$work/requirements.lock"
# The site is built in an environment of its own, which does not have this project.
compile requirements-docs.lock --group docs
# The constraint is a file in a temporary folder: its name must not get into the result.
sed '/^ *#.*-c .*requirements\.lock$/d' "$work/requirements-dev.lock" >"$work/dev" && mv "$work/dev" "$work/requirements-dev.lock"

for lock in requirements.lock requirements-dev.lock requirements-docs.lock; do
    if [ -z "$check" ]; then
        cp "$work/$lock" "$lock"
    else
        diff -u "$lock" "$work/$lock" || {
            printf 'lock: %s is not what pyproject.toml asks for: sh tools/lock.sh\n' "$lock" >&2
            exit 1
        }
    fi
done
