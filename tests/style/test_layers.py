"""Imports point downward only, and what must stay pure does. It does not judge what a package does with its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.style.tree import ROOT, package_files, packages, parse, plant

# From the lowest line up. Packages on one line never import each other.
LINES = (
    ("bare", "ockam.tracing", "ockam.files"),
    ("ockam", "stream_storage"),
    ("ockam.identity.rules",),
    # The asker and the forwarders say which messages their node takes, by the rules.
    ("ockam.identity.channel", "ockam.actors.asker", "ockam.actors.forwarders"),
    ("stream_service", "index_service", "block_manager"),
    # The client of both services, a floor above them: a consumer of streams keeps its position in the index service.
    # A cluster moves streams between nodes.
    ("stream_client", "stream_node.fleet.cluster"),
    ("block_node", "cardinal_streams", "stream_node.fleet.mirror"),
    ("spark_export",),
    ("pyspark_stream_node",),
    ("stream_node",),
)
LEVEL = {room: level for level, line in enumerate(LINES) for room in line}

# Run in a process of its own: imported where an export is asked for, never by loading the module that may ask. The
# other package is the name by which Spark finds it, and is loaded by Spark alone.
ONLY_IN_FUNCTIONS = {"spark_export", "pyspark_stream_node"}
LOADED_BY_SPARK = {"pyspark_stream_node"}

# A state machine is bytes in, events out: time and randomness are parameters.
IMPURE = {
    "asyncio",
    "anyio",
    "random",
    "secrets",
    "select",
    "socket",
    "sqlalchemy",
    "sqlite3",
    "threading",
    "time",
    "trio",
}


class Import(NamedTuple):
    module: str
    line: int
    in_function: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def room(self) -> str:
        return room_of(self.module)


def room_of(module: str) -> str:
    """What has a line of its own: a package, or a package within it."""
    while module not in LEVEL and "." in module:
        module = module.rpartition(".")[0]
    return module


def imports(tree: ast.AST, in_function: bool = False) -> Iterator[Import]:
    """Every absolute import below a node, those by name (`import_module("x")`) too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield Import(node.module, node.lineno, in_function)
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            yield Import(name, node.lineno, in_function)
        within = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(node, in_function or within)


def _imported_by_call(call: ast.Call) -> str | None:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if function not in ("import_module", "__import__") or not call.args:
        return None
    name = call.args[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def layer_problems(root: Path) -> list[str]:
    problems = [
        f"{package}/ has no line in {Path(__file__).name}" for package in packages(root) if package not in LEVEL
    ]
    for path in package_files(root):
        place = path.relative_to(root)
        room = room_of(".".join(place.with_suffix("").parts))
        for each in imports(parse(path)):
            problem = _import_problem(room, each)
            # The face of a package hands on names of all its rooms, each when it is first used.
            is_face = place.name == "__init__.py" and len(place.parts) == 2 and each.top == room
            if problem and not is_face:
                problems.append(f"{place}: imports {each.module} (at {each.line}): {problem}")
    return problems


def _import_problem(room: str, each: Import) -> str | None:
    if each.top in ("bench", "examples", "tests", "tools"):
        return "not part of what is installed"
    if each.room == room or each.room not in LEVEL or room not in LEVEL:
        return None
    if LEVEL[each.room] > LEVEL[room]:
        return "upward"
    # A room keeps apart from the packages on the line of its own package, too: `ockam.identity.rules` from storage.
    package = room.partition(".")[0]
    if LEVEL[each.room] == LEVEL[room] or (each.top != package and LEVEL[each.room] == LEVEL[package]):
        return "on the same line"
    if each.top in ONLY_IN_FUNCTIONS and not each.in_function and room not in LOADED_BY_SPARK:
        return "allowed inside a function only"
    return None


def purity_problems(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: imports {each.module} (at {each.line}): a machine is pure"
        for path in package_files(root)
        if path.stem.endswith("_machine")
        for each in imports(parse(path))
        if each.top in IMPURE
    ]


WITH_DRIVERS = {
    "sqlite3": (
        "stream_storage/sqlite/",
        # These have databases of their own: commits of a block manager, the history of an exporter.
        *("block_manager/", "spark_export/"),
        # These work on the file of a node that does not run: repair, restore, and what doctor looks at.
        *("stream_node/care/doctor.py", "stream_node/care/repair.py", "stream_node/care/restore.py"),
    ),
    "psycopg": ("stream_storage/postgres/",),
    "aiosqlite": ("spark_export/",),
    "asyncpg": ("spark_export/",),
}
"""The drivers of databases, and who may import each. Everybody else reads and writes the node's database by
`stream_storage.contract.Session`."""


def driver_problems(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: imports {each.module} (at {each.line}): use the session of storage"
        for path in package_files(root)
        for each in imports(parse(path))
        if each.top in WITH_DRIVERS and not str(path.relative_to(root)).startswith(WITH_DRIVERS[each.top])
    ]


def test_imports_point_downward() -> None:
    assert layer_problems(ROOT) == []


def test_only_storage_knows_the_driver_of_the_database() -> None:
    """Goal: the log of messages can be on another database. Method: who imports a driver."""
    assert driver_problems(ROOT) == []


def test_a_driver_elsewhere_is_found(tmp_path: Path) -> None:
    text = "def f():\n    import sqlite3"
    root = plant(tmp_path, {"ockam/__init__.py": "", "ockam/x.py": text, "stream_storage/__init__.py": text})
    first, second = driver_problems(root)
    assert first.startswith("ockam/x.py: imports sqlite3 (at 2)")
    assert second.startswith("stream_storage/__init__.py: imports sqlite3 (at 2)")


def test_machines_are_pure() -> None:
    assert purity_problems(ROOT) == []


def test_every_package_that_is_there_is_looked_at() -> None:
    assert {"bare", "ockam", "stream_storage", "stream_service", "index_service", "stream_node"} <= set(packages(ROOT))


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("bare/x.py", "import ockam.actors.node", "upward"),
        ("ockam/x.py", "from stream_service.protocol import Push", "upward"),
        ("stream_storage/x.py", "def f():\n    import stream_node", "upward"),
        ("stream_storage/x.py", "from importlib import import_module\nimport_module('stream_node.cli')", "upward"),
        ("spark_export/x.py", "__import__('stream_node')", "upward"),
        ("ockam/x.py", "import bare, stream_storage", "on the same line"),
        ("ockam/identity/rules/x.py", "def f():\n    import stream_storage.errors", "on the same line"),
        ("ockam/identity/channel/x.py", "from stream_storage import errors", "on the same line"),
        ("stream_storage/x.py", "from ockam.actors import node", "on the same line"),
        ("ockam/files/x.py", "import ockam.errors", "upward"),
        ("index_service/a/b.py", "from stream_service import protocol", "on the same line"),
        ("index_service/a/b.py", "from stream_client import connect", "upward"),
        ("stream_service/a/b.py", "from stream_client import connect", "upward"),
        ("stream_service/client.py", "import block_node", "upward"),
        ("block_node/x.py", "if True:\n    import cardinal_streams", "on the same line"),
        ("stream_node/x.py", "import spark_export.source.source", "allowed inside a function only"),
        ("stream_node/x.py", "class A:\n    import spark_export", "allowed inside a function only"),
        ("bare/x.py", "from tests.support import peer", "not part of what is installed"),
        ("newcomer/x.py", "import trio", "newcomer/ has no line in test_layers.py"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, path: str, text: str, problem: str) -> None:
    (found,) = layer_problems(plant(tmp_path, {path: text, f"{path.partition('/')[0]}/__init__.py": ""}))
    assert found.endswith(problem)


def test_right_imports_are_left_alone(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "bare/__init__.py": "import msgspec\nfrom bare import codec\nfrom . import types",
            "cardinal_streams/__init__.py": "import stream_client, index_service, ockam, bare",
            "block_node/__init__.py": "import block_manager\nimport stream_storage",
            "stream_storage/__init__.py": "from ockam.files import parsing",
            "stream_node/__init__.py": "import block_node\ndef export():\n    import spark_export",
            "tests/test_x.py": "import stream_node, bare",
        },
    )
    assert layer_problems(root) == []


@pytest.mark.parametrize("text", ["import time", "from trio import sleep", "def f():\n    import sqlite3"])
def test_a_machine_that_is_not_pure_is_found(tmp_path: Path, text: str) -> None:
    root = plant(tmp_path, {"ockam/frame_machine.py": text, "ockam/transport/tcp.py": text, "ockam/__init__.py": ""})
    (found,) = purity_problems(root)
    assert found.startswith("ockam/frame_machine.py")
