"""Goal: `tools/house.py` sees each fault of the house, and fails where a figure is worse than it was.

Method: small trees with one fault each. `./check` runs the tool over the real tree.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.style.tree import ROOT, files, plant
from tools import house
from tools.house import Figure, House, figures

CLEAN = {
    "pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["bare", "ockam"]\n',
    "bare/__init__.py": "from bare.x import f\n",
    "bare/x.py": '"""A module.\n\nIts job."""\n\nX = 1\n"""The text\n\nof a name."""\n\n\n'
    '# Why.\ndef f():\n    "x"\n    return X\n',
    "ockam/__init__.py": "",
    "ockam/actors/__init__.py": '"""Actors."""\n',
    "tests/bare/test_x.py": "class State: ...\n",
}
CLASSES = {f"ockam/{name}.py": "class State: ...\n" for name in "abc"}


def of(root: Path, texts: dict[str, str]) -> dict[str, Figure]:
    """The figures of a small tree, by their name."""
    plant(root, texts)
    return {each.name: each for each in figures(House(root, texts))}


def test_lines_are_counted_by_their_kind(tmp_path: Path) -> None:
    found = of(tmp_path, CLEAN)
    assert (found["installed lines"].value, found["installed lines of code"].value) == (16, 4)
    assert found["installed lines"].found == ["bare: 15", "ockam: 1"]


def test_a_clean_house_has_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "HEARTS", ())
    assert [each for each in of(tmp_path, CLEAN).values() if each.value > each.bar] == []


@pytest.mark.parametrize(
    ("name", "texts", "expected"),
    [
        (
            "names that other distributions install",
            {"pyproject.toml": '[tool.hatch.build.targets.wheel]\npackages = ["bare", "storage"]\n'},
            ["storage: storage 0.0.4.3"],
        ),
        (
            "folders with more than 30 files",
            {f"docs/{number}.md": "" for number in range(31)} | {f"ockam/{number}.py": "" for number in range(29)},
            ["docs: 31"],
        ),
        (
            "__init__ with code, outside the faces",
            {"ockam/actors/__init__.py": "X = 1\n"},
            ["ockam/actors/__init__.py"],
        ),
        ("class names of three modules or more", CLASSES, ["State: ockam/a.py, ockam/b.py, ockam/c.py"]),
        ("class names of two modules or more", CLASSES, ["State: ockam/a.py, ockam/b.py, ockam/c.py"]),
        ("class names of two modules or more", {"ockam/a.py": CLASSES["ockam/a.py"]}, []),
        (
            "class names of two modules or more",
            {"ockam/a.py": "class A: ...\n", "ockam/blocking/a.py": "class A: ...\n"},
            [],
        ),
        (
            "calls with more than 7 arguments by place",
            {"ockam/a.py": "f(1, 2, 3, 4, 5, 6, 7)\nx.f(1, 2, 3, 4, 5, 6, 7, 8)\nselect(1, 2, 3, 4, 5, 6, 7, 8)\n"},
            ["ockam/a.py:2: x.f( has 8"],
        ),
    ],
)
def test_a_fault_is_found(tmp_path: Path, name: str, texts: dict[str, str], expected: list[str]) -> None:
    assert of(tmp_path, CLEAN | texts)[name].found == expected


def test_entries_of_the_root_are_those_of_git_and_dot_files_count(tmp_path: Path) -> None:
    found = of(tmp_path, CLEAN | {".gitignore": ""})["entries of the root"].found
    assert found == [".gitignore", "bare", "ockam", "pyproject.toml", "tests"]


def test_a_heart_needs_comments_at_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "HEARTS", ("ockam/a.py", "ockam/b.py", "ockam/gone.py"))
    texts = {
        "ockam/a.py": "x = 1\n" * 25 + "# Why.\n# And why.\n",
        "ockam/b.py": "x = 1  # a tail is no step\n" * 25 + "# Why.\n",
    }
    found = of(tmp_path, CLEAN | texts)["hearts with few comments"].found
    assert found == ["ockam/gone.py: not there", "ockam/b.py: 4.0 comment lines in 100 of code"]


def test_a_figure_fails_above_its_bar_and_its_recorded_value() -> None:
    assert [Figure("x", value, 3, 5, []).fails for value in (3, 5, 6)] == [False, False, True]
    assert [Figure("x", value, 3, 2, []).fails for value in (3, 4)] == [False, True]


def test_the_tool_ends_with_an_error_and_says_what_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "HEARTS", ())
    good = House(plant(tmp_path / "good", CLEAN), CLEAN)
    assert house.main([], good) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()} == {"green"}
    # Files and folders, since a folder with so many files is one more figure.
    texts = CLEAN | {f"{number}.md": "" for number in range(20)} | {f"room{number}/a.md": "" for number in range(20)}
    assert house.main([], House(plant(tmp_path / "bad", texts), texts)) == 1
    shown = capsys.readouterr().out.splitlines()
    (at,) = [place for place, line in enumerate(shown) if line.startswith("house: WORSE")]
    assert shown[at].startswith("house: WORSE  entries of the root: 44 (bar 32, recorded ")
    assert [line.strip() for line in shown[at + 1 : at + 3]] == ["0.md", "1.md"]


def test_every_heart_is_there() -> None:
    installed = {str(path.relative_to(ROOT)) for path in files(ROOT, ".py")}
    assert [path for path in house.HEARTS if path not in installed] == []
