"""Names in backticks in docstrings exist: in the module, its package or the project. Other prose is not read."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

import pytest

from tests.style.test_doc_links import defines
from tests.style.tree import ROOT, package_files, packages, parse, plant

BACKTICKED = re.compile(r"(?<!`)`(?P<span>[^`\n]+)`(?!`)")
CITATION = re.compile(r"(?P<path>[\w./-]+\.py)::(?P<name>\w+(?:\.\w+)*)")
PATH = re.compile(r"[\w.-]*/?[\w./-]*\w\.(?:py|md|sh|toml)")
NAME = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
WORD = re.compile(r"[A-Za-z_]\w*")

# Names of other people's programs and formats that docstrings explain, and that no code of ours spells.
FOREIGN: dict[str, set[str]] = {
    "protobuf messages and settings of the real block node": {
        *("BlockItem", "BlockItemSet", "BlockResponse.Code", "EndOfStream.Code", "EndStream.Code", "NodeAddress"),
        *("NodeAddressBook", "RecordFileItem", "SubscribeStreamResponse.Code", "healthPenaltyPerFailure"),
        *("maxChunkSizeBytes", "maximumFutureRequest", "next_expected_block"),
        "producer.MaxFutureBlocksBeforeStalled",
    },
    "SQLite": {"user_version", "sqlite3_system_errno"},
    "Spark": {"pushFilters", "spark.sql.files.maxPartitionBytes"},
    "the command line of every Unix": {"nohup"},
    "extras of pyproject.toml": {"otel"},
    "pyarrow, which our packages name as `pa` where they import it": {"pyarrow", "pyarrow.RecordBatchReader"},
    "Python and msgspec": {"IntEnum", "__struct_fields__"},
}

_FOREIGN = set().union(*FOREIGN.values())


class Module:
    """Module: one source file with all names that its code uses. Docstrings and comments are no code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = parse(path)

    @cached_property
    def docstrings(self) -> list[str]:
        """The docstrings of the module, its classes and its functions, and the texts below its constants."""
        texts = []
        for node in ast.walk(self.tree):
            for each in getattr(node, "body", []) if isinstance(getattr(node, "body", []), list) else []:
                if _is_text(each):
                    texts.append(each.value.value)
        return texts

    @cached_property
    def names(self) -> set[str]:
        """Every name in the code: what is defined, used or imported, attributes, arguments, and words of strings."""
        found: set[str] = set()
        for node in _code(self.tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.arg | ast.keyword):
                found.update((node.arg,) if node.arg else ())
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.update((node.asname or node.name).split("."))
                found.update(node.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                found.update((node.module or "").split("."))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
                found.update(WORD.findall(text))
        return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _code(root: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one, in no order, but no texts that stand as statements."""
    left = [root]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if not _is_text(child):
                yield child
                left.append(child)


class Project:
    """Project: all modules of all packages, and the questions that a docstring's names raise."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = [Module(path) for path in package_files(root)]
        self.by_package = {
            name: [module for module in self.modules if module.path.is_relative_to(root / name)]
            for name in packages(root)
        }
        self.stems = {
            name: {part for module in modules for part in _dotted(module.path, root).split(".")}
            for name, modules in self.by_package.items()
        }
        self._names = {
            name: {each for module in modules for each in (*_defined(module.tree), *_spelt(module.tree))}
            for name, modules in self.by_package.items()
        }
        # Of all classes of one name together: their members, and the names of their bases.
        self._members: dict[str, set[str]] = {}
        self._bases: dict[str, set[str]] = {}
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    self._members.setdefault(node.name, set()).update(_defined(node))
                    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                    self._bases.setdefault(node.name, set()).update(bases - {node.name})

    def _members_of(self, name: str) -> set[str]:
        inherited = (self._members_of(base) for base in self._bases.get(name, ()))
        return self._members.get(name, set()).union(*inherited)

    def problems(self) -> list[str]:
        return [
            f"{module.path.relative_to(self.root)}: `{span}` is not there"
            for module in self.modules
            for text in module.docstrings
            for span in BACKTICKED.findall(text)
            if not self.exists(span, module)
        ]

    def exists(self, span: str, module: Module) -> bool:
        """Whether what a backticked span names exists. A span that is no name or path of code is taken to exist."""
        citation = CITATION.fullmatch(span)
        if citation:
            file = self._file(citation["path"], module)
            return file is not None and defines(parse(file), citation["name"])
        if PATH.fullmatch(span):
            return self._file(span, module) is not None
        name = NAME.fullmatch(span)
        return name is None or span in _FOREIGN or self._has(name["name"], module)

    def _file(self, path: str, module: Module) -> Path | None:
        places = (self.root / path, *(folder / path for folder in module.path.parents))
        return next((place for place in places if place.is_file()), None)

    def _has(self, name: str, module: Module) -> bool:
        first, *rest = name.split(".")
        package = _dotted(module.path, self.root).partition(".")[0]
        if rest:
            return self._has_dotted(name, module, package)
        here = (self.stems[package], self._names[package])
        # Options of Spark are written in either case.
        if first in module.names or any(first in names or first.lower() in names for names in here):
            return True
        # A plain word may be anything elsewhere; a word with a mark of code in it is one name in the whole project.
        marked = "_" in first or first != first.lower()
        # A value of an enumeration may be written as a setting has it: `state_proof` for STATE_PROOF.
        elsewhere = marked and any(not names.isdisjoint((first, first.upper())) for names in self._names.values())
        return elsewhere or first in self.by_package or keyword.iskeyword(first) or hasattr(builtins, first)

    def _has_dotted(self, name: str, module: Module, package: str) -> bool:
        for folder in (self.root, self.root / package, module.path.parent):
            parts = name.split(".")
            for end in range(len(parts), 0, -1):
                place = folder.joinpath(*parts[:end])
                file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
                if file.is_file():
                    return end == len(parts) or _hands_on(file, ".".join(parts[end:]))
        first, *rest = name.split(".")
        if first in sys.stdlib_module_names or first in {"msgspec", "trio"}:
            return True
        if first in self._members:
            return rest[0] in self._members_of(first)
        # An attribute of an object: its class may be of another module of the package.
        known = (module.names, self.stems[package], self._names[package])
        return all(any(each in names for names in known) for each in (first, *rest))


def _dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def _hands_on(file: Path, name: str) -> bool:
    """Whether a file defines a name, or is a package's `__init__` and hands it on."""
    tree = parse(file)
    if defines(tree, name):
        return True
    aliases = (each for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names)
    return file.name == "__init__.py" and name.partition(".")[0] in {each.asname or each.name for each in aliases}


def _defined(tree: ast.AST) -> Iterator[str]:
    """Every name that a module, a class in it or an argument of a function binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _spelt(tree: ast.AST) -> Iterator[str]:
    """Every string of the code that is one name: a worker's address, a column, an option."""
    for node in _code(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            if WORD.fullmatch(text):
                yield text


@cache
def _ours() -> Project:
    return Project(ROOT)


def test_every_name_in_backticks_in_a_docstring_exists() -> None:
    assert _ours().problems() == []


def test_every_foreign_name_is_told_somewhere() -> None:
    told = {span for module in _ours().modules for text in module.docstrings for span in BACKTICKED.findall(text)}
    assert told >= _FOREIGN


TREE = {
    "ockam/__init__.py": "from ockam.actors.node import Node\n",
    "ockam/actors/node.py": "class Node:\n    limit = 1\n    def route(self, hops): self.sent = hops\n",
    "ockam/wire/head.py": "HEAD = 'stream_pull'\n",
    "stream_storage/__init__.py": "",
    "stream_storage/sqlite/log.py": "import trio\nLIMIT_MAX = 3\ndef read(first): return trio, first\n",
    "docs/wire.md": "",
}


@pytest.mark.parametrize(
    "span",
    [
        *(
            "Node",
            "Node.route",
            "Node.sent",
            "route()",
            "hops",
            "head",
            "wire.head",
            "ockam.actors.node",
            "ockam.actors.node.Node",
        ),
        *(
            "ockam.Node",
            "ockam/actors/node.py",
            "ockam/actors/node.py::Node.route",
            "node.py",
            "docs/wire.md",
            "stream_pull",
            "stream_storage",
        ),
        *(
            "LIMIT_MAX",
            "stream_storage.sqlite.log.read",
            "None",
            "int",
            "await",
            "os.fsync",
            "trio.Event",
            "stream-node push",
            "[]T",
        ),
        *("node/stream_list/1", "--help", "a = b", "…"),
    ],
)
def test_a_name_that_is_there_is_left_alone(tmp_path: Path, span: str) -> None:
    root = plant(tmp_path, {**TREE, "ockam/actors/told.py": f'"""Told: `{span}`."""\n'})
    assert Project(root).problems() == []


@pytest.mark.parametrize(
    "span",
    [
        *("gone", "Gone", "read", "first", "Node.gone", "node.gone", "ockam.gone", "ockam.actors.node.gone", "gone()"),
        *(
            "ockam/gone.py",
            "ockam/actors/node.py::gone",
            "gone.py",
            "docs/gone.md",
            "LIMIT_MIN",
            "stream_storage.sqlite.log.trio",
        ),
    ],
)
def test_a_name_that_is_gone_is_found(tmp_path: Path, span: str) -> None:
    root = plant(tmp_path, {**TREE, "ockam/actors/told.py": f'"""Told: `{span}`."""\n'})
    assert Project(root).problems() == [f"ockam/actors/told.py: `{span}` is not there"]


@pytest.mark.parametrize(
    "text",
    [
        'class A:\n    """Has `gone`."""\n',
        'def f():\n    """Has `gone`."""\n',
        'A = 1\n"""Has `gone`."""\n',
        'class A:\n    b = 1\n    """Has `gone`."""\n',
    ],
)
def test_docstrings_of_every_place_are_read(tmp_path: Path, text: str) -> None:
    assert Project(plant(tmp_path, {"ockam/x.py": text})).problems() == ["ockam/x.py: `gone` is not there"]
