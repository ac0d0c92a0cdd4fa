"""Goal: the tests notice mistakes in the machines, the commit and the codec. Method: `tools/mutants.py` makes some."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.tree import ROOT, plant

pytest.importorskip("mutmut", reason="mutmut is not installed: make venv")

from tools.mutants import choose, mutants, places

SOURCE = '''
"""It counts."""

def step(count: int) -> int:
    if count > 3:
        raise ValueError("too many" + str(count - 1))
    name = "left as it is"
    return count + len(name)
'''


def keys(root: Path, text: str) -> set[str]:
    return {each.key for each in mutants(plant(root, {"bare/counted.py": text}), ["bare/counted.py"])}


def test_the_logic_is_changed_and_no_text(tmp_path: Path) -> None:
    found = list(mutants(plant(tmp_path, {"bare/counted.py": SOURCE}), ["bare/counted.py"]))
    assert all(each.source == SOURCE != each.changed for each in found)
    changed = " ".join(each.key for each in found)
    assert all(each in changed for each in ("> 3 ->  >= 3", "3 -> 4", "-> count - len(name)"))
    assert not [each for each in ("left", "LEFT", "None", "count + 1") if each in changed]


def test_a_change_elsewhere_leaves_the_choice_as_it_is(tmp_path: Path) -> None:
    before = keys(tmp_path / "before", SOURCE)
    after = keys(tmp_path / "after", SOURCE.replace("def step", "def other() -> bool:\n    return True\n\n\ndef step"))
    assert before < after
    found = list(mutants(tmp_path / "after", ["bare/counted.py"]))
    assert choose(found, 1, 3) == choose(reversed(found), 1, 3) != choose(found, 2, 3)


def test_machines_commit_and_codec_are_changed() -> None:
    found = places(ROOT)
    assert {"bare/varint.py", "stream_storage/commit.py", "block_node/publish/publish_machine.py"} <= set(found)
    assert not [each for each in found if each.startswith(("tests", "bench", ".venv", "bare/cli.py"))]


@pytest.mark.soak
def test_the_tests_notice_changes() -> None:
    """Goal: of a sample, 95 % are noticed. What is not is printed."""
    command = [sys.executable, "tools/mutants.py", "--count", "20", "--seconds", "240"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
