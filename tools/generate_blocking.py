"""Writes the blocking half of a client from its async half, so that the two cannot drift apart.

    python tools/generate_blocking.py            write every generated file
    python tools/generate_blocking.py --check    change nothing; exit 1 and name the files that are stale

To add a module: write it async, add a line `source: target` to MODULES below, run this script, and commit both files.
A module that exists by hand on both sides (the two shells) goes into BY_HAND instead. The generated half says `def`
for `async def`, drops `await`, and imports the blocking half of each module in these tables; `NAMES` lists the other
words that change. Two kinds of lines differ beyond that, and a comment marks each of them in the async source:

    # blocking only: STATEMENT       this comment becomes the statement in the generated file
    statement  # async only          this line is left out of the generated file

Needs only the standard library, and ruff, which sorts the imports and formats the result.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MODULES: dict[str, str] = {
    f"stream_client/{room}.py": f"stream_client/blocking/{room}.py"
    for room in (
        "session",
        "positions",
        "consume/consumer",
        "share/shared_consumer",
        "publish",
        "admin",
        "streams",
        "correspondent",
        "client",
        "connecting",
    )
} | {"block_node/client/client.py": "block_node/client/blocking/client.py"}
"""Async module to the blocking module that is generated from it."""

BY_HAND: dict[str, str] = {
    "stream_client/shell/async_shell.py": "stream_client/shell/blocking_shell.py",
}
"""Async module to the blocking module that stands in for it and is written by hand."""

NAMES: dict[str, str] = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aclosing": "closing",
    "anext": "next",
    "aiter": "iter",
    "asynccontextmanager": "contextmanager",
    "AsyncExitStack": "ExitStack",
    "enter_async_context": "enter_context",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "StopAsyncIteration": "StopIteration",
    "AsyncShell": "BlockingShell",
}
"""Words that have another name in the blocking half."""

HEADER = "# Generated from {source} by tools/generate_blocking.py; do not edit.\n"

RUFF = (sys.executable, "-m", "ruff")


def translate(text: str, source: str) -> str:
    """Returns the blocking form of an async module, not formatted yet."""
    text = re.sub(r"^([ \t]*)# blocking only: (.*)$", r"\1\2", text, flags=re.MULTILINE)
    text = re.sub(r"^.*# async only$\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\basync (?=def\b|with\b|for\b)", "", text)
    text = re.sub(r"\bawait (?=[\w(])", "", text)
    text = re.sub(r"\b(?:" + "|".join(NAMES) + r")\b", lambda found: NAMES[found[0]], text)
    # Only a whole module name: `a.b` is no part of `a.bc`, nor of `x.a.b`.
    for here, there in {**MODULES, **BY_HAND}.items():
        text = re.sub(rf"(?<![\w.]){re.escape(_dotted(here))}(?![\w.])", _dotted(there), text)
    return HEADER.format(source=source) + text


def generate(source: str, target: str) -> str:
    """Returns the text of a target. Raises SystemExit if something in the source cannot be translated."""
    text = translate((ROOT / source).read_text(encoding="utf-8"), source)
    for node in ast.walk(ast.parse(text, target)):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncWith | ast.AsyncFor | ast.Await):
            raise SystemExit(
                f"{source}: the blocking half would still wait for an event loop, see {target}:{node.lineno}"
            )
    sorted_text = _ruff(("check", "--quiet", "--fix", "--select", "I,F401"), text, target)
    return _ruff(("format", "--quiet"), sorted_text, target)


def stale_files() -> dict[str, str]:
    """Returns the right text of each stale generated file, by its path. An empty text: the file must be removed."""
    wanted = {target: generate(source, target) for source, target in MODULES.items()}
    for folder in {Path(target).parent for target in MODULES.values()}:
        for path in (ROOT / folder).glob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            if place not in wanted and path.read_text(encoding="utf-8").startswith(HEADER.partition("{")[0]):
                wanted[place] = ""
    return {target: text for target, text in wanted.items() if text != _read(ROOT / target)}


def main(arguments: list[str]) -> int:
    stale = stale_files()
    if arguments == ["--check"]:
        for target in stale:
            print(f"{target} is stale: run python tools/generate_blocking.py", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for target, text in stale.items():
        path = ROOT / target
        if text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            path.unlink()
        print(f"{'wrote' if text else 'removed'} {target}")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _ruff(command: tuple[str, ...], text: str, target: str) -> str:
    """Returns `text` after this ruff command. The target's name tells ruff which settings apply."""
    done = subprocess.run(
        (*RUFF, *command, "--stdin-filename", target, "-"), input=text, capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{target}: {done.stderr}{done.stdout}")
    return done.stdout


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
