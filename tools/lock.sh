#!/bin/sh
# Write the locks in tools/locks anew from pyproject.toml, for every platform and Python 3.11 or newer: requirements.lock,
# requirements-dev.lock and requirements-docs.lock for tools/setup.sh; requirements-spark.lock and requirements-extras.lock,
# what extras need beyond requirements.lock, for tools/spark.sh.
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
    [ ! -f "tools/locks/$lock" ] || cp "tools/locks/$lock" "$work/$lock"
    uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
        --no-config $upgrade "$@" -o "$work/$lock" >/dev/null
}

compile requirements.lock pyproject.toml --group build
compile requirements-dev.lock pyproject.toml --group build --group dev -c "$work/requirements.lock"
# The site is built in an environment of its own, which does not have this project.
compile requirements-docs.lock --group docs
# What extras need is installed beside the development packages, so it fits them. An extra of the tests, store-tests, does
# not: its moto wants an older python-dateutil than matplotlib.
beyond=$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' "$work/requirements.lock")
# shellcheck disable=SC2086
compile requirements-spark.lock pyproject.toml --extra spark -c "$work/requirements-dev.lock" $beyond
# shellcheck disable=SC2086
compile requirements-extras.lock pyproject.toml --extra spark --extra spark-connect --extra avro --extra protobuf --extra delta \
    --extra iceberg --extra postgres --extra kafka --extra otel --extra http-tests \
    -c "$work/requirements-dev.lock" $beyond
# The constraint is a file in a temporary folder: its name must not get into the result. An empty line begins a list of the
# packages that were left out.
for lock in dev spark extras; do
    sed -e '/^ *#.*-c .*requirements[a-z-]*\.lock$/d' -e '/^$/,$d' "$work/requirements-$lock.lock" >"$work/clean"
    mv "$work/clean" "$work/requirements-$lock.lock"
done

for lock in requirements.lock requirements-dev.lock requirements-docs.lock requirements-spark.lock requirements-extras.lock; do
    if [ -z "$check" ]; then
        cp "$work/$lock" "tools/locks/$lock"
    else
        diff -u "tools/locks/$lock" "$work/$lock" || {
            printf 'lock: %s is not what pyproject.toml asks for: sh tools/lock.sh\n' "$lock" >&2
            exit 1
        }
    fi
done
