"""Prints figures about this repository, such as its lines, each beside its bar. Fails if a figure got worse.

A smaller figure is better. The bar is the value to reach, and a figure above its bar is red. A red figure fails if it
is also above its recorded value, so that figures only get better.

    python tools/house.py          every figure, and the findings of each figure that fails
    python tools/house.py --all    the same, and the findings of each red figure
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

TAKEN = {
    "access": "access 1.1.10.post3",
    "bare": "bare 0.7.0",
    "cluster": "cluster 1.4.1.post3",
    "companion": "companion 0.0.2",
    "storage": "storage 0.0.4.3",
    "tracing": "tracing 0.1.3",
}
"""Top-level packages that other distributions install. Their wheels were downloaded and opened on 2026-11-25."""
KEPT_NAMES = {"bare"}
"""Names that stay though they are taken: programs of users import them."""

FACES = {
    *("bare", "bare.schema", "block_manager", "block_node.client", "block_node.client.blocking", "cardinal_streams"),
    *("ockam", "pyspark_stream_node", "spark_export", "stream_client", "stream_client.blocking", "stream_node"),
    "stream_node.testing",
}
"""The packages whose `__init__` hands names on to the programs of users."""

HEARTS = (
    "stream_service/workers/stream.py",
    "stream_service/workers/pulls.py",
    *("ockam/transport/frames.py", "ockam/transport/connection.py", "ockam/transport/connection_machine.py"),
    "ockam/transport/connection_usage.py",
    *("stream_client/core/client_core.py", "block_node/publish/publish_machine.py"),
    *("spark_export/exporter/run.py", "stream_node/fleet/cluster/router.py"),
    *("stream_storage/thread_runner.py", "stream_storage/sqlite/log.py"),
    *("stream_node/fleet/mirror/tasks.py", "stream_node/fleet/mirror/message_copier.py"),
)
"""The files whose steps need comments most."""
HEART_COMMENTS_MIN = 8.0
"""The least number of comment lines in 100 lines of code of a file in HEARTS."""

FOLDER_FILES_MAX = 30
ARGUMENTS_MAX = 7
VARIADIC = {"Table", "pack", "select"}
"""Functions of libraries that take any number of arguments of one kind, which have no names."""


class Figure(NamedTuple):
    """A figure about the repository. found: the findings that make up the figure."""

    name: str
    value: int
    bar: int
    recorded: int
    found: list[str]

    @property
    def fails(self) -> bool:
        return self.value > max(self.bar, self.recorded)


class Lines(NamedTuple):
    """The lines of a file by their kind. All other lines are docstrings, with the blank lines inside them, or blank."""

    total: int
    code: int
    comments: int


class House:
    """A tree of files, as `git ls-files` lists them. It is read once and never changed."""

    def __init__(self, root: Path, tracked: Iterable[str]) -> None:
        self.root = root
        self.tracked = sorted(path for path in tracked if (root / path).exists())
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        self.packages: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        self.installed = [
            path for path in self.tracked if path.endswith(".py") and PurePosixPath(path).parts[0] in self.packages
        ]
        self.text = cache(self._text)
        self.tree = cache(self._tree)
        self.lines = cache(self._lines)

    def _text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def _tree(self, path: str) -> ast.Module:
        return ast.parse(self.text(path), path)

    def _lines(self, path: str) -> Lines:
        lines = self.text(path).splitlines()
        docstrings = {
            number
            for node in ast.walk(self.tree(path))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            for statement in filter(is_text, node.body)
            for number in range(statement.lineno, (statement.end_lineno or 0) + 1)
        }
        tokens = tokenize.generate_tokens(io.StringIO(self.text(path)).readline)
        comments = {
            token.start[0] for token in tokens if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        } - docstrings
        blank = {number for number, line in enumerate(lines, 1) if not line.strip()} - docstrings
        return Lines(len(lines), len(lines) - len(docstrings | comments | blank), len(comments))


def is_text(statement: ast.stmt) -> bool:
    """Returns whether a statement is a docstring, or the text below a constant."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def summed(house: House, kind: Callable[[Lines], int]) -> tuple[int, list[str]]:
    """Returns a sum over all installed files, and the sum of each package."""
    sums: Counter[str] = Counter()
    for path in house.installed:
        sums[path.partition("/")[0]] += kind(house.lines(path))
    return sums.total(), [f"{name}: {lines:,}" for name, lines in sums.most_common()]


def clashes(house: House) -> list[str]:
    """Returns the installed packages whose name another distribution installs."""
    return [f"{name}: {TAKEN[name]}" for name in house.packages if name in TAKEN and name not in KEPT_NAMES]


def root_entries(house: House) -> list[str]:
    """Returns the files and folders of the root, dot files too."""
    return sorted({path.partition("/")[0] for path in house.tracked})


def full_folders(house: House) -> list[str]:
    """Returns the folders that hold too many files themselves, the fullest first."""
    files = Counter(str(PurePosixPath(path).parent) for path in house.tracked)
    return [f"{folder}: {number}" for folder, number in files.most_common() if number > FOLDER_FILES_MAX]


def full_inits(house: House) -> list[str]:
    """Returns each `__init__` outside the faces that has more than a docstring."""
    inits = [path for path in house.installed if path.endswith("/__init__.py")]
    return [
        path
        for path in inits
        if path.rpartition("/")[0].replace("/", ".") not in FACES and not all(map(is_text, house.tree(path).body))
    ]


def shared_classes(house: House, modules_min: int) -> list[str]:
    """Returns the names that at least `modules_min` modules give to a class. Blocking clients do not count."""
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path in house.installed:
        if "/blocking/" not in path:
            for node in ast.walk(house.tree(path)):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].add(path)
    shared = [(name, sorted(paths)) for name, paths in modules.items() if len(paths) >= modules_min]
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(shared, key=lambda each: (-len(each[1]), each[0]))]


def wide_calls(house: House) -> list[str]:
    """Returns the calls with more than ARGUMENTS_MAX arguments without names, the longest first."""
    wide = [
        (len(node.args), f"{path}:{node.lineno}: {ast.unparse(node.func)[-40:]}( has {len(node.args)}")
        for path in house.installed
        for node in ast.walk(house.tree(path))
        if isinstance(node, ast.Call)
        and len(node.args) > ARGUMENTS_MAX
        and getattr(node.func, "attr", getattr(node.func, "id", "")) not in VARIADIC
    ]
    return [text for _, text in sorted(wide, reverse=True)]


def silent_hearts(house: House) -> list[str]:
    """Returns the files of HEARTS that do not exist, and those with too few comments, the fewest first."""
    silent = []
    for path in HEARTS:
        if path not in house.installed:
            silent.append((0.0, f"{path}: not there"))
            continue
        lines = house.lines(path)
        share = 100 * lines.comments / max(lines.code, 1)
        if share < HEART_COMMENTS_MIN:
            silent.append((share, f"{path}: {share:.1f} comment lines in 100 of code"))
    return [text for _, text in sorted(silent)]


def figures(house: House) -> list[Figure]:
    """Returns every figure with its bar (issue 31) and its recorded value, to be lowered when the figure falls."""
    lines, by_lines = summed(house, lambda each: each.total)
    code, by_code = summed(house, lambda each: each.code)

    def listed(name: str, found: list[str], bar: int, recorded: int) -> Figure:
        return Figure(name, len(found), bar, recorded, found)

    return [
        Figure("installed lines", lines, 112_000, 116_725, by_lines),
        Figure("installed lines of code", code, 73_000, 79_918, by_code),
        listed("installed top-level packages", house.packages, 12, 12),
        listed("names that other distributions install", clashes(house), 0, 0),
        listed("entries of the root", root_entries(house), 32, 32),
        listed(f"folders with more than {FOLDER_FILES_MAX} files", full_folders(house), 0, 0),
        listed("__init__ with code, outside the faces", full_inits(house), 0, 0),
        listed("class names of three modules or more", shared_classes(house, 3), 0, 0),
        listed("class names of two modules or more", shared_classes(house, 2), 0, 0),
        listed(f"calls with more than {ARGUMENTS_MAX} arguments by place", wide_calls(house), 0, 0),
        listed("hearts with few comments", silent_hearts(house), 0, 0),
    ]


def main(arguments: list[str], house: House) -> int:
    """Prints the figures. Returns the exit code: 1 if a figure is above both its bar and its recorded value."""
    failed = False
    for figure in figures(house):
        failed |= figure.fails
        verdict = "WORSE" if figure.fails else "red" if figure.value > figure.bar else "green"
        print(f"house: {verdict:5}  {figure.name}: {figure.value:,} (bar {figure.bar:,}, recorded {figure.recorded:,})")
        if figure.fails or ("--all" in arguments and verdict == "red"):
            print("".join(f"           {line}\n" for line in figure.found), end="")
    return 1 if failed else 0


def tracked_files(root: Path) -> list[str]:
    """Returns the paths that git tracks, and those that the next `git add` would add."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\0").split("\0")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], House(ROOT, tracked_files(ROOT))))
