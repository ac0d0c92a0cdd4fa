"""Makes the generated part of `docs/python.md`: the signature and the docstring of every public name of the packages
for programs. It reads the sources and imports no package, because some packages need extras that may be missing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tools.reference_site import PACKAGES, ROOT, public_names
from tools.site_docstrings import as_markdown

ASYNC, BLOCKING = "stream_client", "stream_client.blocking"
ERROR_MARKS = {"fault", "retriable", "in_doubt"}
"""The arguments in the head of the class of an error (`stream_client.errors.ClientError`)."""
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """Definition: the statement that defines a name, and the file in which it stands. node: for a module, all of it."""

    file: Path
    node: ast.AST


def python_page() -> str:
    """The generated part of `docs/python.md`."""
    explained: dict[Definition, str] = {}
    sections = []
    for package, what in PACKAGES.items():
        parts = [f"## {package}", f"{what}."]
        names = public_names(package)
        if package == BLOCKING:
            # These objects have the signatures and the docstrings of the async ones.
            again = [name for name in names if name in public_names(ASYNC)]
            parts.append(f"As in `{ASYNC}`, without `await`: {', '.join(f'`{name}`' for name in again)}.")
            names = [name for name in names if name not in again]
        for name in names:
            found = get_definition(ROOT / package.replace(".", "/") / "__init__.py", name)
            parts += [f"### {name}", *_text(name, found, explained.setdefault(found, package), package)]
        sections.append("\n\n".join(parts))
    return "\n\n".join(sections) + "\n"


def get_definition(file: Path, name: str) -> Definition:
    """Finds the definition of a name of a module, through the imports that hand it on."""
    for node in _statements(_parsed(file).body):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    module = ROOT.joinpath(*node.module.split("."))
                    as_module = _file_of(module / alias.name)
                    if as_module is not None:
                        return Definition(as_module, _parsed(as_module))
                    source = _file_of(module)
                    if source is not None:
                        return get_definition(source, alias.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [each.id for each in targets if isinstance(each, ast.Name)]
        if name in (*names, getattr(node, "name", None)):
            return Definition(file, node)
    raise SystemExit(f"reference: {file} has no {name}")


def _text(name: str, found: Definition, first: str, package: str) -> Iterator[str]:
    """The paragraphs about one name. first: the package under which it is explained."""
    node = found.node
    if first != package:
        yield f"As in `{first}`."
    elif isinstance(node, Function):
        yield _code(_signature(node))
        yield as_markdown(ast.get_docstring(node) or "")
    elif isinstance(node, ast.ClassDef):
        fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign) and _is_public(each)]
        marks = [each for each in node.keywords if each.arg in ERROR_MARKS]
        bases = ", ".join(map(ast.unparse, [*node.bases, *marks]))
        yield _code("\n    ".join([f"class {name}({bases})" if bases else f"class {name}", *fields]))
        yield as_markdown(ast.get_docstring(node) or "")
        for method in _methods(found):
            yield f"**{name}.{method.name}**"
            yield _code(_signature(method))
            yield from filter(None, [as_markdown(ast.get_docstring(method) or "")])
    elif isinstance(node, ast.Module):
        yield as_markdown(ast.get_docstring(node) or "")
    else:
        yield _code(ast.unparse(node))
        body = _parsed(found.file).body
        after = body[body.index(node) + 1] if isinstance(node, ast.stmt) and node is not body[-1] else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield as_markdown(str(after.value.value))


def _methods(found: Definition) -> list[Function]:
    """The public methods and the constructor of a class, with those of its bases in this repository."""
    assert isinstance(found.node, ast.ClassDef)
    methods: dict[str, Function] = {}
    for base in found.node.bases:
        name = ast.unparse(base).partition("[")[0]
        try:
            of_base = get_definition(found.file, name)
        except SystemExit:
            continue  # A base of another package, such as Exception, has no methods of ours.
        if isinstance(of_base.node, ast.ClassDef):
            methods |= {each.name: each for each in _methods(of_base)}
    own = [each for each in found.node.body if isinstance(each, Function)]
    methods |= {each.name: each for each in own if _is_public(each) or (each.name == "__init__" and _explained(each))}
    return list(methods.values())


def _signature(function: Function) -> str:
    """A function as it is called, with one parameter on each line where it is long."""
    marks = [f"@{mark}" for mark in map(ast.unparse, function.decorator_list) if mark in ("property", "classmethod")]
    word = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    end = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    line = f"{word} {function.name}({ast.unparse(function.args)}){end}"
    if len(line) > 100:
        rows = _parameters(function.args)
        line = f"{word} {function.name}(\n" + "".join(f"    {row},\n" for row in rows) + f"){end}"
    return "\n".join([*marks, line])


def _parameters(arguments: ast.arguments) -> list[str]:
    rows: list[str] = []
    depth, begin, text = 0, 0, ast.unparse(arguments)
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            rows.append(text[begin:at].strip())
            begin = at + 1
    return [*rows, text[begin:].strip()]


def _is_public(node: ast.AST) -> bool:
    name = node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""
    return not (name or getattr(node, "name", "_")).startswith("_")


def _explained(function: Function) -> bool:
    return ast.get_docstring(function) is not None


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, with those within `if`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements(node.body)


def _file_of(place: Path) -> Path | None:
    return next((each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()), None)


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
