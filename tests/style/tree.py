"""The source tree as the house rules see it: its packages, its Python files and its documents."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Top-level folders with Python in them that are no packages of ours.
NO_PACKAGES = {"bench", "build", "dist", "docs", "examples", "tests", "tools"}


def packages(root: Path) -> list[str]:
    """The names of the top-level packages, sorted."""
    return sorted(
        folder.name
        for folder in root.iterdir()
        if folder.is_dir()
        and not folder.name.startswith((".", "bench-"))
        and folder.name not in NO_PACKAGES
        and files(folder, ".py")
    )


def package_files(root: Path) -> list[Path]:
    """The Python files of all packages, sorted."""
    return [path for name in packages(root) for path in files(root / name, ".py")]


def python_files(root: Path) -> list[Path]:
    """The Python files of packages, the bench, tests, examples and tools, sorted."""
    folders = ("bench", "examples", "tests", "tools")
    return package_files(root) + [path for name in folders for path in files(root / name, ".py")]


def documents(root: Path) -> list[Path]:
    """The Markdown files of the top level, of docs/ and of examples/, sorted."""
    return sorted(root.glob("*.md")) + files(root / "docs", ".md") + files(root / "examples", ".md")


def files(folder: Path, *suffixes: str) -> list[Path]:
    """The files below a folder whose names end so, sorted; all of them without suffixes. Hidden ones are left out."""
    return sorted(path for path in _walk(folder) if not suffixes or path.name.endswith(suffixes))


def _walk(folder: Path) -> Iterator[Path]:
    for directory, names, leaves in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".") and name not in ("__pycache__", "node_modules")]
        yield from (Path(directory, leaf) for leaf in leaves if not leaf.startswith("."))


def parse(path: Path) -> ast.Module:
    """Returns the syntax tree of a file. Those of this repository are parsed once: no rule changes a tree."""
    return _parse_once(path) if path.is_relative_to(ROOT) else _parse(path)


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


_parse_once = cache(_parse)


def plant(root: Path, files_to_write: dict[str, str]) -> Path:
    """Write a small tree for a test of a rule: path below the root -> text. Returns the root."""
    for name, text in files_to_write.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
