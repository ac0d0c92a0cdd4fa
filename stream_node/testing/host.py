"""The thread in which all nodes of `stream_node.testing` run, and where their log goes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import structlog
import trio

STORAGE_THREADS = "storage-"
"""How the names of the threads that touch a database begin."""

_is_of_nodes: ContextVar[bool] = ContextVar("is_of_nodes", default=False)
"""Whether this code runs for the nodes: in their thread, or in a thread that trio has started for their thread."""
_logs: list[deque[str]] = []
_render = structlog.processors.KeyValueRenderer(key_order=["event"])


class Host:
    """A thread with one run of trio, in which each node is a task. It ends with the main thread of the program."""

    def __init__(self) -> None:
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        threading.Thread(target=self._run, name="stream-node-testing").start()

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Runs an async function as a task of this thread. The function raises nothing."""
        token = self._token.result()
        token.run_sync_soon(self._nursery.start_soon, function)

    def call_soon(self, function: Callable[[], object]) -> None:
        self._token.result().run_sync_soon(function)

    def _run(self) -> None:
        _is_of_nodes.set(True)
        trio.run(self._main)

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token.set_result(trio.lowlevel.current_trio_token())
            # A program may end inside the block of a node, whose threads would keep the process from ending.
            await trio.to_thread.run_sync(threading.main_thread().join, abandon_on_cancel=True)
            self._nursery.cancel_scope.cancel()


def host() -> Host:
    """Returns the host of this process. The child of a fork has no thread of its parent, and gets a host of its own."""
    return _host(os.getpid())


@cache
def _host(_pid: int) -> Host:
    return Host()


@contextmanager
def logging_to(log: deque[str]) -> Iterator[None]:
    """While the block runs, the lines of all nodes of this process go to `log`, and not to the program's log."""
    # The program may have configured other processors since the last node.
    processors = structlog.get_config()["processors"]
    if _divert not in processors:
        processors.insert(0, _divert)
    _logs.append(log)
    try:
        yield
    finally:
        _logs[:] = [each for each in _logs if each is not log]


def _divert(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: it moves the lines of nodes to their logs, and passes on those of the program."""
    if not (_is_of_nodes.get() or threading.current_thread().name.startswith(STORAGE_THREADS)):
        return event
    text = f"{method}: {_render(logger, method, structlog.processors.format_exc_info(logger, method, event))}"
    for each in _logs:
        each.append(text)
    raise structlog.DropEvent
