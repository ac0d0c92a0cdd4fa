"""Puts the modules that the client needs into the wheel `stream-node-client`, and nothing else of this tree.

    pip install ./tools/client            the blocking client
    pip install './tools/client[trio]'    the async client with trio; `[asyncio]`: without trio

This is a hook of hatchling. It finds the modules by the imports in the sources. All files of the wheel but
`installed_alone.txt` are in the wheel of the node, too. The command `stream-node` does not start where that file is
(`stream_node/cli/app.py::CLIENT_ALONE`), since pip takes files of the node away when the client is uninstalled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FACES = ("stream_client", "stream_client.blocking")
"""The packages that programs of users import."""
ROOT = Path(__file__).resolve().parents[2]


class ClientHook(BuildHookInterface[Any]):
    """Names the files of the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written. Raises ValueError for an editable installation, for which the checkout
        itself is installed."""
        if version == "editable":
            raise ValueError("the client alone is not installed editable: install the checkout itself")
        files = client_files(ROOT)
        typed = {each.parent / "py.typed" for each in files} & set(ROOT.glob("*/py.typed"))
        paths = {str(each): str(each.relative_to(ROOT)) for each in sorted(files | typed)}
        build_data["force_include"].update(paths)


def client_files(root: Path) -> set[Path]:
    """Returns the sources that FACES import, also through other modules, with the `__init__.py` of their packages."""
    found: set[Path] = set()
    waiting = [file for face in FACES for file in sources(root, face)]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            names = imported(ast.parse(file.read_text(encoding="utf-8")))
            waiting += [each for name in names for each in sources(root, name)]
    return found


def sources(root: Path, name: str) -> list[Path]:
    """Returns the sources of a module and of the packages that it is in; nothing for modules of others."""
    parts = name.split(".")
    places = [root.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    return [each for place in places for each in (place / "__init__.py", place.with_suffix(".py")) if each.is_file()]


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a source imports: modules, and names in modules. Imports for type checkers count too, so
    that these can read the types of the client."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)
