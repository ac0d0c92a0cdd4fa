"""Makes `docs/errors.md`: every error that a user can see, when it comes, and what to do.

The docstring of its class says when an error comes, and `tools/remedies.toml` what to do. The sources are parsed and
not imported, since some packages need an extra.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.style.tree import package_files, parse  # noqa: E402

INTERNAL = {
    "bare.Irregular": "the fast codec raises it, and the precise one finds the error",
    "block_node.InvalidPublishRequest": "it ends a session, and the publisher is told",
    "block_node.MessageMissing": "it ends a session, and the publisher is told",
    "block_node.PlanRefused": "it becomes the status that ends a subscription",
    "index_service.BeyondLimit": "it becomes an `error` to the sender of the request",
    "ockam.CborError": "it becomes IdentityRefused",
    "ockam.SealBroken": "whoever reads the file raises an error of its own",
    "ockam.ParseError": "whoever reads the file raises an error of its own",
    "stream_node.Died": "the demo raises and catches it",
}
"""Errors that never leave their package, each with the reason."""

BUILT_IN = {"Exception", "ExceptionGroup", "OSError", "ValueError"}
BASE_CLASS = re.compile(r"[Tt]he base (class )?of (all|the) errors")
LEAD = re.compile(r"^(Error|\w+): ")
"""Matches the word with which some docstrings begin before they say when the error comes."""


class Error(NamedTuple):
    """Error: the class of an error. name: package and class, as in "stream_client.LeaseLost"."""

    name: str
    when: str
    is_base: bool

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def all_errors(root: Path = ROOT) -> list[Error]:
    """The public error classes of all packages by package, in the order of the sources."""
    classes = [
        (path.relative_to(root).parts[0], node)
        for path in package_files(root)
        if "blocking" not in path.parts
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    ]
    names = set(BUILT_IN)
    # A subclass may be read before its base: this goes on until no further class is found.
    while found := {node.name for _, node in classes if node.name not in names and names & _bases(node)}:
        names |= found
    return [
        _error(package, node) for package, node in classes if names & _bases(node) and not node.name.startswith("_")
    ]


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


def _error(package: str, node: ast.ClassDef) -> Error:
    docstring = ast.get_docstring(node)
    if docstring is None:
        raise SystemExit(f"reference: {package}.{node.name} has no docstring that says when it comes")
    text = " ".join(re.split(r"\n\s*\n|\n(?=\w+(?:, \w+)*: )|\n- ", docstring)[0].split())
    when = LEAD.sub("", text)
    return Error(f"{package}.{node.name}", when[:1].upper() + when[1:], BASE_CLASS.search(text) is not None)


class Problem(NamedTuple):
    """Problem: an error of HTTP. error: the error of our client that it stands for; empty if there is none."""

    name: str
    status: int
    error: str


def http_problems(root: Path = ROOT) -> list[Problem]:
    """The problems that the HTTP endpoints answer, by status: calls of `Problem`, and the table of client errors."""
    found: dict[str, Problem] = {}
    for path in package_files(root):
        if path.is_relative_to(root / "stream_node/doors/http"):
            for node in ast.walk(parse(path)):
                match node:
                    case ast.Tuple(
                        elts=[ast.Attribute(attr=error), ast.Constant(value=int(status)), ast.Constant(value=name)]
                    ):
                        found[str(name)] = Problem(str(name), status, error)
                    case ast.Call(
                        func=ast.Name(id="Problem"),
                        args=[ast.Constant(value=int(status)), ast.Constant(value=name), *_],
                    ):
                        found.setdefault(str(name), Problem(str(name), status, ""))
    return sorted(found.values(), key=lambda problem: (problem.status, problem.name))


def remedies(root: Path = ROOT) -> dict[str, str]:
    """What to do about each error, by its name."""
    tables = tomllib.loads((root / "tools/remedies.toml").read_text(encoding="utf-8"))
    return {f"{package}.{name}": text for package, texts in tables.items() for name, text in texts.items()}


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yields errors without a remedy, remedies without an error, and names of two errors in one package."""
    errors, told = all_errors(root), remedies(root)
    named = [error.name for error in errors]
    wanted = [error.name for error in errors if not error.is_base and error.name not in INTERNAL]
    of_http = http_problems(root)
    wanted += [f"http.{problem.name}" for problem in of_http if not problem.error]
    # A problem that stands for an error of our client may have a remedy of its own.
    allowed = {*wanted, *(f"http.{problem.name}" for problem in of_http)}
    yield from (f"{name} has no remedy in tools/remedies.toml" for name in wanted if name not in told)
    yield from (f"{name} has a remedy and is no error" for name in told if name not in allowed)
    yield from (f"{name} is listed as internal and is no error" for name in INTERNAL if name not in named)
    yield from (f"{name} is the name of two errors" for name in sorted({n for n in wanted if wanted.count(n) > 1}))


def errors_page() -> str:
    """The generated part of `docs/errors.md`."""
    if found := list(problems()):
        raise SystemExit("\n".join(f"reference: {each}" for each in found))
    what_to_do = remedies()
    shown = [error for error in all_errors() if error.name in what_to_do]
    parts = []
    for package in sorted({error.package for error in shown}):
        rows = [
            f"| `{error.name.partition('.')[2]}` | {_cell(error.when)} | {_cell(what_to_do[error.name])} |"
            for error in shown
            if error.package == package
        ]
        parts.append("\n".join([f"## {package}", "", "| Error | When it comes | What to do |", "|---|---|---|", *rows]))
    head = ["## HTTP", "", "| Problem | Status | What to do |", "|---|---|---|"]
    rows = [
        f"| `{name}` | {status} | {_cell(what_to_do.get(f'http.{name}') or what_to_do[f'stream_client.{error}'])} |"
        for name, status, error in http_problems()
    ]
    return "\n\n".join([*parts, "\n".join(head + rows)]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
