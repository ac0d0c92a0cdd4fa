"""Goal: the blocking halves are what the generator makes of the async halves. Method: generate again and compare; and
small modules of every construct, translated and read.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.style.tree import plant
from tools import generate_blocking
from tools.generate_blocking import MODULES, generate, main, stale_files, translate

ASYNC = '''"""Half of a client."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stream_client.session import Session
from stream_client.shell.async_shell import open_shell


class Items:
    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        # blocking only: self.send()
        if not await self.more() and await (self.later()):
            raise StopAsyncIteration
        self.wake()  # async only
        return 1


@asynccontextmanager
async def connect(session: Session) -> AsyncIterator[list[int]]:
    """Told without `await`."""
    async with open_shell() as shell, contextlib.aclosing(Items()) as items:
        yield [item async for item in items]
        async for item in shell:
            print(await anext(items), item)
'''

BLOCKING = '''# Generated from a/half.py by tools/generate_blocking.py; do not edit.
"""Half of a client."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from stream_client.blocking.session import Session
from stream_client.shell.blocking_shell import open_shell


class Items:
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.send()
        if not self.more() and (self.later()):
            raise StopIteration
        return 1


@contextmanager
def connect(session: Session) -> Iterator[list[int]]:
    """Told without `await`."""
    with open_shell() as shell, contextlib.closing(Items()) as items:
        yield [item for item in items]
        for item in shell:
            print(next(items), item)
'''


def test_every_generated_file_is_fresh() -> None:
    assert list(stale_files()) == [], "run python tools/generate_blocking.py"


def test_each_construct_is_translated() -> None:
    assert translate(ASYNC, "a/half.py") == BLOCKING


def test_only_whole_module_names_are_translated() -> None:
    text = "import stream_client.sessions, my.stream_client.session, stream_client.session.x\n"
    assert text in translate(text, "a.py")


def test_a_stale_a_missing_and_a_forgotten_file_are_found_and_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(
        tmp_path,
        {
            "pyproject.toml": "[tool.ruff]\nline-length = 120\n",
            "a/one.py": "async def one() -> None: ...\n",
            "a/two.py": "async def two() -> None: ...\n",
            "a/blocking/one.py": "def one() -> int: ...\n",
            "a/blocking/gone.py": "# Generated from a/gone.py by tools/generate_blocking.py; do not edit.\n",
            "a/blocking/__init__.py": "# by hand\n",
        },
    )
    monkeypatch.setattr(generate_blocking, "ROOT", tmp_path)
    monkeypatch.setattr(
        generate_blocking, "MODULES", {f"a/{each}.py": f"a/blocking/{each}.py" for each in ("one", "two")}
    )
    stale = ["a/blocking/one.py", "a/blocking/two.py", "a/blocking/gone.py"]
    assert list(stale_files()) == stale
    assert main(["--check"]) == 1
    assert [line.partition(" ")[0] for line in capsys.readouterr().err.splitlines()] == stale
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert sorted(path.name for path in (tmp_path / "a/blocking").iterdir()) == ["__init__.py", "one.py", "two.py"]
    assert (tmp_path / "a/blocking/two.py").read_text().endswith("def two() -> None: ...\n")


def test_a_coroutine_that_is_left_over_stops_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"a/one.py": "async def f() -> None:\n    return await [g()][0]\n"})
    monkeypatch.setattr(generate_blocking, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"would still wait for an event loop, see a/b\.py:3"):
        generate("a/one.py", "a/b.py")


def test_generated_files_wait_for_no_event_loop() -> None:
    for target in MODULES.values():
        tree = ast.parse((generate_blocking.ROOT / target).read_text(encoding="utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not {"anyio", "asyncio", "trio"} & {str(module).partition(".")[0] for module in modules}, target
        assert not modules & {source.removesuffix(".py").replace("/", ".") for source in MODULES}, target
