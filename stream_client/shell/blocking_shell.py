"""BlockingShell: the I/O of one client in a program without an event loop. It has one plain socket and no threads.

The client sends and receives only inside the program's calls. A call waits in short slices, so that a signal (Ctrl-C)
takes effect soon on every system. If an exception interrupts the sending or receiving of bytes, the connection is lost.
The client then connects again and repeats its unanswered requests.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

from ockam.actors.address import split_host_port
from ockam.errors import RemoteProtocolError
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
    BaseShell,
    ShellSettings,
    connect_timeout_s,
)
from stream_client.shell.contact import PROBE_AFTER_S, identify, no_contact
from stream_client.shell.dial import Dialled, DialLine, dial, error_of, run_now
from stream_client.shell.in_memory import HOST, MemorySelector, MemorySocket, open_pipes
from stream_client.stopping import WHOLE

T = TypeVar("T")

AnySocket: TypeAlias = socket.socket | MemorySocket

SLICE_S = 0.2
"""The longest single wait for the socket, in seconds. Some systems handle signals only between two waits."""
LAG_S = 0.005
"""After this many seconds without an exchange of bytes, `send_lagging` sends the bytes that wait to be sent."""


class BlockingShell(BaseShell):
    """Does the I/O of one client inside the program's calls, for one thread at a time. Its coroutines never suspend."""

    is_blocking = True

    def __init__(self, core: ClientCore, settings: ShellSettings) -> None:
        super().__init__(core, settings)
        self._wait_until_s = math.inf
        self._holds = False
        self._dial_at_s = 0.0
        self._socket: AnySocket | None = None
        # Neither selector has a file descriptor, so that a client needs one descriptor only, for its socket.
        self._selector: selectors.BaseSelector
        if split_host_port(settings.address)[0] == HOST:
            self._selector = MemorySelector()
        else:
            self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._unsent = memoryview(b"")
        self._received_before = 0
        self._check_at_s = 0.0
        self._turned_at_s = 0.0
        self._turning = threading.Lock()
        self._waited_s = 0.0
        self._identified = False
        core.connection.on_outgoing = self._note_outgoing
        self._watch_forks()

    @asynccontextmanager
    async def opened(self, waits: bool) -> AsyncIterator[None]:
        self.open(waits)
        try:
            # A failure of the handshake ends the client, and every request says why.
            if waits and self.core.connection.is_encrypted:
                with suppress(ClientError):
                    await self.wait(self.core.connection.attempted(), CONNECT_TIMEOUT_S)
            yield
        finally:
            self.close()

    def open(self, waits: bool = True) -> None:
        """Makes the first connection, or leaves it to the first call that waits. Raises NodeUnreachable."""
        if waits:
            self._adopt(self._dial())
        self._check_at_s = self.now_s() + CHECK_INTERVAL_S

    def close(self) -> None:
        """Sends the waiting bytes, for at most LAST_WORDS_S seconds, and ends the client. Safe to repeat."""
        try:
            link, give_up_s = self.core.connection, self.now_s() + LAST_WORDS_S
            while self._socket is not None and (self._unsent or link.outgoing_bytes) and self.now_s() < give_up_s:
                self._turn(SLICE_S)
        finally:
            self._drop_socket()
            self.core.close()
            self._selector.close()

    async def wait(self, waiting: PendingResult, timeout_s: float | None = None, *, gathers: bool = False) -> None:
        self._holds = gathers
        self._wait_until_s = give_up_s = math.inf if timeout_s is None else self.now_s() + timeout_s
        try:
            while not waiting.done and (left_s := give_up_s - self.now_s()) > 0:
                self._turn(min(left_s, SLICE_S))
        finally:
            self._holds = False
            self._wait_until_s = math.inf

    def forked(self, error: ClientForked) -> None:
        self.core.connection.close(error)
        self._drop_socket()
        # Another thread of the parent may have been inside a call.
        self._turning = threading.Lock()

    async def yield_control(self) -> None:
        self._turn(0.0)

    def exchange_nowait(self) -> None:
        self._turn(0.0)

    def send_lagging(self) -> None:
        """Exchanges bytes and runs the timers that are due, if the client has not done so for LAG_S seconds, or for
        GATHER_S while pushes are gathered."""
        if self.now_s() - self._turned_at_s > LAG_S and not self.gathers():
            self._turn(0.0)

    async def iterated(self, following: Callable[[], Coroutine[Any, Any, T | None]]) -> Iterable[T]:
        return iter(lambda: run_now(following()), None)

    @staticmethod
    async def run_blocking(function: Callable[[], None]) -> None:
        function()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        self.core.connection.check_open()
        return self._add_timer(self.now_s() + delay_s, callback).cancel

    def _turn(self, wait_s: float) -> None:
        """Sends and receives as many bytes as the socket allows within `wait_s` seconds, then runs the timers that are
        due. Without a connection, tries to connect instead. Raises the error that ended the client."""
        # A second thread or a signal handler would find the socket and the core in the middle of a change.
        if not self._turning.acquire(blocking=False):
            raise RuntimeError("a blocking client is for one thread at a time")
        try:
            self.core.connection.check_open()
            # A timer (for example to renew a lease) must run on time and not wait for the socket.
            if self._timers:
                wait_s = max(0.0, min(wait_s, self._timers_due_s - self.now_s()))
            began_s = self.now_s()
            if self._socket is not None:
                self._exchange(self._socket, wait_s)
            else:
                self._dial_again(wait_s)
            self._turned_at_s = self.now_s()
            # Until the service's first answer, the address may belong to a server of another kind.
            if not self.core.service_route.reached:
                self._doubt(self._turned_at_s - began_s)
            now_s = self.now_s()
            while (timer := self._pop_timer(now_s)) is not None:
                timer.run()
            if now_s >= self._check_at_s:
                self._check_at_s = now_s + CHECK_INTERVAL_S
                if self._check_progress(is_connected=self._socket is not None):
                    self._lost(None)
        finally:
            self._turning.release()

    def _doubt(self, waited_s: float) -> None:
        """Ends the client if the server is not a stream node, or if the stream service does not answer in time."""
        # Only the time that the program waits counts, because the client reads nothing between the program's calls.
        self._waited_s += waited_s
        # `identify` is called once: it blocks, and a second time it would find the same.
        if (
            self._settings.tls is None
            and not (self._identified or self.core.connection.received_bytes)
            and self._waited_s >= PROBE_AFTER_S
        ):
            self._identified = True
            what = identify(self._address)
            if what is not None:
                self.core.close(not_a_stream_node(self._address, what))
        if self._settings.contact_timeout_s is not None and self._waited_s >= self._settings.contact_timeout_s:
            self.core.close(no_contact(self._address, self.core))

    def _exchange(self, connection: AnySocket, wait_s: float) -> None:
        """Sends the waiting bytes. If there are none, or if the socket does not take all of them, waits for the socket
        for at most `wait_s` seconds, then sends and receives once. An exception meanwhile drops the connection."""
        whole = False
        fault: ClientError | None = None
        try:
            # While a publisher waits for an answer that will come, later pushes may join many small batches.
            if self._holds and self.gathers():
                wait_s = min(wait_s, self._outgoing_since_s + GATHER_S - self.now_s())
            elif not self._unsent:
                data = self.core.connection.data_to_send()
                self._unsent = memoryview(data if self._layer is None else self._layer.encrypt(data))
            # A socket nearly always takes everything at once. Then the caller checks whether it must wait at all.
            if self._unsent:
                with WHOLE:
                    whole = self._send(connection)
                if whole:
                    return
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(connection, events)
            # An exception of a signal handler during this wait interrupts no frame, so the connection can still be
            # used.
            whole = True
            ready = sum(mask for _, mask in self._selector.select(wait_s))
            whole = False
            # A signal that raises here would cut a frame. `WHOLE` delays its exception to the end of the exchange.
            with WHOLE:
                if ready & selectors.EVENT_WRITE:
                    self._send(connection)
                whole = not ready & selectors.EVENT_READ or self._receive(connection)
        except (BlockingIOError, InterruptedError):
            whole = True
        except RemoteProtocolError as error:
            fault = error_of(self._address, error)
        except OSError:
            whole = False
        finally:
            if not whole:
                # If a server ends a connection without a byte, `_doubt` examines the server at once.
                self._waited_s = max(self._waited_s, PROBE_AFTER_S)
                self._lost(fault)

    def _send(self, connection: AnySocket) -> bool:
        try:
            self._unsent = self._unsent[connection.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        return not self._unsent

    def _receive(self, connection: AnySocket) -> bool:
        """Receives the bytes that have arrived. Returns False if the other side has ended the connection."""
        data = connection.recv(READ_BYTES_MAX)
        layer = self._layer
        is_open = bool(data)
        if layer is not None and data:
            data = layer.decrypt(data)
            is_open = not layer.ended
        if data:
            self.core.receive_data(data)
        return is_open

    def _note_outgoing(self) -> None:
        self._outgoing_since_s = self.now_s()

    def _lost(self, fault: ClientError | None) -> None:
        self._drop_socket()
        backoff = self._connection_ended(fault, self._received_before)
        if backoff is not None:
            self._dial_at_s = self.now_s() + backoff.next_delay_s()

    def _dial_again(self, wait_s: float) -> None:
        """Waits at most `wait_s` seconds for the time of the next attempt, and then connects if it has come."""
        assert self._backoff is not None, "a connection is wanted that is not to be made again"
        pause_s = min(wait_s, self._dial_at_s - self.now_s())
        if pause_s > 0:
            threading.Event().wait(pause_s)
        if self.now_s() < self._dial_at_s:
            return
        try:
            dialled = self._dial()
        except NodeUnreachable as error:
            self._attempt_failed(self._backoff, error)
            self._dial_at_s = self.now_s() + self._backoff.next_delay_s()
        except AuthenticationFailed as error:
            # The same token would be refused again and again.
            self.core.close(error)
        else:
            self._adopt(dialled)

    def _dial(self) -> Dialled[AnySocket]:
        # Nothing else happens meanwhile. So no step takes longer than the program waits, or than the next timer is
        # away, but CONNECT_TIMEOUT_S_MIN is always allowed.
        until_s = min(self._wait_until_s, self._timers_due_s)
        timeout_s = min(connect_timeout_s(self._settings.contact_timeout_s), connect_timeout_s(until_s - self.now_s()))
        how = (self._settings.framing, self._auto_wait_s, self._settings.tls, self._settings.token)
        return run_now(dial(SocketLine(), self._address, *how, timeout_s=timeout_s))

    def _adopt(self, dialled: Dialled[AnySocket]) -> None:
        """Hands a new connection to the core, which sends everything over it from now on."""
        self._socket, self._layer = dialled.stream, dialled.tls
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._received_before = self.core.connection.received_bytes
        self.core.connected(dialled.wire, greeted=bool(dialled.received))
        try:
            if dialled.received:
                self.core.receive_data(dialled.received)
        except RemoteProtocolError as error:
            self._lost(error_of(self._address, error))

    def _drop_socket(self) -> None:
        connection, self._socket = self._socket, None
        self._layer = None
        self._unsent = memoryview(b"")
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


WAIT_S_MIN = 0.001
"""The shortest time-out that a socket gets, in seconds. With the time-out 0, it would not block at all."""


class SocketLine(DialLine[AnySocket]):
    """A `dial.DialLine` of a plain socket. Its coroutines wait for the socket, and never suspend."""

    _until_s = 0.0

    @property
    def peer_host(self) -> str:
        return str(self.stream.getpeername()[0])

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        self._until_s = time.monotonic() + seconds
        yield

    def _left_s(self) -> float:
        return max(WAIT_S_MIN, self._until_s - time.monotonic())

    async def connect(self, host: str, port: int) -> None:
        if host == HOST:
            self._stream = MemorySocket(*open_pipes(port))
            return
        self._stream = connection = socket.create_connection((host, port), self._left_s())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, data: bytes) -> None:
        self.stream.settimeout(self._left_s())
        try:
            self.stream.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            # `receive` shows that the other side has gone.
            return

    async def receive(self) -> bytes:
        self.stream.settimeout(self._left_s())
        try:
            return self.stream.recv(READ_BYTES_MAX)
        except TimeoutError:
            raise
        except OSError:
            return b""

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
