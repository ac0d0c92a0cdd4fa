"""What no program uses is found. That the tree has nothing of it, `./check` says."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vulture", reason="vulture is not installed: make venv")

from tools.dead_code import dead_code

TEXTS = {
    "pack/__init__.py": 'from pack.face import Door\n__all__ = ["Door"]\n',
    "pack/face.py": "class Door:\n    def open(self):\n        return made()\n\n\ndef made():\n    return 1\n",
    "tests/test_it.py": "from pack.more import spare\n\n\ndef test_it() -> None:\n    assert spare() == 1\n",
}


@pytest.mark.parametrize(
    ("text", "used", "expected"),
    [
        ("", (), []),
        ("def spare() -> int:\n    return 1\n", (), ["pack/more.py:1: the function spare is not in use"]),
        ("def spare() -> int:\n    return 1\n", ("spare",), []),
        ("LEFT = 1\n", (), ["pack/more.py:1: the variable LEFT is not in use"]),
        ("class Row:\n    field: int\n\n\nprint(Row)\n", (), []),
        (
            "class Row:\n    def left(self): ...\n\n\nprint(Row)\n",
            (),
            ["pack/more.py:2: the method left is not in use"],
        ),
        ("", ("made",), ["made needs no mention in USED"]),
    ],
)
def test_what_only_tests_use_is_found(tmp_path: Path, text: str, used: tuple[str, ...], expected: list[str]) -> None:
    for path, written in {**TEXTS, "pack/more.py": text}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(written, encoding="utf-8")
    assert dead_code(tmp_path, ["pack"], frozenset(used)) == expected
