#!/bin/sh
# Make the virtual environment $VENV hold what tools/locks/requirements.lock (`run`) or requirements-dev.lock (`dev`) lists, and
# this project, editable; or what requirements-docs.lock (`docs`) lists, which builds the documentation site and reads
# this project's sources only. Every download is checked against a hash. Safe to repeat: does nothing when nothing
# changed, starts over when an earlier run was cut short.
#
#   VENV=.venv PY=python3 NO_UV= sh tools/setup.sh run|dev|docs
#
# Three ways, the first that works: uv; python -m venv; python -m venv --without-pip with the outer pip.
set -eu
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
set_name=${1:-}

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

case $set_name in
run) lock=tools/locks/requirements.lock ;;
dev) lock=tools/locks/requirements-dev.lock ;;
docs) lock=tools/locks/requirements-docs.lock ;;
*) fail "usage: sh tools/setup.sh run|dev|docs" ;;
esac

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

is_healthy() {
    "$VENV/bin/python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix or sys.version_info < (3, 11))' \
        >/dev/null 2>&1
}

# What an environment is made from: these files, and the folder the editable install points to.
fingerprint() {
    { cat "$lock" pyproject.toml tools/setup.sh; pwd; } | cksum
}

is_done() {
    [ -f "$VENV/.done-$set_name" ] && [ "$(cat "$VENV/.done-$set_name")" = "$(fingerprint)" ]
}

find_python() {
    if [ -n "${PY:-}" ]; then
        command -v "$PY" >/dev/null 2>&1 || fail "PY=$PY: there is no such command"
        is_new_enough "$PY" || fail "PY=$PY is $("$PY" -V 2>&1): Python 3.11 or newer is needed"
        return
    fi
    for PY in python3 python3.13 python3.12 python3.11 python3.14; do
        is_new_enough "$PY" && return
    done
    if has_uv && PY=$(uv python find --no-python-downloads '>=3.11' 2>/dev/null); then
        return
    fi
    found=$(python3 -V 2>&1) || found="no python3"
    fail "Python 3.11 or newer is needed, and $found was found. Install it, or name one: make PY=/path/to/python3 …"
}

has_uv() {
    [ -z "${NO_UV:-}" ] && command -v uv >/dev/null 2>&1
}

remove_broken() {
    case ${VENV##*/} in
    .venv) ;;
    *) [ -f "$VENV/pyvenv.cfg" ] || [ -f "$VENV/.unfinished" ] ||
        fail "VENV=$VENV is there and is no virtual environment: move it away" ;;
    esac
    printf 'setup: %s is not complete; making it anew\n' "$VENV" >&2
    rm -rf "$VENV"
}

make_environment() {
    mkdir -p "$VENV"
    : >"$VENV/.unfinished"
    if has_uv; then
        uv venv -q --allow-existing --python "$PY" "$VENV"
    elif ! { "$PY" -c 'import ensurepip' && "$PY" -m venv "$VENV"; } >/dev/null 2>&1; then
        # Debian without python3-venv: the environment has no pip, and the one outside serves it.
        "$PY" -m venv --without-pip "$VENV" || fail "$PY cannot make virtual environments: install its venv module, or uv"
    fi
}

install_with() {
    "$@" install --require-hashes -r "$lock" || fail "the packages of $lock could not be installed; run it again to repeat"
    [ "$set_name" = docs ] || "$@" install --no-deps --no-build-isolation -e . || fail "this project could not be installed"
}

install() {
    : >"$VENV/.unfinished"
    if has_uv; then
        install_with env VIRTUAL_ENV="$VENV" uv -q pip
    elif "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        install_with "$VENV/bin/python" -m pip -qq --disable-pip-version-check
    else
        [ -n "${PY:-}" ] || find_python
        "$PY" -m pip --python "$VENV/bin/python" --version >/dev/null 2>&1 ||
            fail "there is no pip of 22.3 or newer: install python3-venv, python3-pip or uv"
        install_with "$PY" -m pip --python "$VENV/bin/python" -qq --disable-pip-version-check
    fi
    rm -f "$VENV/.unfinished"
}

if [ -e "$VENV" ] && { [ -f "$VENV/.unfinished" ] || ! is_healthy; }; then
    remove_broken
fi
is_done && exit 0
if [ ! -e "$VENV" ]; then
    find_python
    printf 'setup: making %s with %s\n' "$VENV" "$("$PY" -V)" >&2
    make_environment
fi
printf 'setup: installing %s\n' "$lock" >&2
install
fingerprint >"$VENV/.done-$set_name"
# The development set contains the other one.
if [ "$set_name" = dev ]; then
    lock=tools/locks/requirements.lock
    fingerprint >"$VENV/.done-run"
fi
