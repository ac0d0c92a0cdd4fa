"""Documents cite names that exist, their links lead to files and headings, and they cite no line numbers."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.tree import ROOT, documents, parse, plant

CITATION = re.compile(r"(?P<path>[\w./-]+\.py)::(?P<name>\w+(?:(?:\.|::)\w+)*)")
PATH = re.compile(r"`(?P<path>[\w.-]+/[\w./-]*\.(?:py|md|sh|toml|json))`")
LINK = re.compile(r"\]\((?P<target>[^)\s#]*)(?:#(?P<anchor>[^)\s]*))?\)")
FENCED = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)(?: +#+)?$", re.MULTILINE)
LINK_IN_HEADING = re.compile(r"!?\[(?P<text>[^\]]*)\]\([^)]*\)")
LINE_NUMBER = re.compile(r"\.(?:py|sh|toml|md)(?:::[\w.]+)?`?(?::\d+|#L\d+|,? \(?(?:at |on )?lines? \d+)")


def doc_problems(root: Path) -> list[str]:
    problems = []
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(root)
        problems += [f"{place}: {problem}" for problem in _problems_of(text, path.parent, root)]
    return problems


def _problems_of(text: str, folder: Path, root: Path) -> Iterator[str]:
    for match in CITATION.finditer(text):
        cited = root / match["path"]
        if not cited.is_file():
            yield f"cites {match[0]}, and there is no such file"
        elif not defines(parse(cited), match["name"].replace("::", ".")):
            yield f"cites {match[0]}, and the file has no such name"
    for match in PATH.finditer(text):
        if not (root / match["path"]).exists() and not (folder / match["path"]).exists():
            yield f"names {match['path']}, which is not there"
    for match in LINK.finditer(text):
        if "://" not in match["target"] and not match["target"].startswith("mailto:"):
            target = folder / match["target"]
            if not target.exists():
                yield f"links to {match['target']}, which is not there"
            elif match["anchor"] is not None:
                page = target.read_text(encoding="utf-8") if match["target"] else text
                if match["anchor"] not in anchors(page):
                    yield f"links to {match['target']}#{match['anchor']}, and the page has no such heading"
    for match in LINE_NUMBER.finditer(text):
        yield f"cites a line number: {match[0]}"


def anchors(page: str) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page in Markdown.

    An anchor is the text of the heading in lower case, without punctuation, with a hyphen for each space. When
    several headings would have the same anchor, the second one ends in `-1`, the third one in `-2`, and so on.
    """
    found: set[str] = set()
    # A line of a shell example may begin with "#", so code between fences is left out.
    for match in HEADING.finditer(FENCED.sub("", page)):
        title = LINK_IN_HEADING.sub(r"\g<text>", match["title"])
        plain = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        numbered = (f"{plain}-{number}" for number in itertools.count(1))
        found.add(next(anchor for anchor in itertools.chain([plain], numbered) if anchor not in found))
    return found


def defines(tree: ast.AST, name: str) -> bool:
    """Whether a module, or a class in it, defines the dotted name: by def, class or assignment.

    An import is no definition: a document that cites it would send its reader to the wrong file.
    """
    first, _, rest = name.partition(".")
    bindings = [node for node, bound in _bindings(tree) if bound == first]
    return any(not rest or (isinstance(node, ast.ClassDef) and defines(node, rest)) for node in bindings)


def _bindings(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from ((node, name.id) for name in ast.walk(node) if isinstance(name, ast.Name) and _is_bound(name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _bindings(node)


def _is_bound(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def test_what_documents_cite_is_there() -> None:
    assert doc_problems(ROOT) == []


CODE = """
import time
from bare import Encoder as Writer
LIMIT: int = 3
FIRST, SECOND = 1, 2
if LIMIT:
    def conditional(): local = 1
class Node:
    retries = 2
    async def route(self): self.hidden = 1
"""


LOG_PAGE = """# The log

```sh
# code
```

## 2. Bytes of `log_size`: [a limit](wire.md)

### The log

## Größe & größer
"""


@pytest.mark.parametrize(
    "name",
    ["LIMIT", "FIRST", "SECOND", "conditional", "Node", "Node.retries", "Node.route", "Node::route"],
)
def test_a_name_that_is_there_may_be_cited(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {"ockam/actors/node.py": CODE, "docs/wire.md": f"See `ockam/actors/node.py::{name}`."})
    assert doc_problems(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("`ockam/gone.py::Node`", "docs/wire.md: cites ockam/gone.py::Node, and there is no such file"),
        ("`node.py::Node`", "docs/wire.md: cites node.py::Node, and there is no such file"),
        (
            "`ockam/actors/node.py::Encoder`",
            "docs/wire.md: cites ockam/actors/node.py::Encoder, and the file has no such name",
        ),
        (
            "`ockam/actors/node.py::Writer`",
            "docs/wire.md: cites ockam/actors/node.py::Writer, and the file has no such name",
        ),
        (
            "`ockam/actors/node.py::time`",
            "docs/wire.md: cites ockam/actors/node.py::time, and the file has no such name",
        ),
        (
            "`ockam/actors/node.py::local`",
            "docs/wire.md: cites ockam/actors/node.py::local, and the file has no such name",
        ),
        (
            "`ockam/actors/node.py::route`",
            "docs/wire.md: cites ockam/actors/node.py::route, and the file has no such name",
        ),
        (
            "`ockam/actors/node.py::Node.hidden`",
            "docs/wire.md: cites ockam/actors/node.py::Node.hidden, and the file has no such name",
        ),
        (
            "`ockam/actors/node.py::route.x`",
            "docs/wire.md: cites ockam/actors/node.py::route.x, and the file has no such name",
        ),
        ("`ockam/absent.py`", "docs/wire.md: names ockam/absent.py, which is not there"),
        ("[the wire](bytes.md#frames)", "docs/wire.md: links to bytes.md, which is not there"),
        ("[frames](#frames)", "docs/wire.md: links to #frames, and the page has no such heading"),
        ("[a log](log.md#code)", "docs/wire.md: links to log.md#code, and the page has no such heading"),
        ("[a log](log.md#The-log)", "docs/wire.md: links to log.md#The-log, and the page has no such heading"),
        ("[a log](log.md#the-log-2)", "docs/wire.md: links to log.md#the-log-2, and the page has no such heading"),
        ("`ockam/actors/node.py:12`", "docs/wire.md: cites a line number: .py:12"),
        ("ockam/actors/node.py#L3", "docs/wire.md: cites a line number: .py#L3"),
        ("`ockam/actors/node.py`, line 7", "docs/wire.md: cites a line number: .py`, line 7"),
        ("`ockam/actors/node.py::Node` (lines 7-9)", "docs/wire.md: cites a line number: .py::Node` (lines 7"),
    ],
)
def test_a_citation_that_does_not_hold_is_found(tmp_path: Path, text: str, problem: str) -> None:
    plant(tmp_path, {"ockam/actors/node.py": CODE, "docs/wire.md": f"See {text}.", "docs/log.md": LOG_PAGE})
    assert doc_problems(tmp_path) == [problem]


def test_a_link_to_a_heading_that_is_there_is_no_problem(tmp_path: Path) -> None:
    links = "[1](log.md#the-log), [2](log.md#the-log-1), [3](log.md#2-bytes-of-log_size-a-limit), [4](#wire)"
    plant(tmp_path, {"docs/wire.md": f"# Wire\n\n{links}", "docs/log.md": LOG_PAGE})
    assert doc_problems(tmp_path) == []


def test_anchors_are_those_of_github() -> None:
    assert anchors(LOG_PAGE) == {"the-log", "the-log-1", "2-bytes-of-log_size-a-limit", "größe--größer"}


def test_documents_of_every_place_are_read(tmp_path: Path) -> None:
    names = ["README.md", "docs/a.md", "docs/deep/b.md", "examples/c.md"]
    plant(tmp_path, {name: "`x/y.py::z`" for name in names})
    assert len(doc_problems(tmp_path)) == len(names)
