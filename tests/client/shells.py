"""One scenario, three shells: written as a coroutine over the async client, and run under trio, asyncio, and over the
blocking client, whose objects are shown to it as if they were async.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, cast

import trio

from stream_client import LeaseMember, SavedIndexes, StreamClient, blocking, connect

ShellName: TypeAlias = Literal["trio", "asyncio", "blocking"]
SHELLS: tuple[ShellName, ...] = ("trio", "asyncio", "blocking")

T = TypeVar("T")
Scenario: TypeAlias = Callable[["Tools"], Awaitable[None]]


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result, or the exception, of a coroutine that never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits for an event loop, and there is none")


class View:
    """A blocking object that can be awaited, entered and iterated as its async twin can."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return _shown(self._value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._value, name)
        if not callable(found):
            return _shown(found)
        return lambda *arguments, **named: View(found(*map(hidden, arguments), **named))

    def __aiter__(self) -> AsyncIterator[Any]:
        return _AsyncIterator(iter(self._value))

    async def __anext__(self) -> Any:
        return await _AsyncIterator(self._value).__anext__()

    async def __aenter__(self) -> Any:
        return View(self._value.__enter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return cast("bool | None", self._value.__exit__(kind, error, traceback))

    async def aclose(self) -> None:
        self._value.close()


class _AsyncIterator:
    def __init__(self, items: Any) -> None:
        self._items = items

    def __aiter__(self) -> _AsyncIterator:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None


def hidden(value: Any) -> Any:
    """What a view shows; any other value as it is."""
    return value._value if isinstance(value, View) else value


def _shown(value: Any) -> Any:
    """Objects of the blocking client as views, values as they are."""
    if isinstance(value, tuple) and value and type(value[0]).__module__.startswith("stream_client.blocking"):
        return tuple(map(View, value))
    return View(value) if type(value).__module__.startswith("stream_client.blocking") else value


def pause(seconds: float) -> None:
    """Stand still, as a program does that is busy with something else."""
    time.sleep(seconds)


class Tools:
    """What a scenario uses of the shell it runs in."""

    def __init__(self, shell: ShellName, address: str) -> None:
        self.shell = shell
        self.address = address
        self.defaults: dict[str, Any] = {}

    def connect(self, **options: Any) -> AbstractAsyncContextManager[StreamClient]:
        options = {"address": self.address, **self.defaults, **options}
        if self.shell == "blocking":
            return cast("AbstractAsyncContextManager[StreamClient]", View(blocking.connect(**options)))
        return connect(**options)

    def saved_indexes(self, client: StreamClient, client_id: str) -> SavedIndexes:
        if self.shell == "blocking":
            return cast("SavedIndexes", View(blocking.SavedIndexes(hidden(client), client_id)))
        return SavedIndexes(client, client_id)

    def lease_member(self, client: StreamClient, client_id: str, member_id: str) -> LeaseMember:
        if self.shell == "blocking":
            member = blocking.LeaseMember(hidden(client), client_id, member_id=member_id)
            return cast("LeaseMember", View(member))
        return LeaseMember(client, client_id, member_id=member_id)


def run_in(shell: ShellName, scenario: Callable[[Tools], Awaitable[None]], address: str) -> None:
    """Run the scenario to its end in that shell."""
    tools = Tools(shell, address)

    async def run() -> None:
        await scenario(tools)

    if shell == "trio":
        trio.run(run)
    elif shell == "asyncio":
        asyncio.run(run())
    else:
        drive(run())


class World:
    """A shell and a node for one test. `name` makes names that no other test uses."""

    def __init__(self, shell: ShellName, address: str, name: str) -> None:
        self.shell = shell
        self.address = address
        self.name = name

    @property
    def run(self) -> Callable[[Scenario], None]:
        return partial(run_in, self.shell, address=self.address)
