"""The client without I/O: requests in, bytes out; bytes in, answered requests out.

One core serves one node over one connection at a time. It outlives connections: after `connected`, every stream in
use is created again (which tells its address anew), and what had no answer is sent once more, in order. It reads no
sockets, keeps no time and starts no tasks; the shells around it (`shell.async_shell`, `shell.blocking_shell`) do.
"""

from __future__ import annotations

from collections.abc import Sequence

from ockam.address import Address, Route, local
from ockam.frames import BadFrame
from ockam.message import Message
from ockam.wire import Wire
from ockam.wire_head import HEAD
from stream_client.arguments import encoded
from stream_client.core.calls import Calls
from stream_client.core.client_connection import ClientConnection
from stream_client.core.existence import Existence, not_there
from stream_client.core.partition_handle import PartitionHandle, StreamInUse
from stream_client.core.payloads import create_payload, created
from stream_client.core.push_queue import PushQueue, SequencedPushQueue
from stream_client.core.requests import PATIENCE_CHECKS, Call, Create, Push
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.core.service_route import INDEX_SERVICE, STREAM_SERVICE, ServiceRoute, index_service_of
from stream_client.core.statistics import CoreStatistics
from stream_client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    RouteLost,
    RouteRefused,
    UnexpectedAnswer,
)
from stream_service.extensions import TOLD
from stream_service.names import stream_address
from stream_service.protocol import PULL, PullRequest

SILENT_CHECKS_MAX = 8
"""A connection that has brought nothing for so many checks, while something was waited for, is taken for dead."""


class ClientCore:
    """See the module. `via`: the hops between the node connected to and the node that has the services.

    service, index_service: what these are called there; an index service that is not named is called as the stream
    service is, with `_index` in it. asks_route: whether every connection begins with a question to the service.
    Invariant: `_streams` and `_calls` have everything that must be sent again after a new connection; every queue of
    every handle is in `_queues` under its address.
    """

    def __init__(
        self,
        *,
        via: Route = (),
        service: str = STREAM_SERVICE,
        index_service: str | None = None,
        asks_route: bool = False,
    ) -> None:
        self.connection = ClientConnection()
        self._via = via
        self._names = {STREAM_SERVICE: service, INDEX_SERVICE: index_service or index_service_of(service)}
        self._service: Route = self.route_to(STREAM_SERVICE)
        self.asks_route = asks_route or bool(via)
        self._streams: dict[str, StreamInUse] = {}
        self._queues: dict[Address, PushQueue] = {}
        self._calls = Calls(self.connection, self._new_address, self._route_lost)
        self.service_route = ServiceRoute(
            self._calls, self._service, self._new_address, self._route_refused, self.send_again
        )
        self._existence = Existence(self._calls, self._service, self._new_address, self._missing)
        self._next_address = 0
        self._silent_checks = 0
        self._connections = 0

    @property
    def service_name(self) -> str:
        """What the stream service is called at the node."""
        return self._names[STREAM_SERVICE]

    def statistics(self) -> CoreStatistics:
        return CoreStatistics(
            connections=self._connections,
            unconfirmed=sum(len(queue.pushes) for queue in self._queues.values()),
            unanswered=len(self._calls),
            sent_again=sum(queue.sent_again for queue in self._queues.values()),
            sent_bytes=self.connection.sent_bytes,
            received_bytes=self.connection.received_bytes,
        )

    def connected(self, wire: Wire = HEAD, *, greeted: bool = False) -> None:
        """A new connection stands: say hello, create again what is in use, send again what had no answer.

        greeted: the hello has been sent.
        """
        self.connection.connected(wire, greeted=greeted)
        self._silent_checks = 0
        self._connections += 1
        self.service_route.connected()
        self.send_again()
        if self.asks_route and not self.service_route.is_asking:
            self.service_route.ask()

    def send_again(self) -> None:
        """There is a way again: ask again what has no answer, and find the streams in use, which have been closed."""
        for call in self._calls:
            if not isinstance(call.target, PartitionHandle):
                self._calls.send_again(call, call.target)
        for stream in list(self._streams.values()):
            self._open(stream)

    def disconnected(self, error: ClientError | None = None) -> None:
        """The connection is gone. What waits is kept for the next one, or fails with `error`."""
        self.connection.disconnected()
        for stream in self._streams.values():
            stream.close()
        self.service_route.gone(error or ConnectionLost("the connection ended"))
        if error is not None:
            self.fail_all(error)

    def fail_all(self, error: ClientError) -> None:
        """Everything that waits fails; streams stay in use."""
        for call in self._calls:
            self._calls.finish(call, error)
        for queue in list(self._queues.values()):
            queue.fail_all(error)

    def close(self, error: ClientError | None = None) -> None:
        """The owner is done, or no connection is made again: all that waits fails, and so does every later request."""
        self.connection.closed = error or ClientClosed("the client has been closed")
        self.connection.disconnected()
        self.fail_all(self.connection.closed)

    def data_to_send(self) -> bytes:
        """All that waits to be sent; it is the caller's from now on."""
        return self.connection.data_to_send()

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the connection and finish what they answer. Raises RemoteProtocolError; then drop it."""
        self._silent_checks = 0
        try:
            messages = self.connection.messages(data)
        except BadFrame as error:
            self._take(error.messages)
            raise
        self._take(messages)

    def check_progress(self) -> bool:
        """To be called at intervals: what has had no answer for a whole interval or more is asked again.

        A stream is created again first, since the way to it may be gone without this connection noticing (a node
        between us and the services was restarted, or the stream was deleted). The stream itself answers that, behind
        the pushes it has: a slow node does not get them twice. Whether it exists still is asked as well, but where
        only pushes wait for a stream that this client makes. True where the connection is to be given up, since
        nothing has come over it for long.
        """
        if self.connection.wire is None:
            return False
        if self.service_route.is_lost:
            self.service_route.ask()
        else:
            self._ask_again()
        waits = bool(self._calls) or any(queue.pushes for queue in self._queues.values())
        self._silent_checks = self._silent_checks + 1 if waits else 0
        return self._silent_checks >= SILENT_CHECKS_MAX

    def _ask_again(self) -> None:
        stalled = {stream for stream in self._streams.values() if stream.is_stalled()}
        doubted = {handle for stream in stalled if not stream.creates for handle in stream.handles.values()}
        for call in self._calls:
            call.checks += 1
            if call.checks >= call.patience:
                if isinstance(call.target, PartitionHandle):
                    stalled.add(call.target.stream)
                    doubted.add(call.target)
                else:
                    self._calls.send_again(call, call.target)
        for handle in doubted:
            self._existence.ask(handle)
        for stream in stalled:
            stream.close()
            self._open(stream)
        if stalled and self._via:
            self.service_route.ask()

    def call(
        self, target: Route | PartitionHandle, payload: bytes, wanted: int = 1, patience: int = PATIENCE_CHECKS
    ) -> Call:
        """Ask a worker (a route from the connected node, or a stream) for something it answers `wanted` times."""
        self.connection.check_open()
        if isinstance(target, PartitionHandle) and target.gone is not None:
            raise target.gone
        call = Call(target, payload, wanted, self._new_address(), patience)
        self._calls.add(call)
        return call

    def tell(self, service: str, payload: bytes) -> None:
        """Send a service something that it does not answer; lost where there is no connection just now."""
        self.connection.check_open()
        header = self.connection.header(self.route_to(service), self._new_address())
        if header:
            error = self.connection.put_frame(header, payload)
            if error is not None:
                raise error

    def route_to(self, service: str) -> Route:
        """The route to a service of the node that this client is for."""
        return (*self._via, local(self._names.get(service, service)))

    def forget(self, call: Call) -> None:
        """The caller has stopped waiting: an answer that still comes is dropped."""
        self._calls.forget(call)

    def create(self, name: str | None, partitions: int = 1) -> Create:
        """Ask the stream service for a stream; `partitions` answers come. 1 is asked by the plain protocol."""
        self.connection.check_open()
        call = Create(self._service, create_payload(name, partitions), partitions, self._new_address())
        call.when_done(lambda: self._created(call))
        self._calls.add(call)
        return call

    def handles(self, call: Create) -> list[PartitionHandle]:
        """The streams that a finished `create` has made, partition 0 first. Raises UnexpectedAnswer."""
        if call.made is None:
            inits = [
                (*created(payload), route) for payload, route in zip(call.answers, call.return_routes, strict=True)
            ]
            ways = [(self._handle_of(name, partition), route) for name, partition, route in sorted(inits)]
            call.made = [handle for handle, _ in ways]
            for handle in call.made:
                handle.stream.creates = True
            self._open_handles(ways)
        return call.made

    def find_handles(self, name: str, partitions: Sequence[int]) -> list[PartitionHandle]:
        """Partitions that are known to exist, by their names alone (`names.stream_address`); nothing is created."""
        self.connection.check_open()
        handles = [self._handle_of(name, partition) for partition in partitions]
        self._open_handles(
            [(handle, self._named_route(handle)) for handle in handles if not (handle.route or handle.stream.creates)]
        )
        return handles

    def drop(self, handle: PartitionHandle) -> None:
        """The stream-partition has been deleted: it is not created again, and all that is asked of it fails."""
        error = not_there(handle)
        handle.drop(error)
        self._fail_calls(handle, error)
        for queue in handle.queues:
            self._queues.pop(queue.address, None)
        if handle.stream.handles.pop(handle.partition, None) is not None and not handle.stream.handles:
            del self._streams[handle.name]
            if handle.stream.opening is not None:
                self._calls.forget(handle.stream.opening)

    def open_queue(self, handle: PartitionHandle, sequences: SequenceMachine | None = None) -> PushQueue:
        """A push queue for one publisher, to be ended by `close_queue`. sequences: has each message stored once."""
        self.connection.check_open()
        address, failed = self._new_address(TOLD), list[Push]()
        queue = PushQueue(self.connection, address, handle.partition, failed)
        if handle.gone is not None:
            raise handle.gone
        if sequences is not None:
            queue = SequencedPushQueue(self.connection, address, handle.partition, failed, sequences)
        self._queues[address] = queue
        handle.queues.append(queue)
        if handle.route is not None:
            queue.open(handle.route)
        return queue

    def close_queue(self, handle: PartitionHandle, queue: PushQueue) -> None:
        """No more will be pushed along it; it goes when what it has is answered."""
        queue.when_empty(lambda: self._drop_queue(handle, queue))

    def push(self, handle: PartitionHandle, data: bytes) -> Push:
        """Send one message; it is sent again after every reconnect until its confirm comes."""
        return handle.queue.push(data)

    def pull(self, handle: PartitionHandle, index: int, limit: int) -> Call:
        """Ask for up to `limit` messages from `index` on; `payloads.pulled` reads the answer."""
        return self.call(handle, encoded(PULL, PullRequest(0, index, limit)))

    def _take(self, messages: Sequence[Message]) -> None:
        """Hand each message to whom it is for. Confirms come in runs for one queue."""
        if messages and not self._via:
            self.service_route.reached = True
        answered: dict[PushQueue, None] = {}
        route: Route | None = None
        queue: PushQueue | None = None
        for message in messages:
            if message.onward_route is not route:
                route = message.onward_route
                queue = self._queues.get(route[0])
                if queue is not None:
                    answered[queue] = None
            if queue is not None:
                queue.take(message.payload)
            else:
                self._calls.take(message)
        for queue in answered:
            queue.settle()

    def _created(self, call: Create) -> None:
        """Take the streams into use before their creator does, so that no reconnect comes between."""
        if call.error is None:
            try:
                self.handles(call)
            except UnexpectedAnswer as error:
                call.error = error

    def _route_lost(self, error: RouteLost) -> bool:
        """Send nothing along a way that is gone: what went before it is back would be sent a second time behind it."""
        kept = self.service_route.lost(error)
        if kept:
            for stream in self._streams.values():
                stream.close()
        return kept

    def _route_refused(self, error: RouteRefused) -> None:
        """Where the service was never reached, it never will be; else a node on the way has come back less open."""
        if self.service_route.reached:
            self.fail_all(error)
        else:
            self.close(error)

    def _missing(self, handle: PartitionHandle) -> None:
        """It has been deleted. Only pushes make again what this client once made; who reads must not."""
        if handle.gone is not None:
            return
        if handle.stream.creates:
            self._fail_calls(handle, not_there(handle))
        else:
            self.drop(handle)

    def _fail_calls(self, handle: PartitionHandle, error: ClientError) -> None:
        for call in self._calls:
            if call.target is handle:
                self._calls.finish(call, error)

    def _open(self, stream: StreamInUse) -> None:
        """Find the way to each handle of a stream again: by its name, or by creating the stream.

        It is created where pushes wait for it, or its node has given it another address than its name says.
        """
        if not stream.creates or (stream.opening is None and not stream.unconfirmed and self._is_named(stream)):
            self._open_handles([(handle, self._named_route(handle)) for handle in stream.handles.values()])
        elif stream.opening is None:
            call = Call(
                self._service, create_payload(stream.name, stream.partitions), stream.partitions, self._new_address()
            )
            stream.opening = call
            call.when_done(lambda: self._opened(stream, call))
            self._calls.add(call)

    def _opened(self, stream: StreamInUse, call: Call) -> None:
        stream.opening = None
        error = call.error
        ways = []
        try:
            for payload, route in zip(call.answers, call.return_routes, strict=True):
                handle = stream.handles.get(created(payload)[1])
                if handle is not None:
                    ways.append((handle, route))
        except UnexpectedAnswer as unexpected:
            error = unexpected
        if error is None:
            self._open_handles(ways)
            return
        stream.fail_pushes(error)
        for each in self._calls:
            if isinstance(each.target, PartitionHandle) and each.target.stream is stream:
                self._calls.finish(each, error)

    def _open_handles(self, ways: Sequence[tuple[PartitionHandle, Route]]) -> None:
        """There are these ways: send along each what has no answer, unless it was the way already."""
        if self.connection.wire is None:
            return
        opened = {handle: route for handle, route in ways if handle.route != route}
        for handle, route in opened.items():
            handle.open(route)
        for call in self._calls if opened else ():
            if isinstance(call.target, PartitionHandle) and call.target in opened:
                self._calls.send(call, opened[call.target])

    def _handle_of(self, name: str, partition: int) -> PartitionHandle:
        """The handle of that stream-partition, made if it is not in use."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = StreamInUse(name)
        handle = stream.handles.get(partition)
        if handle is None:
            queue = PushQueue(self.connection, self._new_address(TOLD), partition)
            self._queues[queue.address] = queue
            handle = stream.handles[partition] = PartitionHandle(stream, partition, queue)
        return handle

    def _drop_queue(self, handle: PartitionHandle, queue: PushQueue) -> None:
        self._queues.pop(queue.address, None)
        if queue in handle.queues:
            handle.queues.remove(queue)

    def _is_named(self, stream: StreamInUse) -> bool:
        """Whether every handle was last at the address that its name says."""
        return all(handle.last_route == self._named_route(handle) for handle in stream.handles.values())

    def _named_route(self, handle: PartitionHandle) -> Route:
        return (*self._via, stream_address(handle.name, handle.partition))

    def _new_address(self, prefix: bytes = b"") -> Address:
        """An address that nothing else of this client has. prefix: see `extensions.TOLD`."""
        self._next_address += 1
        return local(f"{prefix.decode()}c{self._next_address}")
