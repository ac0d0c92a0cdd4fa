"""AsyncShell: the I/O of one client in an async program, with AnyIO under trio or asyncio.

MemoryStream: a connection within one process. `background_tasks`: tasks that live as long as an `async with` block.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from ockam.errors import RemoteProtocolError
from ockam.transport.sockets import send_nowait
from stream_client.core.client_core import ClientCore
from stream_client.core.pushes import PendingResult
from stream_client.errors import (
    AuthenticationFailed,
    ClientError,
    ClientForked,
    NodeUnreachable,
    not_a_stream_node,
)
from stream_client.shell.base_shell import (
    CHECK_INTERVAL_S,
    CONNECT_TIMEOUT_S,
    GATHER_S,
    LAST_WORDS_S,
    READ_BYTES_MAX,
    Backoff,
    BaseShell,
    ShellSettings,
    connect_timeout_s,
)
from stream_client.shell.contact import PROBE_AFTER_S, identify, no_contact
from stream_client.shell.dial import Dialled, DialLine, dial, error_of
from stream_client.shell.in_memory import HOST, Pipe, open_pipes

T = TypeVar("T")

AnyDialled: TypeAlias = Dialled[anyio.abc.ByteStream]


class AsyncShell(BaseShell):
    """Does the I/O of one client in background tasks: it has the socket and the clock, and it waits. If the program's
    task is cancelled, the connection continues until `close`, so `close` can still send the last messages."""

    def __init__(self, core: ClientCore, settings: ShellSettings) -> None:
        super().__init__(core, settings)
        # Encrypted bytes that the socket did not take at once. Unlike plain bytes, they cannot go back to the core.
        self._encrypted = b""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scope = anyio.CancelScope(shield=True)
        self._stream: anyio.abc.ByteStream | None = None
        self._socket: socket.socket | None = None
        self._outgoing = anyio.Event()
        self._sent = anyio.Event()
        self._sending = False
        self._timers_sleep: anyio.CancelScope | None = None
        self._holders = 0
        self._hurries = False
        self._in_doubt = anyio.Event()
        core.connection.on_outgoing = self._wake_sender
        self._watch_forks()

    @asynccontextmanager
    async def opened(self, waits: bool) -> AsyncIterator[None]:
        # This is outside the task group, so that a failure is raised itself and not inside an exception group.
        first = await self.dial() if waits else None
        async with background_tasks() as tasks:
            self.start(tasks, first)
            tasks.start_soon(self._watch_contact)
            try:
                # A failure of the handshake ends the client, and every request says why.
                if waits and self.core.connection.is_encrypted:
                    await self.wait(self.core.connection.attempted(), CONNECT_TIMEOUT_S)
                yield
            finally:
                await self.close()

    def start(self, tasks: anyio.abc.TaskGroup, first: AnyDialled | None) -> None:
        """Starts the background tasks. They make the first connection, unless `first` is one."""
        self._tasks = tasks
        # This is done before any task runs, so that the caller gets a client that is already connected.
        if first is not None:
            self._take_over(first)
        tasks.start_soon(self._keep_connected, first)
        tasks.start_soon(self._keep_checking)

    async def _watch_contact(self) -> None:
        """Ends the client if the server is no stream node, or if the service is silent for `contact_timeout_s`."""
        began_s = anyio.current_time()
        # A node sends its first byte at once. Without this byte, the server may be of another kind.
        with anyio.move_on_after(PROBE_AFTER_S):
            await self._in_doubt.wait()
        # `identify` sends requests of other protocols. It blocks, so it runs in a thread.
        if not self.core.connection.received_bytes and self._settings.tls is None:
            try:
                what = await anyio.to_thread.run_sync(identify, self._address, abandon_on_cancel=True)
            # Python raises RuntimeError if the system has no room for one more thread.
            except RuntimeError:
                what = None
            if what is not None and not self.core.connection.received_bytes:
                self.core.close(not_a_stream_node(self._address, what))
        # A node sends its first byte even if it does not have the service. Then every request would wait in vain.
        if self._settings.contact_timeout_s is not None:
            await anyio.sleep(max(0.0, began_s + self._settings.contact_timeout_s - anyio.current_time()))
            if not self.core.service_route.reached:
                self.core.close(no_contact(self._address, self.core))

    async def close(self) -> None:
        """Sends the bytes that wait to be sent, for at most LAST_WORDS_S seconds, and then ends the client."""
        # The shield lets a cancelled program send its last saves, too.
        with anyio.move_on_after(LAST_WORDS_S, shield=True):
            while self._stream is not None and (
                self._sending or self._encrypted or self.core.connection.outgoing_bytes
            ):
                self._sent = anyio.Event()
                await self._sent.wait()
        # This comes first: a callback that raises an error at the end must not leave the shielded task waiting.
        self._scope.cancel()
        self.core.close()

    async def wait(self, waiting: PendingResult, timeout_s: float | None = None, *, gathers: bool = False) -> None:
        if waiting.done:
            return
        self.core.connection.check_open()
        # The caller waits for an answer, so its request must not wait until the sending task is scheduled.
        holds = gathers and self.gathers()
        if not holds:
            self._send_at_once()
            # The sending task must send the rest now, and not hold it for the publishers that wait.
            if not gathers and (self._encrypted or self.core.connection.outgoing_bytes):
                self._hurries = True
                self._outgoing.set()
        self._holders += holds
        done = anyio.Event()
        waiting.when_done(done.set)
        try:
            with anyio.move_on_after(math.inf if timeout_s is None else timeout_s):
                await done.wait()
        # A cancelled or late caller must not be called back: its event is gone.
        finally:
            waiting.forget(done.set)
            self._holders -= holds
            if holds:
                self._outgoing.set()

    def forked(self, error: ClientForked) -> None:
        self.core.connection.close(error)
        stream, self._stream, self._socket = self._stream, None, None
        if stream is not None and not isinstance(stream, MemoryStream):
            # The descriptor belongs to objects of the event loop. With another file in its place, this process no
            # longer has the connection, so that the node hears when the parent ends it.
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), stream.extra(anyio.abc.SocketAttribute.raw_socket).fileno())

    async def yield_control(self) -> None:
        # The sending task checks again whether it must hold the bytes that were added meanwhile.
        if self._holders:
            self._outgoing.set()
        await anyio.lowlevel.checkpoint()

    async def iterated(self, following: Callable[[], Coroutine[Any, Any, T | None]]) -> Iterable[T]:
        results = []
        while (result := await following()) is not None:
            results.append(result)
        return results

    @staticmethod
    async def run_blocking(function: Callable[[], None]) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(function)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        self.core.connection.check_open()
        earliest_s = self._timers_due_s
        timer = self._add_timer(anyio.current_time() + delay_s, callback)
        # All timers share one task: each publisher has one, and a program may have ten thousand.
        if self._timers_sleep is None:
            assert self._tasks is not None
            self._timers_sleep = anyio.CancelScope()
            self._tasks.start_soon(self._run_timers)
        elif timer.due_s < earliest_s:
            # The new timer is due before all others, so the task must wake up earlier than it planned.
            self._timers_sleep.cancel()
        return timer.cancel

    async def _run_timers(self) -> None:
        """Runs the timers that are due, until there are none."""
        try:
            while self._timers:
                assert self._timers_sleep is not None
                with self._timers_sleep:
                    await anyio.sleep_until(self._timers_due_s)
                self._timers_sleep = anyio.CancelScope()
                # All due timers are taken before the first runs: it may set others that are due at once, and running
                # those here could keep other tasks from ever having a turn.
                due, now_s = [], anyio.current_time()
                while (timer := self._pop_timer(now_s)) is not None:
                    due.append(timer)
                for timer in due:
                    timer.run()
        finally:
            self._timers_sleep = None

    async def dial(self) -> AnyDialled:
        line, how = AsyncLine(), (self._settings.framing, self._auto_wait_s, self._settings.tls, self._settings.token)
        return await dial(line, self._address, *how, timeout_s=connect_timeout_s(self._settings.contact_timeout_s))

    async def _keep_connected(self, dialled: AnyDialled | None) -> None:
        """Keeps the client connected: when a connection ends, makes the next, or ends the client."""
        with self._scope:
            try:
                if dialled is None:
                    dialled = await self._dial_first()
                    self._take_over(dialled)
                while True:
                    received_bytes = self.core.connection.received_bytes
                    fault = await self._serve(dialled)
                    backoff = self._connection_ended(fault, received_bytes)
                    if backoff is None:
                        return
                    if self.core.connection.received_bytes == received_bytes:
                        self._in_doubt.set()
                    dialled = await self._dial_again(backoff)
                    self._take_over(dialled)
            except AuthenticationFailed as error:
                # The same token would be refused again and again.
                self.core.close(error)

    async def _keep_checking(self) -> None:
        while True:
            await anyio.sleep(CHECK_INTERVAL_S)
            if self._check_progress(is_connected=self._stream is not None) and self._stream is not None:
                await anyio.aclose_forcefully(self._stream)

    async def _dial_first(self) -> AnyDialled:
        assert self._backoff is not None, "a client that does not wait for its first connection makes it again"
        try:
            return await self.dial()
        except NodeUnreachable as error:
            self._attempt_failed(self._backoff, error)
            self._begin_outage(self._backoff)
            return await self._dial_again(self._backoff)

    async def _dial_again(self, backoff: Backoff) -> AnyDialled:
        """Tries to connect, after growing delays."""
        while True:
            await anyio.sleep(backoff.next_delay_s())
            try:
                return await self.dial()
            except NodeUnreachable as error:
                self._attempt_failed(backoff, error)

    def _take_over(self, dialled: AnyDialled) -> None:
        """Hands a new connection to the core, which sends everything over it from now on."""
        self.core.connected(dialled.wire, greeted=bool(dialled.received))
        self._stream = dialled.stream
        self._layer = dialled.tls
        # Under asyncio the socket is wrapped, and its transport perhaps still holds earlier bytes. Bytes written to the
        # socket directly would overtake them.
        raw = dialled.stream.extra(anyio.abc.SocketAttribute.raw_socket, None)
        self._socket = raw if isinstance(raw, socket.socket) else None

    async def _serve(self, dialled: AnyDialled) -> ClientError | None:
        """Uses one connection until it ends. Returns an error if the other side broke the protocol, else None."""
        fault, stream = None, dialled.stream
        try:
            async with stream, anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, stream, tasks.cancel_scope)
                fault = await self._receive(stream, dialled.received)
                tasks.cancel_scope.cancel()
        # `close` may wait until all is sent. Nothing more is sent over this connection, so `close` is woken.
        finally:
            self._stream = self._socket = self._layer = None
            self._encrypted = b""
            self._sending = False
            self._sent.set()
        return fault

    async def _receive(self, stream: anyio.abc.ByteStream, received: bytes) -> ClientError | None:
        """Receives until the connection ends. Returns an error if the other side broke the protocol, else None."""
        try:
            if received:
                self.core.receive_data(received)
            layer = self._layer
            while True:
                data = await self._read(stream)
                if layer is not None:
                    data = layer.decrypt(data)
                # Received bytes may complete no record of TLS, or announce the end of the other side.
                if data:
                    self.core.receive_data(data)
                elif layer is not None and layer.ended:
                    return None
        except RemoteProtocolError as error:
            return error_of(self._address, error)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return None

    async def _read(self, stream: anyio.abc.ByteStream) -> bytes:
        """Waits for bytes. Under trio, waits until the socket is readable, and reads it directly. `stream.receive`
        would read before it waits: it would find nothing, or let all other tasks run before it returns."""
        while self._socket is not None:
            await anyio.wait_readable(self._socket)
            try:
                data = self._socket.recv(READ_BYTES_MAX)
            except BlockingIOError:
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
            return data
        return await stream.receive(READ_BYTES_MAX)

    async def _send(self, stream: anyio.abc.ByteStream, scope: anyio.CancelScope) -> None:
        """Sends the core's outgoing bytes whenever there are any. If the connection breaks, cancels `scope`."""
        while True:
            # While publishers wait for answers that will come, they and others may add to many small batches.
            holds = self._holders > 0 and not self._hurries and self.gathers()
            data = b"" if holds else self._take_outgoing()
            self._sending = bool(data)
            if not data:
                self._sent.set()
                self._outgoing = anyio.Event()
                if holds:
                    with anyio.move_on_after(self._outgoing_since_s + GATHER_S - self.now_s()):
                        await self._outgoing.wait()
                else:
                    await self._outgoing.wait()
                continue
            try:
                await stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                scope.cancel()
                return

    def _send_at_once(self) -> None:
        """Sends as many bytes as the socket takes without waiting. The sending task sends the rest."""
        link = self.core.connection
        # The sending task may be in the middle of earlier bytes, which these would overtake.
        if self._socket is not None and not (self._sending or self._encrypted) and link.outgoing_bytes:
            rest = send_nowait(self._socket, self._take_outgoing())
            if rest and self._layer is not None:
                self._encrypted = rest
                self._wake_sender()
            elif rest:
                link.put_back(rest)

    def _take_outgoing(self) -> bytes:
        self._hurries = False
        data = self.core.connection.data_to_send()
        if self._layer is not None:
            encrypted, self._encrypted = self._encrypted, b""
            data = encrypted + self._layer.encrypt(data)
        return data

    def _wake_sender(self) -> None:
        self._outgoing_since_s = self.now_s()
        self._outgoing.set()


class AsyncLine(DialLine[anyio.abc.ByteStream]):
    """A `dial.DialLine` of AnyIO."""

    @property
    def peer_host(self) -> str:
        try:
            return str(self.stream.extra(anyio.abc.SocketAttribute.remote_address)[0])
        except anyio.TypedAttributeLookupError as error:
            raise OSError("the connection has ended") from error

    def within(self, seconds: float) -> AbstractContextManager[object]:
        return anyio.fail_after(seconds)

    async def connect(self, host: str, port: int) -> None:
        if host == HOST:
            self._stream = MemoryStream(*open_pipes(port))
        else:
            self._stream = await anyio.connect_tcp(host, port)

    async def send(self, data: bytes) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.stream.send(data)

    async def receive(self) -> bytes:
        try:
            return await self.stream.receive(READ_BYTES_MAX)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""

    async def close(self) -> None:
        if self._stream is not None:
            await anyio.aclose_forcefully(self._stream)


class MemoryStream(anyio.abc.ByteStream):
    """A stream of AnyIO over two pipes. Only one task receives; it gets the bytes of one `Pipe.put` at a time."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._changed = anyio.Event()
        loop: Any = anyio.lowlevel.current_token().native_token
        self._soon: Callable[..., object] = getattr(loop, "run_sync_soon", None) or loop.call_soon_threadsafe
        incoming.wake = self._wake

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {anyio.abc.SocketAttribute.remote_address: lambda: ("127.0.0.1", 0)}

    async def receive(self, max_bytes: int = 0) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        if (data := self._incoming.take()) is not None:
            await anyio.lowlevel.cancel_shielded_checkpoint()
        while data is None:
            # The event is set in this thread only, so nothing is missed between these lines.
            self._changed = anyio.Event()
            await self._changed.wait()
            data = self._incoming.take()
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes | bytearray | memoryview) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        # A pipe takes everything at once. If this task waited here, each answer would cost one more turn of its loop.
        self._outgoing.put(item)

    async def send_eof(self) -> None:
        self._outgoing.end()

    async def aclose(self) -> None:
        self._outgoing.end()
        self._incoming.end()

    def _wake(self) -> None:
        # The event loop may have ended, and nobody receives.
        with suppress(RuntimeError):
            self._soon(lambda: self._changed.set())


@asynccontextmanager
async def background_tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Gives a task group for the `async with` block, and cancels its tasks when the block ends."""
    body_error: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except anyio.get_cancelled_exc_class():
            # The task group itself must see a cancellation.
            raise
        except BaseException as error:
            body_error = error
        finally:
            tasks.cancel_scope.cancel()
    # A task group alone would raise the block's error inside an exception group, which an `except ClientError` of the
    # caller does not catch.
    if body_error is not None:
        raise body_error
