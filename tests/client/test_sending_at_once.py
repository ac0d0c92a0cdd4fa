"""Goal: what is sent in the call that waits for it, and what the sending task sends, are one stream of bytes in order.

Method: the shell on a real connection, the other end of which the test reads itself, so that at every step it is known
what the socket holds and whether the task is in the middle of a send.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator

import anyio
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ockam.actors.address import local
from ockam.actors.message import HERE
from ockam.transport.frames import FrameReader
from ockam.transport.wire_head import HEAD
from stream_client.core.client_core import ClientCore
from stream_client.core.pushes import PendingResult
from stream_client.shell.async_shell import AsyncShell
from stream_client.shell.base_shell import ShellSettings
from tests.client.sockets import listener
from tests.support.served import PATIENCE_S

LARGE = 12 * 1024 * 1024
"""More than the buffers of both sockets hold."""


class FarEnd:
    """A connected shell, and the other end of its connection, `far`. put: the payloads given to the shell so far."""

    def __init__(self, shell: AsyncShell, far: socket.socket) -> None:
        self.shell = shell
        self.put: list[bytes] = []
        self.far = far
        self._reader = FrameReader(HEAD, HERE)
        self._hello = HEAD.hello
        self._received: list[bytes] = []
        self._numbers = itertools.count()

    def put_frame(self, size_bytes: int) -> None:
        """Give the shell a frame to send, unlike all others."""
        link = self.shell.core.connection
        payload = b"%08d" % next(self._numbers) * (size_bytes // 8 + 1)
        assert link.put_frame(link.header((local("there"),), local("here")), payload) is None
        self.put.append(payload)

    async def send_at_once(self) -> None:
        """As a request does that begins to wait; no task runs before that."""
        await self.shell.wait(PendingResult(), 0.0)

    def read_some(self, size_bytes: int) -> int:
        """Read what is there, up to so much, without giving way to any task."""
        read_bytes = 0
        while read_bytes < size_bytes:
            try:
                data = self.far.recv(min(65_536, size_bytes - read_bytes))
            except BlockingIOError:
                break
            assert data, "the shell has closed the connection"
            read_bytes += len(data)
            begin = len(self._hello)
            assert data.startswith(self._hello)
            self._hello = b""
            self._received += [message.payload for message in self._reader.feed(data[begin:])]
        return read_bytes

    async def receive_all(self) -> list[bytes]:
        """The payloads that have come, when as many have come as were put."""
        with trio.fail_after(PATIENCE_S):
            while len(self._received) < len(self.put):
                if not self.read_some(LARGE):
                    await trio.lowlevel.wait_readable(self.far)
        return self._received


@pytest.fixture
async def end() -> AsyncIterator[FarEnd]:
    with listener() as (address, listening):
        shell = AsyncShell(ClientCore(), ShellSettings(address))
        dialled = await shell.dial()
        far, _ = listening.accept()
        with far:
            far.setblocking(False)
            async with anyio.create_task_group() as tasks:
                shell.start(tasks, dialled)
                await wait_all_tasks_blocked()
                yield FarEnd(shell, far)
                tasks.cancel_scope.cancel()
                shell.core.close()
                shell._scope.cancel()


async def test_nothing_goes_into_the_middle_of_what_the_task_sends(end: FarEnd) -> None:
    for size_bytes in (0, 100, 70_000):
        end.put_frame(LARGE)
        await wait_all_tasks_blocked()
        # The task is in the middle of the large frame. Now the socket has room, and the task does not know it yet.
        assert end.read_some(2 * 1024 * 1024) > 0
        end.put_frame(size_bytes)
        await end.send_at_once()
        assert await end.receive_all() == end.put


async def test_what_the_socket_does_not_take_at_once_is_sent_before_all_that_comes_after(end: FarEnd) -> None:
    for size_bytes in (0, 100, 70_000):
        end.put_frame(LARGE)
        await end.send_at_once()
        assert end.shell.core.connection.sent_bytes > 0
        end.put_frame(size_bytes)
        await end.send_at_once()
        end.put_frame(size_bytes)
        assert await end.receive_all() == end.put
    assert end.shell.core.connection.sent_bytes > sum(map(len, end.put))


async def test_a_connection_that_has_gone_takes_nothing_and_breaks_nothing(end: FarEnd) -> None:
    link = end.shell.core.connection
    sent_bytes = link.sent_bytes
    end.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    end.far.close()
    end.put_frame(100)
    await end.send_at_once()
    with trio.fail_after(PATIENCE_S):
        while link.closed is None:
            await trio.sleep(0.01)
    assert link.outgoing_bytes == 0
    assert link.sent_bytes >= sent_bytes
