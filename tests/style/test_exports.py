"""What a program may import by the name of a package: `__all__` in its `__init__` lists every public name, and each
name exists and is explained. All other packages hand nothing on.

The sources are read, not run, since some packages need more than is installed; what can be imported is imported too.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.tree import ROOT, package_files, parse, plant
from tools import house

# Import machinery of an `__init__`, which nobody takes from there.
MACHINERY = {"annotations", "Any", "TYPE_CHECKING"}

FACES = sorted(house.FACES)

NEEDS = {"pyspark_stream_node": "pyspark", "spark_export": "pyspark"}
"""What a package needs beyond the lock, to be imported."""


def export_problems(root: Path, package: str) -> list[str]:
    """What is wrong with the names that a package hands on."""
    file = root.joinpath(*package.split("."), "__init__.py")
    tree = parse(file)
    listed = _listed(tree)
    if listed is None:
        return [f"{package} lists no names: it has no __all__"]
    bound = {name for name in _bound(tree) if not name.startswith("_")} - MACHINERY
    problems = [f"{package}.{name} is handed on and not listed in __all__" for name in sorted(bound - set(listed))]
    for name in listed:
        found = _definition(root, file, name)
        if found is None:
            problems.append(f"{package}.{name} is listed and not there")
        elif not name.startswith("__") and not _is_explained(*found):
            problems.append(f"{package}.{name} has no docstring")
    return problems + [f"{package}.{name} is listed twice" for name in sorted(set(listed)) if listed.count(name) > 1]


def _listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == "__all__":
            names: list[str] = ast.literal_eval(node.value) if node.value is not None else []
            return list(names)
    return None


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that a module binds at its top, within `if` too."""
    for node in _top(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and _is_bound(each))


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top(node.body)
            yield from _top(node.orelse)


def _is_bound(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _definition(root: Path, file: Path, name: str) -> tuple[ast.Module, ast.stmt] | None:
    """The module and the statement that define a name, found through the imports that hand it on."""
    tree = parse(file)
    found: tuple[ast.Module, ast.stmt] | None = None
    for node in _top(tree.body):
        if isinstance(node, ast.If | ast.Try):
            continue
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and name in {each.asname or each.name for each in node.names}
        ):
            original = next(each.name for each in node.names if (each.asname or each.name) == name)
            place = root.joinpath(*node.module.split("."))
            submodule = next((each for each in _files(place / original) if each.is_file()), None)
            if submodule is not None:
                return parse(submodule), node
            source = next((each for each in _files(place) if each.is_file()), None)
            return None if source is None else _definition(root, source, original)
        if name in set(_bound(ast.Module([node], []))):
            found = tree, node  # Of several, the last one holds: those before are its overloads.
    return found


def _files(place: Path) -> tuple[Path, Path]:
    return place.with_suffix(".py"), place / "__init__.py"


TWIN = re.compile(r"^class \w+\(Twin|^@like\(|^connect = opening\(")
"""The beginning of a definition of a blocking client (`stream_client/blocking/driving.py`)."""


def _is_explained(tree: ast.Module, node: ast.stmt) -> bool:
    """Whether a class or function has a docstring, a module one of its own, and a constant a text below it.

    Constants that follow each other without a blank line share the text below the last of them.
    """
    if TWIN.search(ast.unparse(node)):
        return True  # It has the docstring of the async client (tests/client/test_exports.py).
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node) is not None
    if isinstance(node, ast.ImportFrom):
        return ast.get_docstring(tree) is not None
    following = tree.body[tree.body.index(node) + 1 :]
    for before, after in zip([node, *following], following, strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return isinstance(after.value.value, str)
        if not isinstance(after, ast.Assign | ast.AnnAssign) or after.lineno > (before.end_lineno or 0) + 1:
            return False
    return False


@pytest.mark.parametrize("package", FACES)
def test_every_public_name_is_listed_there_and_explained(package: str) -> None:
    assert export_problems(ROOT, package) == []


def test_no_other_package_hands_a_name_on() -> None:
    """Goal: a name is imported from the module that defines it. Each name of a face is written twice or more."""
    inits = {path for path in package_files(ROOT) if path.name == "__init__.py"}
    faces = {ROOT.joinpath(*face.split("."), "__init__.py") for face in FACES}
    others = sorted(inits - faces)
    assert len(inits) - len(others) == len(FACES)
    assert [str(path.relative_to(ROOT)) for path in others if "__all__" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("package", FACES)
def test_every_listed_name_can_be_had(package: str) -> None:
    if package in NEEDS:
        pytest.importorskip(NEEDS[package])
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("package", "name", "unwanted"),
    [
        ("ockam", "Address", "trio"),
    ],
)
def test_a_name_loads_its_own_module_only(package: str, name: str, unwanted: str) -> None:
    """Goal: a client or an export does not load the node. Method: a new process asks for one name."""
    code = f"import sys; from {package} import {name}; sys.exit({unwanted!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


NODE = '''
LIMIT = 3
"""How many."""
FIRST = 1
SECOND = 2
"""Both are explained here."""
BARE = 4

def route():
    """Route."""

class Node:
    """Node."""

class Silent: ...
'''


@pytest.mark.parametrize(
    ("init", "problems"),
    [
        ('from ockam.actors.node import LIMIT, Node, route\n__all__ = ["LIMIT", "Node", "route"]', []),
        ('from ockam.actors.node import FIRST, SECOND\n__all__ = ["FIRST", "SECOND"]', []),
        ('from ockam.actors import node\n__all__ = ["node"]', ["ockam.node has no docstring"]),
        ("from ockam.actors.node import Node", ["ockam lists no names: it has no __all__"]),
        ("from ockam.actors.node import Node\n__all__ = []", ["ockam.Node is handed on and not listed in __all__"]),
        ("import os\n__all__ = []", ["ockam.os is handed on and not listed in __all__"]),
        ('__all__ = ["Gone"]', ["ockam.Gone is listed and not there"]),
        ('from ockam.actors.node import Gone\n__all__ = ["Gone"]', ["ockam.Gone is listed and not there"]),
        ('from ockam.actors.node import Silent\n__all__ = ["Silent"]', ["ockam.Silent has no docstring"]),
        ('from ockam.actors.node import BARE\n__all__ = ["BARE"]', ["ockam.BARE has no docstring"]),
        ('from ockam.actors.node import Node\n__all__ = ["Node", "Node"]', ["ockam.Node is listed twice"]),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ockam.actors.node import Node\n"
            '__all__ = ["Node"]',
            [],
        ),
    ],
)
def test_a_name_that_is_handed_on_wrongly_is_found(tmp_path: Path, init: str, problems: list[str]) -> None:
    root = plant(tmp_path, {"ockam/__init__.py": init, "ockam/actors/node.py": NODE})
    assert export_problems(root, "ockam") == problems
