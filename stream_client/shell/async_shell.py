"""The shell for async programs, under trio or asyncio (AnyIO): sockets, tasks and waiting around one client's core."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import SocketAttribute

from ockam.address import split_host_port
from ockam.errors import RemoteProtocolError
from ockam.sockets import send_nowait
from ockam.wire import Wire
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY
from stream_client.core.client_core import ClientCore
from stream_client.core.requests import Waiting
from stream_client.errors import (
    ConnectionLost,
    NodeUnreachable,
    NotAStreamNode,
    UnexpectedAnswer,
    fault_of,
    silent,
)
from stream_client.shell.backoff import Backoff, Reconnect
from stream_client.shell.clock import boot_time_s
from stream_client.shell.contact import PROBE_AFTER_S, identify, no_contact
from stream_client.shell.defaults import (
    AUTO_WAIT_S,
    AUTO_WAIT_S_MAX,
    CHECK_INTERVAL_S,
    CONNECT_TIMEOUT_S,
    LAST_WORDS_S,
    READ_BYTES_MAX,
    Framing,
)
from stream_client.shell.route_retry import RouteRetry


@asynccontextmanager
async def open_shell(
    address: str, core: ClientCore, framing: Framing, reconnect: Reconnect | None, contact_timeout_s: float | None
) -> AsyncIterator[AsyncShell]:
    """The I/O of one client while the block runs; the arguments as `connect`. Raises NodeUnreachable."""
    shell = AsyncShell(address, core, framing)
    first = await shell.dial()
    body_error: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        shell.start(tasks, first, reconnect)
        tasks.start_soon(shell.watch_contact, contact_timeout_s)
        try:
            yield shell
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            # Raised behind the task group, so that the error leaves the block as it is and not as a group of one.
            body_error = error
        finally:
            await shell.close()
            tasks.cancel_scope.cancel()
    if body_error is not None:
        raise body_error


class Dialled(NamedTuple):
    """A connection, the framing to be spoken on it, and the bytes that have come over it already."""

    stream: anyio.abc.SocketStream
    wire: Wire
    received: bytes = b""


class AsyncShell:
    """The I/O of one client in tasks. See `session.Shell`.

    Its tasks are shielded from the caller's cancellation, so that `close` can still send what waits.
    """

    def __init__(self, address: str, core: ClientCore, framing: Framing) -> None:
        self.core = core
        self._address = address
        self._framing = framing
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scope = anyio.CancelScope(shield=True)
        self._stream: anyio.abc.SocketStream | None = None
        self._socket: socket.socket | None = None
        self._outgoing = anyio.Event()
        self._sent = anyio.Event()
        self._sending = False
        self._in_doubt = anyio.Event()
        self._auto_wait_s = AUTO_WAIT_S
        core.connection.on_outgoing = self._wake_sender

    def start(self, tasks: anyio.abc.TaskGroup, first: Dialled, reconnect: Reconnect | None) -> None:
        """Serve connection after connection, the first one given, until `close`."""
        self._tasks = tasks
        if reconnect is not None:
            self.core.service_route.on_lost = RouteRetry(self, self.core, reconnect).lost
        # Before the caller goes on, so that its client is connected from the first moment on.
        self._take_over(first)
        tasks.start_soon(self._keep_connected, first, reconnect)
        tasks.start_soon(self._keep_checking)

    async def watch_contact(self, contact_timeout_s: float | None) -> None:
        """End the client where something else than a node answers, or nothing of the service in time."""
        began_s = anyio.current_time()
        with anyio.move_on_after(PROBE_AFTER_S):
            await self._in_doubt.wait()
        if not self.core.connection.received_bytes:
            what = await anyio.to_thread.run_sync(identify, self._address, abandon_on_cancel=True)
            if what is not None and not self.core.connection.received_bytes:
                self.core.close(NotAStreamNode(f"{self._address} is no stream node: {what}"))
        if contact_timeout_s is not None:
            await anyio.sleep(max(0.0, began_s + contact_timeout_s - anyio.current_time()))
            if not self.core.service_route.reached:
                self.core.close(no_contact(self._address, self.core))

    async def close(self) -> None:
        """Send what waits to be sent, if that goes at once; then end."""
        with anyio.move_on_after(LAST_WORDS_S, shield=True):
            while self._stream is not None and (self._sending or self.core.connection.outgoing_bytes):
                self._sent = anyio.Event()
                await self._sent.wait()
        self.core.close()
        self._scope.cancel()

    async def wait(self, waiting: Waiting, timeout_s: float | None = None) -> None:
        if waiting.done:
            return
        self._send_at_once()
        done = anyio.Event()
        waiting.when_done(done.set)
        try:
            with anyio.move_on_after(math.inf if timeout_s is None else timeout_s):
                await done.wait()
        finally:
            waiting.forget(done.set)

    async def give_way(self) -> None:
        await anyio.lowlevel.checkpoint()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        self.core.connection.check_open()
        scope = anyio.CancelScope()

        async def call() -> None:
            with scope:
                await anyio.sleep(delay_s)
                callback()

        assert self._tasks is not None
        self._tasks.start_soon(call)
        return scope.cancel

    def now_s(self) -> float:
        return boot_time_s()

    async def dial(self) -> Dialled:
        """A new connection. Raises NodeUnreachable."""
        host, port = split_host_port(self._address)
        try:
            with anyio.fail_after(CONNECT_TIMEOUT_S):
                stream = await anyio.connect_tcp(host, port)
        except (OSError, TimeoutError) as error:
            reason = _reason(error) or f"no answer in {CONNECT_TIMEOUT_S:g} s"
            raise NodeUnreachable(f"cannot reach a node at {self._address}: {reason}") from error
        if self._framing != "auto":
            return Dialled(stream, HEAD if self._framing == "head" else LEGACY)
        hello = await self._greet(stream)
        if hello:
            return Dialled(stream, HEAD, hello)
        # A node that has taken our hello for the beginning of a legacy frame waits for the rest of it; so call anew.
        await anyio.aclose_forcefully(stream)
        try:
            with anyio.fail_after(CONNECT_TIMEOUT_S):
                return Dialled(await anyio.connect_tcp(host, port), LEGACY)
        except (OSError, TimeoutError) as error:
            raise NodeUnreachable(f"cannot reach a node at {self._address}: {_reason(error)}") from error

    async def _greet(self, stream: anyio.abc.SocketStream) -> bytes:
        """Say hello as the head framing does; what comes within a while, nothing from a node that does not speak it."""
        try:
            with anyio.move_on_after(self._auto_wait_s):
                await stream.send(HEAD.hello)
                return await stream.receive(READ_BYTES_MAX)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        return b""

    async def _keep_connected(self, dialled: Dialled, reconnect: Reconnect | None) -> None:
        backoff = None if reconnect is None else Backoff(reconnect, random.random)
        with self._scope:
            while True:
                received_bytes = self.core.connection.received_bytes
                fault = await self._serve(dialled)
                if backoff is None:
                    self.core.close(fault or ConnectionLost("the connection ended and is not made again"))
                    return
                self.core.disconnected(fault)
                if self.core.connection.received_bytes > received_bytes:
                    backoff.succeeded()
                    self._auto_wait_s = AUTO_WAIT_S
                else:
                    self._in_doubt.set()
                    self._auto_wait_s = AUTO_WAIT_S_MAX
                dialled = await self._dial_again(backoff)
                self._take_over(dialled)

    async def _keep_checking(self) -> None:
        while True:
            await anyio.sleep(CHECK_INTERVAL_S)
            if self.core.check_progress() and self._stream is not None:
                await anyio.aclose_forcefully(self._stream)

    async def _dial_again(self, backoff: Backoff) -> Dialled:
        backoff.lost(self.now_s())
        if backoff.is_over(self.now_s()):
            self.core.fail_all(silent(self._address))
        while True:
            await anyio.sleep(backoff.next_delay_s())
            try:
                connected = await self.dial()
            except NodeUnreachable as error:
                if backoff.is_over(self.now_s()):
                    self.core.fail_all(error)
            else:
                return connected

    def _take_over(self, dialled: Dialled) -> None:
        """Have a new connection be the client's: what is to be sent goes along it from now on."""
        self.core.connected(dialled.wire, greeted=bool(dialled.received))
        self._stream = dialled.stream
        raw = dialled.stream.extra(SocketAttribute.raw_socket)
        # Under asyncio it is wrapped: a transport there may hold what was sent before, and is not to be overtaken.
        self._socket = raw if isinstance(raw, socket.socket) else None

    async def _serve(self, dialled: Dialled) -> UnexpectedAnswer | None:
        """Carry one connection to its end; what the other side did wrong, if that ended it."""
        fault, stream = None, dialled.stream
        try:
            async with stream, anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, stream, tasks.cancel_scope)
                fault = await self._receive(stream, dialled.received)
                tasks.cancel_scope.cancel()
        finally:
            self._stream = self._socket = None
            self._sending = False
            self._sent.set()
        return fault

    async def _receive(self, stream: anyio.abc.SocketStream, received: bytes) -> UnexpectedAnswer | None:
        try:
            if received:
                self.core.receive_data(received)
            while True:
                self.core.receive_data(await stream.receive(READ_BYTES_MAX))
        except RemoteProtocolError as error:
            return fault_of(self._address, error)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return None

    async def _send(self, stream: anyio.abc.SocketStream, scope: anyio.CancelScope) -> None:
        while True:
            data = self.core.data_to_send()
            self._sending = bool(data)
            if not data:
                self._sent.set()
                self._outgoing = anyio.Event()
                await self._outgoing.wait()
                continue
            try:
                await stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                scope.cancel()
                return

    def _send_at_once(self) -> None:
        """Send what the socket takes without waiting, since somebody waits for the answer: the sending task, woken,
        would do it a turn of the event loop later. It sends the rest."""
        link = self.core.connection
        if self._socket is not None and not self._sending and link.outgoing_bytes:
            data = self.core.data_to_send()
            rest = send_nowait(self._socket, data)
            if rest:
                link.put_back(rest)

    def _wake_sender(self) -> None:
        self._outgoing.set()


def _reason(error: BaseException) -> str:
    """Why a connection could not be made; AnyIO keeps that behind what it raises."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    return str(cause)
