"""Goal: pushes to many streams gather in larger batches while their publisher waits, but never for long, nor without an
answer on its way.

Method: the bytes of a core; then each shell on a real connection, whose other end the test reads itself. The longest
time of gathering is set so long, or so short, that the load of the machine does not matter.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import ModuleType

import anyio
import pytest
import trio
from anyio import wait_all_tasks_blocked

from ockam.actors.address import local
from stream_client.core.client_connection import BATCH_BYTES_MIN, GATHERED_BATCHES_MIN, GATHERED_BYTES_MAX
from stream_client.core.client_core import ClientCore
from stream_client.core.pushes import PendingResult
from stream_client.shell import async_shell, base_shell, blocking_shell
from stream_client.shell.async_shell import AsyncShell
from stream_client.shell.base_shell import READ_BYTES_MAX, ShellSettings
from stream_client.shell.blocking_shell import BlockingShell
from stream_client.shell.dial import run_now
from tests.client.machines.far_end import batches, connected_core, opened, pushes
from tests.client.sockets import listener
from tests.support.served import PATIENCE_S


def fill(core: ClientCore, count: int, data: bytes) -> int:
    """Open batches of one message each. Returns the bytes to send."""
    link = core.connection
    for number in range(count):
        link.add_to_batch(link.begin_batch(link.header((local(f"S{number}"),), local("here")), 0), data)
    return link.outgoing_bytes


@pytest.fixture
def far_end() -> Iterator[tuple[str, socket.socket]]:
    with listener() as (address, listening):
        listening.settimeout(PATIENCE_S)
        yield address, listening


def gathers_for(monkeypatch: pytest.MonkeyPatch, module: ModuleType, seconds: float) -> None:
    for each in (base_shell, module):
        monkeypatch.setattr(each, "GATHER_S", seconds)


def unread(far: socket.socket) -> bytes:
    """What has come and was not read."""
    far.setblocking(False)
    try:
        return far.recv(READ_BYTES_MAX)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(
    ("count", "size", "wanted"),
    [
        (1, 1, False),
        (GATHERED_BATCHES_MIN - 1, 1, False),
        (GATHERED_BATCHES_MIN, 1, True),
        (GATHERED_BATCHES_MIN, BATCH_BYTES_MIN, False),
        (2 * GATHERED_BYTES_MAX // BATCH_BYTES_MIN, BATCH_BYTES_MIN // 2, False),
    ],
)
def test_only_many_small_batches_gather_and_not_without_bound(count: int, size: int, wanted: bool) -> None:
    core, far = connected_core()
    far.sent()
    fill(core, count, bytes(size))
    assert core.connection.gathers is wanted
    far.sent()
    assert not core.connection.gathers


def test_a_queue_knows_whether_an_answer_is_on_its_way() -> None:
    """A publisher whose pushes are all unsent would wait for ever for an answer."""
    core, far = connected_core()
    (handle,) = opened(core, far)
    queue = handle.queue
    assert not queue.is_on_its_way
    queue.push(b"first")
    assert queue.is_on_its_way
    far.confirm_many(*far.sent(), 1, 0)
    queue.push(b"second")
    assert not queue.is_on_its_way
    assert [push.data for push in pushes(far.sent())] == [b"second"]
    assert queue.is_on_its_way
    queue.push(b"third")
    queue.push(b"fourth")
    assert queue.is_on_its_way
    assert [batch.messages for batch in batches(far.sent())] == [[b"third", b"fourth"]]


@asynccontextmanager
async def connected(address: str, listening: socket.socket) -> AsyncIterator[tuple[AsyncShell, socket.socket]]:
    """A connected shell and the other end of its connection, on which nothing is unread."""
    shell = AsyncShell(ClientCore(), ShellSettings(address))
    dialled = await shell.dial()
    far, _ = listening.accept()
    async with anyio.create_task_group() as tasks:
        shell.start(tasks, dialled)
        await wait_all_tasks_blocked()
        unread(far)
        with far:
            yield shell, far
        tasks.cancel_scope.cancel()
        shell.core.close()
        shell._scope.cancel()


async def test_a_waiting_publisher_holds_small_batches_until_its_answer_comes(
    far_end: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathers_for(monkeypatch, async_shell, PATIENCE_S)
    async with connected(*far_end) as (shell, far), trio.open_nursery() as nursery:
        arrived: list[bytes] = []

        async def answer_late(answer: PendingResult, asks: bool) -> None:
            await wait_all_tasks_blocked()
            if asks:
                await shell.wait(PendingResult(), 0.0)
            arrived.append(unread(far))
            answer.finish()

        first, second = PendingResult(), PendingResult()
        nursery.start_soon(answer_late, first, False)
        size_bytes = fill(shell.core, GATHERED_BATCHES_MIN, b"x")
        await shell.wait(first, gathers=True)
        assert (arrived.pop(), shell.core.connection.outgoing_bytes) == (b"", size_bytes)
        # The publisher goes on, and nobody waits any more.
        await wait_all_tasks_blocked()
        assert len(unread(far)) > size_bytes
        # A request whose own answer is wanted takes everything with it.
        nursery.start_soon(answer_late, second, True)
        fill(shell.core, GATHERED_BATCHES_MIN, b"x")
        await shell.wait(second, gathers=True)
        assert len(arrived.pop()) > size_bytes


async def test_what_is_held_leaves_after_a_time_without_an_answer(
    far_end: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathers_for(monkeypatch, async_shell, 0.01)
    async with connected(*far_end) as (shell, far), trio.open_nursery() as nursery:
        answer, arrived = PendingResult(), list[bytes]()

        async def read() -> None:
            await trio.lowlevel.wait_readable(far)
            arrived.append(unread(far))
            answer.finish()

        nursery.start_soon(read)
        size_bytes = fill(shell.core, GATHERED_BATCHES_MIN, b"x")
        with trio.fail_after(PATIENCE_S):
            await shell.wait(answer, gathers=True)
        assert len(arrived.pop()) > size_bytes


async def publish(shell: AsyncShell) -> None:
    """Waits for an answer that never comes, as a publisher with pushes that gather."""
    fill(shell.core, GATHERED_BATCHES_MIN, b"x")
    await shell.wait(PendingResult(), gathers=True)


def test_a_request_is_not_held_where_only_the_sending_task_sends(
    far_end: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under asyncio, the bytes of a request do not leave at once, but by the task that holds those of publishers."""
    gathers_for(monkeypatch, async_shell, PATIENCE_S)

    async def ask() -> tuple[bytes, bytes]:
        async with connected(*far_end) as (shell, far), anyio.create_task_group() as tasks:
            tasks.start_soon(publish, shell)
            await wait_all_tasks_blocked()
            held = unread(far)
            fill(shell.core, 1, b"asked")
            tasks.start_soon(shell.wait, PendingResult(), PATIENCE_S)
            await wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            sent = unread(far)
        return held, sent

    held, sent = anyio.run(ask, backend="asyncio")
    assert held == b""
    assert b"asked" in sent


async def test_pushes_that_outgrow_the_gathering_leave_while_it_goes_on(
    far_end: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would else gather without a bound, until the time of gathering is over."""
    gathers_for(monkeypatch, async_shell, PATIENCE_S)
    async with connected(*far_end) as (shell, far), trio.open_nursery() as nursery:
        nursery.start_soon(publish, shell)
        await wait_all_tasks_blocked()
        assert unread(far) == b""
        fill(shell.core, 1, bytes(GATHERED_BYTES_MAX // 2))
        assert not shell.gathers()
        # As a publisher does that has much to send.
        await shell.yield_control()
        await wait_all_tasks_blocked()
        assert shell.core.connection.outgoing_bytes == 0
        assert unread(far)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("gather_s", "comes"), [(PATIENCE_S, False), (0.01, True)])
def test_a_blocking_publisher_holds_small_batches_for_a_time(
    far_end: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch, gather_s: float, comes: bool
) -> None:
    gathers_for(monkeypatch, blocking_shell, gather_s)
    address, listening = far_end
    shell = BlockingShell(ClientCore(), ShellSettings(address))
    shell.open()
    far, _ = listening.accept()
    try:
        with far:
            shell.exchange_nowait()
            unread(far)
            size_bytes = fill(shell.core, GATHERED_BATCHES_MIN, b"x")
            # A busy machine may spend all of the first wait in its first step.
            for _ in range(2):
                run_now(shell.wait(PendingResult(), 0.1, gathers=True))
            shell.send_lagging()
            assert (len(unread(far)) > size_bytes) is comes
            # A request whose own answer is wanted takes everything with it.
            fill(shell.core, 1, b"x")
            run_now(shell.wait(PendingResult(), 0.01))
            assert shell.core.connection.outgoing_bytes == 0
            assert unread(far)
    finally:
        shell.close()
