"""The fork tree itself does no I/O, and the package needs no SQL before a commit store is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import block_manager

PURE = ("errors", "tree")
IMPURE = ("random", "sqlalchemy", "sqlite3", "stream_storage", "threading", "time", "trio")


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_nothing_impure(module: str) -> None:
    text = (Path(block_manager.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    imported = [
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    ]
    assert imported
    assert not set(imported) & set(IMPURE)


def test_the_manager_is_there_without_sql() -> None:
    script = "import sys, block_manager; sys.exit('sqlalchemy' in sys.modules or 'sqlite3' in sys.modules)"
    root = Path(block_manager.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, timeout=60, check=False).returncode == 0
