"""Prints the functions, classes, methods, constants and arguments that no program uses. Fails if there are any.

vulture finds them. It does not read the tests, so code that only a test uses is dead, too. Fields of structs, members
of enumerations, and attributes are not listed: they leave as bytes or JSON, or belong to a class of a library.

    python tools/dead_code.py
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("bench", "examples", "tools")
"""The folders with programs beside the installed packages."""

USED = {
    "Python, for a name that a module lacks": ("__getattr__",),
    "hatchling, when it builds a wheel": ("ClientHook", "CompileHook", "PLUGIN_NAME", "initialize"),
    "mkdocs, when it builds the site": ("on_page_content", "on_page_markdown", "on_post_build"),
    "pytest, which loads the plugin": ("async_stream_client", "pytest_addoption"),
    "trio, AnyIO and Python, as parts of their interfaces": (
        "wait_send_all_might_not_block",
        "extra_attributes",
        "get_map",
    ),
    "Alembic, which orders the revisions by it": ("down_revision",),
    "SQLAlchemy, when it compiles a statement": ("_greatest", "visit_INTEGER", "visit_TEXT", "visit_VARCHAR"),
    "cbor2 and PySpark, which pass it to a function of ours": ("client_address", "immutable"),
    "Spark, which calls a source by these names": (
        *("getDefaultReadLimit", "initialOffset", "prepareForTriggerAvailableNow", "reportLatestOffset"),
        *("streamReader", "streamWriter", "onQueryProgress", "onQueryStarted", "onQueryTerminated"),
    ),
    "Spark, as the tables of a pipeline": ("block_gaps", "index_gaps"),
    "bench/peer_clients/client.py, which imports a work by its name": ("NatsBatchWork", "PostgresWork", "RedisWork"),
    "stream_node/cli/commands.py, which imports a command by its name": (
        *(
            "cluster_drain",
            "cluster_status",
            "config_check",
            "config_show",
            "create_ca",
            "create_client",
            "doctor",
            "list_all",
            "list_tokens",
            "revoke",
            "set_to",
            "show_certificate",
        ),
    ),
    "a node, whose option `--worker` names it": ("Shop",),
    "the tests that stop the PostgreSQL server of bench": ("thaw",),
    "programs of users, which docs/blocks.md shows it": ("nested_path", "without_claims"),
    "programs of users, which docs/spark.md shows it": ("LagListener",),
    "programs of users, to which `cardinal_streams.consume` gives an object with it": ("reorg_age_s", "stalled_s"),
}
"""The names that vulture cannot see in use, by who uses them."""


def dead_code(root: Path, folders: Sequence[str], used: frozenset[str]) -> list[str]:
    """Returns a line for each thing in these folders that is not in use, and for each superfluous name in `used`. A
    public method of a class that an `__init__` exports is in use: programs of users call it."""
    vulture = Vulture()
    vulture.scavenge([str(root / folder) for folder in folders])
    inits = [path for folder in folders for path in (root / folder).rglob("__init__.py")]
    exported = {name for path in inits for name in exports(ast.parse(path.read_text("utf-8")))}
    found: list[str] = []
    seen: set[str] = set()
    for item in vulture.get_unused_code():
        path = Path(item.filename)
        owner = find_class(ast.parse(path.read_text("utf-8")), item.first_lineno)
        if item.typ == "attribute" or (item.typ == "variable" and owner is not None and item.name not in used):
            continue
        if owner in exported and not item.name.startswith("_"):
            continue
        seen.add(item.name)
        if item.name not in used:
            found.append(f"{path.relative_to(root)}:{item.first_lineno}: the {item.typ} {item.name} is not in use")
    return found + [f"{name} needs no mention in USED" for name in sorted(used - seen)]


def exports(module: ast.Module) -> list[str]:
    """Returns the names in `__all__`."""
    return [
        name.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.walk(node.value)
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    ]


def find_class(module: ast.Module, line: int) -> str | None:
    """Returns the name of the class that has a statement of its body in this line; None without one."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                decorators: list[ast.expr] = getattr(each, "decorator_list", [])
                if min(each.lineno, *(one.lineno for one in decorators), each.lineno) <= line <= (each.end_lineno or 0):
                    return node.name
    return None


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    found = dead_code(ROOT, [*packages, *PROGRAMS], frozenset(name for names in USED.values() for name in names))
    print("".join(f"dead: {line}\n" for line in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
