"""The house rules that a program can see: sizes of functions, calls and words. Formatting and types are left to ruff
and mypy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.tree import ROOT, files, package_files, parse, plant, python_files

FUNCTION_LINES = 70
"""A longer function states in LARGE why it is better in one piece. The length of a file is no rule: a file does one
thing."""

LARGE: dict[str, str] = {
    "stream_node/node/server.py::serve": "the start of a node reads as one list of steps, in their order",
    "stream_node/cli/chains/cardinal.py::consume": "half of it is its signature, the list of options",
    "stream_node/cli/streams/reading.py::consume": "half of it is its signature, the list of options",
    "stream_client/connecting.py::connect": "most of it is the signature, and the explanation of each argument",
}

SLEEPS, PRINTS, SWALLOWS = "blocks in time.sleep", "prints", "swallows every exception"

# Packages never do these but where it is what the file is for, such as a client for callers without an event loop, or a
# command's output: ("path", SLEEPS or PRINTS) -> reason. Nothing may swallow exceptions.
ALLOWED_CALLS: dict[tuple[str, str], str] = {
    ("stream_storage/failpoint.py", SLEEPS): "stands in for a slow disk, in the thread that waits for the disk",
    ("stream_storage/postgres/server.py", SLEEPS): "waits for a server, in the thread that waits for the server",
}

# Written in two pieces, so that this file is not a finding itself.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b|\bfor n" + r"ow\b")
HOSTS = re.compile(
    r"py" + r"pi\.(?:org|io)|python" + r"hosted\.org|registry\.npm" + r"js\.|deb\.debian" + r"\.org|crates" + r"\.io\b"
)
# History belongs to git: a comment that names a commit goes stale, and says when where it should say why.
COMMIT = re.compile(r"\b(?:commit|revision|sha) [`']?(?=[a-f]*\d)[0-9a-f]{7,40}\b", re.IGNORECASE)

# A merge that somebody resolved by half.
CONFLICT = re.compile(r"^(?:<{7} |>{7} |={7}$)", re.MULTILINE)

TEXT = (".py", ".md", ".toml", ".sh", ".yml", ".yaml", ".lock", ".html", ".js", ".css", "Makefile", "check", "run")


def size_problems(root: Path, large: dict[str, str]) -> list[str]:
    """Functions that are long without a reason, and reasons nobody needs."""
    sizes: dict[str, int] = {}
    for path in python_files(root):
        place = str(path.relative_to(root))
        for function in ast.walk(parse(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (function.end_lineno or function.lineno) - function.lineno + 1
                key = f"{place}::{function.name}"
                sizes[key] = max(lines, sizes.get(key, 0))
    long = {key for key, lines in sizes.items() if lines > FUNCTION_LINES}
    problems = [
        f"{key} has {sizes[key]} lines, a reason in LARGE is needed above {FUNCTION_LINES}"
        for key in sorted(long - large.keys())
    ]
    return problems + [f"{key} is listed as large and is not" for key in sorted(large.keys() - long)]


def call_problems(root: Path, allowed: dict[tuple[str, str], str]) -> list[str]:
    """Calls that packages must not make; and exceptions that no longer are one."""
    found = {
        (str(path.relative_to(root)), problem): line
        for path in package_files(root)
        for line, problem in _forbidden(parse(path))
    }
    problems = [
        f"{place}: {problem} (at {found[place, problem]})" for place, problem in sorted(found.keys() - allowed.keys())
    ]
    return problems + [
        f"{place} is listed and never {problem}" for place, problem in sorted(allowed.keys() - found.keys())
    ]


def _forbidden(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and _does_nothing(node.body):
            yield node.lineno, SWALLOWS
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            if any(alias.name == "sleep" for alias in node.names):
                yield node.lineno, SLEEPS
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "time.sleep":
                yield node.lineno, SLEEPS
            elif called == "print":
                yield node.lineno, PRINTS
            elif called in ("suppress", "contextlib.suppress") and any(map(_catches_all, node.args)):
                yield node.lineno, SWALLOWS


def _catches_all(caught: ast.expr | None) -> bool:
    each = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(one is None or ast.unparse(one) in ("Exception", "BaseException") for one in each)


def _does_nothing(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


def word_problems(root: Path) -> list[str]:
    """Words that no text of ours has. Vectors and licences are other people's text, and are not looked at."""
    problems = []
    for path in files(root, *TEXT) + files(root / ".ci"):
        place = path.relative_to(root)
        if place.parts[0] in ("build", "dist") or place.parts[:2] == ("tests", "vectors") or "vendor" in place.parts:
            continue
        rules = [(UNFINISHED, "says"), (HOSTS, "names a registry's host:"), (CONFLICT, "has a conflict of a merge:")]
        if place.parts[0] != "tests" and path.suffix != ".lock":
            rules.append((COMMIT, "cites"))
        text = path.read_text(encoding="utf-8")
        problems += [f"{place}: {what} {found[0]}" for pattern, what in rules for found in pattern.finditer(text)]
    return problems


def test_functions_are_small() -> None:
    assert size_problems(ROOT, LARGE) == []


def test_nothing_blocks_prints_or_swallows() -> None:
    assert call_problems(ROOT, ALLOWED_CALLS) == []
    assert not [place for place, what in ALLOWED_CALLS if what == SWALLOWS]


def test_text_is_finished_and_names_no_registry() -> None:
    assert word_problems(ROOT) == []


@pytest.mark.parametrize(
    ("path", "text", "large", "problem"),
    [
        (
            "bare/x.py",
            "def f():\n" + " 1\n" * 70,
            {},
            "bare/x.py::f has 71 lines, a reason in LARGE is needed above 70",
        ),
        (
            "bare/x.py",
            "class A:\n async def f(self):\n" + "  1\n" * 70,
            {},
            "bare/x.py::f has 71 lines, a reason in LARGE is needed above 70",
        ),
        ("bare/x.py", "def f():\n 1\n", {"bare/x.py::f": "why"}, "bare/x.py::f is listed as large and is not"),
        ("bare/x.py", "", {"bare/gone.py::f": "why"}, "bare/gone.py::f is listed as large and is not"),
    ],
)
def test_a_wrong_size_is_found(tmp_path: Path, path: str, text: str, large: dict[str, str], problem: str) -> None:
    assert size_problems(plant(tmp_path, {path: text}), large) == [problem]


def test_a_right_size_is_left_alone(tmp_path: Path) -> None:
    texts = {"bare/b.py": "def f():\n" + " 1\n" * 69, "bare/c.py": "def g():\n" + " 1\n" * 90}
    assert size_problems(plant(tmp_path, texts), {"bare/c.py::g": "a table"}) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import time\ntime.sleep(1)", SLEEPS),
        ("from time import monotonic, sleep", SLEEPS),
        ("print('x')", PRINTS),
        ("try:\n pass\nexcept Exception:\n pass", SWALLOWS),
        ("try:\n pass\nexcept:\n pass", SWALLOWS),
        ("try:\n pass\nexcept (OSError, BaseException) as e:\n ...", SWALLOWS),
        ("for x in y:\n try:\n  pass\n except Exception:\n  continue", SWALLOWS),
        ("import contextlib\nwith contextlib.suppress(Exception): f()", SWALLOWS),
    ],
)
def test_a_forbidden_call_is_found(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = call_problems(plant(tmp_path, {"ockam/x.py": text}), {})
    assert found.startswith(f"ockam/x.py: {problem}")


def test_an_allowed_call_is_left_alone(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        {
            "stream_node/cli/x.py": "print('x')",
            "stream_client/blocking/__init__.py": "import time\ntime.sleep(1)",
            "ockam/x.py": "try:\n pass\nexcept OSError:\n pass\ntrio.sleep(1)\nconsole.print('x')",
            "ockam/y.py": "try:\n pass\nexcept Exception as error:\n raise Ours(error) from error",
            "tests/test_x.py": "print('x')",
        },
    )
    allowed = {("stream_node/cli/x.py", PRINTS): "why", ("stream_client/blocking/__init__.py", SLEEPS): "why"}
    assert call_problems(root, allowed) == []


def test_an_exception_is_for_one_call_of_one_file_and_must_be_needed(tmp_path: Path) -> None:
    root = plant(tmp_path, {"bare/x.py": "print('x')\nimport time\ntime.sleep(1)", "bare/y.py": "print('x')"})
    allowed = {("bare/x.py", PRINTS): "why", ("bare/gone.py", PRINTS): "why"}
    found = [
        "bare/x.py: blocks in time.sleep (at 3)",
        "bare/y.py: prints (at 1)",
        "bare/gone.py is listed and never prints",
    ]
    assert call_problems(root, allowed) == found


@pytest.mark.parametrize(
    "path", ["ockam/x.py", "docs/x.md", "Makefile", "pyproject.toml", ".ci/run", "tests/test_x.py"]
)
@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "for n" + "ow", "py" + "pi.org"])
def test_a_forbidden_word_is_found(tmp_path: Path, path: str, word: str) -> None:
    (found,) = word_problems(plant(tmp_path, {path: f"# {word}: later"}))
    assert found.startswith(path)
    assert found.endswith(word)


@pytest.mark.parametrize("mark", ["<" * 7 + " ", ">" * 7 + " ", "=" * 7])
def test_a_conflict_of_a_merge_is_found(tmp_path: Path, mark: str) -> None:
    assert len(word_problems(plant(tmp_path, {"docs/x.md": f"a\n{mark}\nb\n"}))) == 1


def test_a_cited_commit_is_found(tmp_path: Path) -> None:
    root = plant(tmp_path, {"ockam/x.py": "# as before commit 1f2e3d4c\n# a commit added 1234567 rows"})
    assert word_problems(root) == ["ockam/x.py: cites commit 1f2e3d4c"]


def test_what_is_not_ours_is_not_looked_at(tmp_path: Path) -> None:
    text = "print('TO" + "DO')"
    places = ["tests/vectors/x.py", "stream_node/__pycache__/x.py", ".venv/lib/x.py", "build/x.py", "bare/notes.json"]
    root = plant(tmp_path, dict.fromkeys(places, text))
    assert (call_problems(root, {}), word_problems(root)) == ([], [])
