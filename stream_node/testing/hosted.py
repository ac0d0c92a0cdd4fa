"""HostedNode: a node in this process, as a context manager for blocking and async programs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

import anyio
import anyio.to_thread
import trio

from stream_node.node.process import NodeNotStarted
from stream_node.testing.host import host, logging_to

LOG_LINES_MAX = 1000


class NodeNotRunning(Exception):
    """A node of `stream_node.testing` was used outside its block or entered twice, or it has failed inside the block.
    The text has the reason, and after a failure the node's log."""


class HostedNode:
    """A node in a thread of this process, which runs while its block does: `with`, or in trio and asyncio `async with`.
    http, grpc: the addresses at which a real node listens for HTTP and gRPC, if its settings have any."""

    def __init__(self, serve: Callable[[HostedNode], Awaitable[None]]) -> None:
        """serve: runs the node in the thread. It calls `listens`, and returns after `stopping` is set."""
        self.http: list[str] = []
        self.grpc: list[str] = []
        self._serve = serve
        self._address: str | None = None
        self._log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._failure: BaseException | None = None
        self._is_new = True
        self._started, self._ended = threading.Event(), threading.Event()
        self.stopping = trio.Event()

    @property
    def address(self) -> str:
        """The `host:port` for `connect`. Raises NodeNotRunning outside the block."""
        if self._address is None:
            raise NodeNotRunning("the node is not running; use its address inside the block of `with`")
        return self._address

    @property
    def log(self) -> str:
        """The newest lines, at most 1,000, that nodes of this process have logged while this one ran."""
        return "\n".join(self._log)

    def listens(self, address: str) -> None:
        """Notes the address of the node, which now listens, so that the block begins."""
        self._address = address
        self._started.set()

    def __enter__(self) -> Self:
        if not self._is_new:
            raise NodeNotRunning("a node has one block; make another node")
        self._is_new = False
        host().start(self._run)
        self._started.wait()
        if self._address is None:
            raise NodeNotStarted(f"the node did not start: {self._why}") from self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._address = None
        host().call_soon(self.stopping.set)
        self._ended.wait()
        # An error of the block goes first. It can be a consequence of the failure, which then shows in the log.
        if self._failure is not None and kind is None:
            raise NodeNotRunning(f"the node has failed: {self._why}") from self._failure

    async def __aenter__(self) -> Self:
        return await anyio.to_thread.run_sync(self.__enter__)

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.__exit__, kind)

    async def _run(self) -> None:
        try:
            with logging_to(self._log):
                await self._serve(self)
        # The failure of one node must not end the others, which are tasks of the same run.
        except Exception as error:
            self._failure = error
        finally:
            self._started.set()
            self._ended.set()

    @property
    def _why(self) -> str:
        error = self._failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{error}\nits log:\n{self.log}" if self._log else str(error)
