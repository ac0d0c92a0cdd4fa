"""Goal: without an extra, tests skip and say why; none fails. Method: what each test module imports when it is loaded.

Test modules are read, not run, and so are the modules of ours that they import. What a test imports while it runs is
not looked at: `.ci/run` runs all tests in an environment without any extra.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

from tests.style.test_packaging import read_lock
from tests.style.tree import ROOT, files, packages, parse, plant

LOCK = "tools/locks/requirements-dev.lock"

# Folders whose modules tests import, beside the packages.
OUR_FOLDERS = ("bench", "examples", "tests", "tools")


class Step(NamedTuple):
    """What loading a module does at one line: it imports another one, or skips all its tests where that is absent."""

    line: int
    module: str
    skips: bool


def steps(body: list[ast.stmt]) -> Iterator[Step]:
    """The steps of a module in order. Functions are left out: loading a module does not run them."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Step(node.lineno, alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield Step(node.lineno, node.module, False)
            # The name may be a module of its own.
            yield from (Step(node.lineno, f"{node.module}.{alias.name}", False) for alias in node.names)
        elif isinstance(node, ast.If):
            yield from steps(node.orelse if _is_for_types(node.test) else node.body + node.orelse)
        elif isinstance(node, ast.Try):
            # An import that may fail is a guarded one.
            yield from steps(node.orelse + node.finalbody if _takes_absence(node) else node.body)
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from steps(node.body)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign) and (module := _skipped_without(node.value)):
            yield Step(node.lineno, module, True)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _takes_absence(node: ast.Try) -> bool:
    return any(name in ast.unparse(handler) for handler in node.handlers for name in ("ImportError", "NotFoundError"))


def _skipped_without(value: ast.expr | None) -> str | None:
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "pytest.importorskip" or not value.args:
        return None
    name = value.args[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


class Reader:
    """Reads modules of a tree, each once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ours = {*packages(root), *OUR_FOLDERS}
        locked = read_lock((root / LOCK).read_text(encoding="utf-8")).keys()
        providers = packages_distributions()
        self._always = set(sys.stdlib_module_names) | {
            module
            for module, names in providers.items()
            if any(str(canonicalize_name(name)) in locked for name in names)
        }
        self._read: dict[str, list[str]] = {}
        self._needed: dict[str, set[str]] = {}

    def problems(self, path: Path) -> list[str]:
        """What a test module, or a `conftest.py`, imports before it skips where that is absent."""
        found: dict[str, Step] = {}
        skipped_without: set[str] = set()
        for step in steps(parse(path).body):
            if step.skips:
                skipped_without.add(step.module.partition(".")[0])
                continue
            for module in self._needed_by(step.module) - skipped_without:
                found.setdefault(module, step)
        return [
            f"{path.relative_to(self._root)}: {step.module} (at {step.line}) needs {module}, of an extra: "
            f'pytest.importorskip("{module}", reason=…) belongs above it'
            for module, step in sorted(found.items())
        ]

    def _needed_by(self, module: str) -> set[str]:
        """The top names of the optional modules that are imported with a module."""
        if module in self._needed:
            return self._needed[module]
        needed, seen, waiting = self._needed.setdefault(module, set()), set[str](), [module]
        while waiting:
            each = waiting.pop()
            top, _, below = each.partition(".")
            if each in seen or top in self._always:
                continue
            seen.add(each)
            if top not in self._ours:
                needed.add(top)
                continue
            # With a module, the packages that it is in are imported too.
            waiting += self._imports_of(each) + ([each.rpartition(".")[0]] if below else [])
        return needed

    def _imports_of(self, module: str) -> list[str]:
        if module not in self._read:
            place = self._root.joinpath(*module.split("."))
            there = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
            self._read[module] = [step.module for path in there for step in steps(parse(path).body)]
        return self._read[module]


def optional_import_problems(root: Path) -> list[str]:
    reader = Reader(root)
    loaded = [
        path for path in files(root / "tests", ".py") if path.name.startswith("test_") or path.name == "conftest.py"
    ]
    return [problem for path in loaded for problem in reader.problems(path)]


def test_modules_that_need_an_extra_skip_without_it() -> None:
    assert optional_import_problems(ROOT) == []


def test_nothing_is_left_out_in_silence() -> None:
    """Goal: tests that cannot run are counted as skipped. Method: no folder tells pytest to ignore a file."""
    ignoring = [path for path in files(ROOT / "tests", "conftest.py") if "collect_ignore" in path.read_text("utf-8")]
    assert ignoring == []


FILES = {
    LOCK: "trio==0.35.1\npytest==9.0\n",
    "ours/__init__.py": "import os",
    "ours/columns.py": "from ours import ring\nimport absent_columns.arrays as ca",
    "ours/ring.py": "import ours.columns\nimport trio",
    "ours/lazy.py": "def f():\n    import absent_columns",
    "tests/support/world.py": "if True:\n    from ours import columns",
}


@pytest.mark.parametrize(
    ("path", "text", "needing"),
    [
        ("test_x.py", "import absent_columns", "absent_columns"),
        ("test_x.py", "from ours.columns import A", "ours.columns"),
        ("test_x.py", "from ours import columns", "ours.columns"),
        ("test_x.py", "import ours.ring", "ours.ring"),
        ("support/conftest.py", "from tests.support.world import World", "tests.support.world"),
        ("test_x.py", "class A:\n    import absent_columns.arrays", "absent_columns.arrays"),
        ("test_x.py", "try:\n    import absent_columns\nfinally:\n    pass", "absent_columns"),
        ("test_x.py", "import absent_columns\npytest.importorskip('absent_columns')", "absent_columns"),
        ("test_x.py", "pytest.importorskip('absent_rows')\nimport absent_columns", "absent_columns"),
    ],
)
def test_an_import_without_a_skip_is_found(tmp_path: Path, path: str, text: str, needing: str) -> None:
    root = plant(tmp_path, {**FILES, f"tests/{path}": text})
    (found,) = optional_import_problems(root)
    assert found.startswith(f"tests/{path}: {needing} (at ")
    assert "needs absent_columns" in found


@pytest.mark.parametrize(
    "text",
    [
        "import os, trio, ours.lazy\nfrom ours import lazy",
        "def test():\n    import absent_columns",
        "pytest.importorskip('absent_columns', reason='x')\nfrom ours import columns",
        "columns = pytest.importorskip('absent_columns.arrays')\nimport absent_columns",
        "try:\n    import absent_columns\nexcept ImportError:\n    absent_columns = None",
        "if TYPE_CHECKING:\n    from tests.support.world import World",
    ],
)
def test_imports_that_skip_or_are_always_there_are_left_alone(tmp_path: Path, text: str) -> None:
    assert optional_import_problems(plant(tmp_path, {**FILES, "tests/test_x.py": text})) == []
