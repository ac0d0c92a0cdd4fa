"""Set-up, decision by decision, with stand-ins for interpreter, uv and tools: nothing is installed here.

That the real tools do what the stand-ins say is seen on every fresh clone, by `make test` itself.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.style.tree import ROOT

# An interpreter: new enough unless OLD, with ensurepip unless NO_ENSUREPIP, with pip unless NO_PIP. What it is asked to
# install is written to the log. The environments it makes hold itself.
PYTHON = """#!/bin/sh
case "$*" in
-V) echo "Python ${OLD:-3.11.9}" ;;
*sys.prefix*) case $0 in *.venv*) ;; *) exit 1 ;; esac ;;
*sys.version_info*) [ -z "${OLD:-}" ] ;;
*"import ensurepip"*) [ -z "${NO_ENSUREPIP:-}" ] ;;
*"-m venv"*)
    for target; do :; done
    echo "venv${NO_ENSUREPIP:+ without pip}" >>"$LOG"
    mkdir -p "$target/bin" && cp "$0" "$target/bin/python" && : >"$target/pyvenv.cfg" ;;
*--version*) case $0 in *.venv*) [ -z "${NO_ENSUREPIP:-}" ] ;; *) [ -z "${NO_PIP:-}" ] ;; esac ;;
*" install "*)
    [ -z "${BREAK:-}" ] || exit 1
    case $0 in *.venv*) who=inner ;; *) who=outer ;; esac
    case "$*" in *requirements*) echo "$who ${*##* -r }" ;; *) echo "$who project" ;; esac >>"$LOG" ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""

UV = """#!/bin/sh
case "$*" in
venv*) for target; do :; done
    echo "uv venv" >>"$LOG"
    mkdir -p "$target/bin" && cp "$BIN/python3" "$target/bin/python" && : >"$target/pyvenv.cfg" ;;
*" install "*) case "$*" in *requirements*) echo "uv ${*##* -r }" ;; *) echo "uv project" ;; esac >>"$LOG" ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""

RUN_SET = ["tools/locks/requirements.lock", "project"]
DEV_SET = ["tools/locks/requirements-dev.lock", "project"]


class House:
    """A folder with a copy of the scripts, and a PATH that has the stand-ins and nothing else that is a Python."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "a house"
        self.bin = directory / "bin"
        self.log = directory / "log"
        (self.root / "tools/locks").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "tools/setup.sh", self.root / "tools/setup.sh")
        (self.root / "pyproject.toml").write_text("a project")
        for name in ("requirements.lock", "requirements-dev.lock", "requirements-docs.lock"):
            (self.root / "tools/locks" / name).write_text(name)
        for tool in ("sh", "cat", "cksum", "cp", "dirname", "env", "mkdir", "rm"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.add("python3", PYTHON)

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, which: str, **environment: str) -> subprocess.CompletedProcess[str]:
        fixed = {"PATH": str(self.bin), "BIN": str(self.bin), "LOG": str(self.log)}
        command = [str(self.bin / "sh"), "tools/setup.sh", which]
        return subprocess.run(
            command, cwd=self.root, env=fixed | environment, capture_output=True, text=True, check=False
        )

    def did(self) -> list[str]:
        """What was done since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def ok(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr


def by(who: str, what: list[str]) -> list[str]:
    return [f"{who} {each}" for each in what]


def test_with_venv(house: House) -> None:
    ok(house.setup("run"))
    assert house.did() == ["venv", *by("inner", RUN_SET)]


def test_without_ensurepip_the_outer_pip_installs(house: House) -> None:
    ok(house.setup("run", NO_ENSUREPIP="1"))
    assert house.did() == ["venv without pip", *by("outer", RUN_SET)]


def test_uv_is_preferred_unless_told_not_to(house: House) -> None:
    house.add("uv", UV)
    ok(house.setup("run"))
    assert house.did() == ["uv venv", *by("uv", RUN_SET)]
    ok(house.setup("dev", NO_UV="1"))
    assert house.did() == by("inner", DEV_SET)


def test_repeating_does_nothing_and_a_change_only_installs(house: House) -> None:
    ok(house.setup("run"))
    house.did()
    ok(house.setup("run"))
    assert house.did() == []
    (house.root / "tools/locks/requirements.lock").write_text("changed")
    ok(house.setup("run"))
    assert house.did() == by("inner", RUN_SET)


def test_dev_after_run_only_adds_and_serves_both(house: House) -> None:
    ok(house.setup("run"))
    house.did()
    ok(house.setup("dev"))
    assert house.did() == by("inner", DEV_SET)
    ok(house.setup("run"))
    assert house.did() == []


def test_the_environment_of_the_documentation_does_not_hold_the_project(house: House) -> None:
    ok(house.setup("docs", VENV=".venv-docs"))
    assert house.did() == ["venv", "inner tools/locks/requirements-docs.lock"]


def test_moved_elsewhere_the_project_is_installed_again(house: House) -> None:
    ok(house.setup("run"))
    house.did()
    house.root = house.root.rename(house.root.with_name("elsewhere"))
    ok(house.setup("run"))
    assert house.did() == by("inner", RUN_SET)


def test_an_installation_cut_short_starts_over(house: House) -> None:
    failed = house.setup("run", BREAK="1")
    assert failed.returncode == 1
    assert "the packages of tools/locks/requirements.lock could not be installed" in failed.stderr
    (house.root / ".venv/half").touch()
    house.did()
    ok(house.setup("run"))
    assert house.did() == ["venv", *by("inner", RUN_SET)]
    assert not (house.root / ".venv/half").exists()


@pytest.mark.parametrize("left", ["bin", "pyvenv.cfg"])
def test_a_half_made_environment_is_made_anew(house: House, left: str) -> None:
    ok(house.setup("run"))
    house.did()
    for name in {"bin", "pyvenv.cfg"} - {left}:
        shutil.rmtree(house.root / ".venv" / name, ignore_errors=True)
    (house.root / ".venv/bin/python").unlink(missing_ok=True)
    ok(house.setup("run"))
    assert house.did() == ["venv", *by("inner", RUN_SET)]


def test_a_folder_that_is_no_environment_is_left_alone(house: House) -> None:
    (house.root / "papers").mkdir()
    (house.root / "papers/thesis").touch()
    refused = house.setup("run", VENV="papers")
    assert (refused.returncode, house.did()) == (1, [])
    assert "VENV=papers is there and is no virtual environment" in refused.stderr
    assert (house.root / "papers/thesis").exists()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"OLD": "3.9.2"}, "Python 3.11 or newer is needed, and Python 3.9.2 was found"),
        ({"OLD": "3.9.2", "PY": "python3"}, "PY=python3 is Python 3.9.2: Python 3.11 or newer is needed"),
        ({"PY": "python4"}, "PY=python4: there is no such command"),
        ({"NO_ENSUREPIP": "1", "NO_PIP": "1"}, "there is no pip of 22.3 or newer"),
    ],
)
def test_what_is_missing_is_said_in_one_line(house: House, environment: dict[str, str], message: str) -> None:
    refused = house.setup("run", **environment)
    assert refused.returncode == 1
    assert f"setup: {message}" in refused.stderr.splitlines()[-1]


def test_without_any_python_it_says_so(house: House) -> None:
    (house.bin / "python3").unlink()
    refused = house.setup("run")
    assert refused.returncode == 1
    assert "Python 3.11 or newer is needed, and no python3 was found" in refused.stderr
