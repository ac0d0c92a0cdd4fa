"""No modules of a package import each other in a circle. Imports between packages are the business of `test_layers`.

An import counts when it stands outside of all functions, an import for type checkers too: modules that need each
other's types cannot be understood one at a time either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.tree import ROOT, package_files, parse, plant

# How many modules of a package may be in circles; no package has any. Untie a new circle rather than list it here.
KNOWN: dict[str, int] = {}


def module_name(path: Path) -> str:
    """The dotted name of a module, from its path below the root; a package has the name of its folder."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported_names(node: ast.AST) -> Iterator[str]:
    """The dotted names that are imported outside of functions: of modules, and of what is taken from them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and child.level == 0:
            # `from a import b` takes the module a.b or a name out of a.
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imported_names(child)


def import_graph(root: Path) -> dict[str, set[str]]:
    """The modules of all packages, and the modules of the same package that each of them imports."""
    trees = {module_name(path.relative_to(root)): parse(path) for path in package_files(root)}
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        found = {name if name in trees else name.rpartition(".")[0] for name in imported_names(tree)}
        own = module.partition(".")[0]
        graph[module] = {name for name in found & trees.keys() if name.partition(".")[0] == own} - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules that all import each other, directly or over others of the set."""
    reached = {module: _reached_from(module, graph) for module in graph}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }


def _reached_from(module: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[module])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found


def circle_problems(root: Path, known: dict[str, int]) -> list[str]:
    """The circles of packages that have more modules in circles than are known; and packages that are known in vain."""
    by_package: dict[str, list[str]] = {}
    for circle in sorted(map(sorted, circles(import_graph(root)))):
        by_package.setdefault(circle[0].partition(".")[0], []).extend(circle)
    problems = []
    for package, modules in by_package.items():
        allowed = known.get(package, 0)
        if len(modules) > allowed:
            names = ", ".join(modules)
            problems.append(f"{package}: {len(modules)} modules in import circles, {allowed} are allowed: {names}")
    return problems + [f"{package} is listed and has no import circle" for package in known.keys() - by_package.keys()]


def test_no_modules_of_a_package_import_each_other() -> None:
    assert circle_problems(ROOT, KNOWN) == []


@pytest.mark.parametrize(
    "texts",
    [
        {"a.py": "import bare.b", "b.py": "from bare.a import x"},
        {"a.py": "from bare import b", "b.py": "from typing import T\nif T:\n    from bare.a import x"},
        {"a.py": "import bare.c", "b.py": "import bare.a", "c.py": "class X:\n    import bare.b"},
        {"__init__.py": "from bare.a import x", "a.py": "from bare import y"},
    ],
)
def test_a_circle_is_found(tmp_path: Path, texts: dict[str, str]) -> None:
    outside = {"bare/__init__.py": "", "bare/d.py": "import bare.a"}
    root = plant(tmp_path, outside | {f"bare/{name}": text for name, text in texts.items()})
    (circle,) = circles(import_graph(root))
    assert "bare.d" not in circle
    (problem,) = circle_problems(root, {"bare": len(circle) - 1})
    assert ", ".join(sorted(circle)) in problem
    assert circle_problems(root, {"bare": len(circle)}) == []


def test_right_imports_and_imports_inside_functions_are_no_circle(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "bare/__init__.py": "from bare.a import x",
            "bare/a.py": "import bare.b, storage.c",
            "bare/b.py": "def f():\n    import bare.a",
            "stream_storage/c.py": "import bare.a",
        },
    )
    assert circle_problems(root, {}) == []
    assert circle_problems(root, {"bare": 2}) == ["bare is listed and has no import circle"]
