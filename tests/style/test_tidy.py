"""The house rules that a program can see: sizes, calls and words. Formatting and types are left to ruff and mypy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.tree import ROOT, files, package_files, parse, plant, python_files

FILE_LINES = 350
"""A longer file is a smell: it may do more than one thing. It states in LARGE why it does not."""

FILE_LINES_MAX = 500
"""No file is longer, whatever the reason."""

FUNCTION_LINES = 70
"""A longer function states its reason in LARGE too."""

# What is longer, and why it is better in one piece: "path" or "path::function" -> reason.
LARGE: dict[str, str] = {
    "stream_storage/errors.py": "one list of all errors of storage, most of which is when each comes and what to do",
    "stream_node/cli/exports/export.py": "one group of commands, each a short function; half of it is options and help",
    "stream_node/node/config.py": "one list of all settings, most of which is their explanations",
    "ockam/transport/frames.py": "the reader and the writer of one format, with what each remembers to be fast",
    "ockam/transport/tcp.py": "accepting and forwarding share the connections of a node and their limits",
    "stream_node/fleet/cluster/router.py": "one table of shards: where their messages go, where they wait, when a way is clear",
    "index_service/lease_machine.py": "one table, and the members and partitions that it is about",
    "stream_client/core/channel_connection.py": "the handshake, the messages and the end of a channel share its keys",
    "ockam/transport/connection.py": "a connection's two directions wake each other and end together",
    "tests/service/test_slow_clients.py": "one kind of peer, who does not read, at each of a node's bounds",
    "tests/ockam/test_connection_machine.py": "one machine's table, its deadlines, and a model of all its steps",
    "ockam/transport/connection_machine.py": "the table of a connection, and what its states mean for both directions",
    "stream_node/cli/node/serve.py::serve": "half of it is the signature, which is the list of the command's options",
    "stream_node/cli/chains/cardinal.py::consume": "half of it is the signature, which is the list of the command's options",
    "stream_node/cli/exports/export_options.py::settings_of": "half of it is the signature, which is the list of the options",
    "stream_node/cli/streams/consume.py::consume": "half of it is the signature, which is the list of the command's options",
    "cardinal_streams/transports/stream_transport.py": "one transport: sending and reading find the same streams",
    "cardinal_streams/machines/chain_order_machine.py": "one table of places, and what each does to the chain",
    "cardinal_streams/machines/reassembly_machine.py": "one machine: its table, and what it drops and reads again",
    "cardinal_streams/machines/consumer_machine.py": "one machine: each message, each step of a reorg, the checkpoint",
    "tests/cardinal_streams/test_reassembly.py": "one machine: the real consumer's scenarios, and a test for each rule",
    "bare/compile_decode.py": "one compiler with a method for each type of BARE",
    "stream_service/operations.py": "the requests that a stream makes of the storage threads, one short class each",
    "stream_client/connecting.py::connect": "most of it is the signature, and the explanation of each argument",
    "stream_client/blocking/connecting.py::connect": "most of it is the signature, and its explanation",
    "stream_service/workers/stream.py": "one worker: every request that changes a stream, from its run to its answer",
    "stream_service/workers/pull_machine.py": "one table, and the queues of pulls that it is about",
    "block_node/publish/publish_machine.py": "one owner of all that is being published; its parts stand beside it",
    "block_node/persist/chain_log.py": "a block is stored, read, evicted and found anew by the same rows and marks",
    "block_node/backfill/fill_machine.py": "one owner of the holes of one kind, from a hole found to a block stored",
    "block_node/client/publish_session.py": "one session: its states share one conversation, and each can end it",
    "block_node/client/blocking/publish_session.py": "one session: its states share one conversation",
    "tests/simulation/backfill_world.py": "one world: what a seed draws, what it breaks, and when a run is done",
    "block_node/publish/block_machine.py": "one table, and the blocks that it is about with their order and deadlines",
    "stream_client/core/client_core.py": "the calls of shells and rooms, and what each of them changes in the parts",
    "stream_client/core/push_queue.py": "the queue of a publisher and the one with numbers, which fills in its steps",
    "spark_export/source/node_client.py": "one connection, from the socket to the requests that Spark makes over it",
    "stream_node/cli/streams/push.py": "one command: its options, its input, and what it tells of each message",
    "stream_client/shell/async_shell.py": "the tasks of one client: what each sends, reads, checks and waits for",
    "stream_client/shell/blocking_shell.py": "one loop: what a call sends, reads and waits for; timers",
    "tests/block_node/client/test_client.py": "one client over real connections, a test for each promise",
    "stream_storage/postgres/session.py": "one connection: its transactions, its loss, and a commit whose answer was lost",
    "block_node/persist/store.py": "the stored blocks of a chain, and what each operation changes in their counts",
    "stream_storage/sqlite/wal/scan_machine.py": "one format: its frames, the reading of a whole log, and the verdict on it",
    "block_node/read/subscription.py": "one subscription: what it reads, what it sends, and both of its modes",
    "stream_storage/contract.py": "every promise of a log, a session and an operation, most of which is their explanations",
    "stream_node/care/repair.py": "one repair: what is damaged, what can be saved, and the new database",
    "block_node/backfill/worker.py": "one worker: its events, its searches, and the steps of its fillers",
    "stream_service/extensions.py": "one list of our own messages, most of which is their schemas and explanations",
    "stream_client/errors.py": "one list of all errors of the clients, most of which is when each comes",
    "stream_service/workers/pulls.py": "one queue: from each kind of pull to its answer, and what waiting costs",
    "index_service/worker.py": "one worker: every request to it, from what it demands to its answer",
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
    """Files and functions that are long without a reason, files that are too long, and reasons nobody needs."""
    sizes = {}
    for path in python_files(root):
        place = str(path.relative_to(root))
        sizes[place] = (len(path.read_text(encoding="utf-8").splitlines()), FILE_LINES)
        for function in ast.walk(parse(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (function.end_lineno or function.lineno) - function.lineno + 1
                key = f"{place}::{function.name}"
                sizes[key] = (max(lines, sizes.get(key, (0, 0))[0]), FUNCTION_LINES)
    long = {key for key, (lines, limit) in sizes.items() if lines > limit}
    problems = [
        f"{key} has {sizes[key][0]} lines, a reason in LARGE is needed above {sizes[key][1]}"
        for key in sorted(long - large.keys())
    ]
    problems += [
        f"{key} has {sizes[key][0]} lines, {FILE_LINES_MAX} are allowed"
        for key in sorted(long)
        if "::" not in key and sizes[key][0] > FILE_LINES_MAX
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


def test_files_and_functions_are_small() -> None:
    assert size_problems(ROOT, LARGE) == []


def test_nothing_blocks_prints_or_swallows() -> None:
    assert call_problems(ROOT, ALLOWED_CALLS) == []
    assert not [place for place, what in ALLOWED_CALLS if what == SWALLOWS]


def test_text_is_finished_and_names_no_registry() -> None:
    assert word_problems(ROOT) == []


@pytest.mark.parametrize(
    ("path", "text", "large", "problem"),
    [
        ("bare/x.py", "\n" * 351, {}, "bare/x.py has 351 lines, a reason in LARGE is needed above 350"),
        ("tests/x.py", "\n" * 351, {}, "tests/x.py has 351 lines, a reason in LARGE is needed above 350"),
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
        ("bare/x.py", "\n" * 501, {"bare/x.py": "why"}, "bare/x.py has 501 lines, 500 are allowed"),
        ("bare/x.py", "\n" * 350, {"bare/x.py": "why"}, "bare/x.py is listed as large and is not"),
        ("bare/x.py", "", {"bare/gone.py": "why"}, "bare/gone.py is listed as large and is not"),
    ],
)
def test_a_wrong_size_is_found(tmp_path: Path, path: str, text: str, large: dict[str, str], problem: str) -> None:
    assert size_problems(plant(tmp_path, {path: text}), large) == [problem]


def test_a_right_size_is_left_alone(tmp_path: Path) -> None:
    texts = {"bare/a.py": "\n" * 350, "bare/b.py": "def f():\n" + " 1\n" * 69, "bare/c.py": "\n" * 500}
    assert size_problems(plant(tmp_path, texts), {"bare/c.py": "a table"}) == []


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
