"""The client without I/O: requests in, bytes out; bytes in, answered requests out.

One core serves one node over one connection at a time. It outlives connections: after `connected`, every stream in
use is created again (which tells its address anew), and what had no answer is sent once more, in order. It reads no
sockets, keeps no time and starts no tasks; the shells around it (`async_client`, and others) do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ockam.address import Address, Route, local
from ockam.errors import FrameTooLarge
from ockam.frames import FrameReader, FrameWriter
from ockam.message import HERE, Message
from ockam.protocol import ERROR, ProtocolError
from ockam.wire import Wire
from ockam.wire_head import HEAD
from stream_service.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    PushFailed,
    RequestRefused,
    UnexpectedAnswer,
)
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    PUSH,
    CreatePartitions,
    CreateStream,
    PullRequest,
    PushRequest,
    Status,
    StreamMessage,
)


class Waiting:
    """Something that has been asked for: `done` with an `error`, or done with a result. `on_done` is called once."""

    __slots__ = ("done", "error", "on_done")

    def __init__(self) -> None:
        self.done = False
        self.error: ClientError | None = None
        self.on_done: Callable[[], None] | None = None

    def finish(self, error: ClientError | None = None) -> None:
        if not self.done:
            self.done = True
            self.error = error
            if self.on_done is not None:
                self.on_done()


class Push(Waiting):
    """A message on its way; `index` is where it was stored, once done without an error."""

    __slots__ = ("data", "index")

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        self.index = -1


class Call(Waiting):
    """A request with its own return address; `answers` are the payloads that came, `wanted` of them."""

    __slots__ = ("address", "answers", "checks", "payload", "return_routes", "target", "wanted")

    def __init__(self, target: Route | Port, payload: bytes, wanted: int, address: Address) -> None:
        super().__init__()
        self.target = target
        self.payload = payload
        self.wanted = wanted
        self.address = address
        self.checks = 0
        self.answers: list[bytes] = []
        self.return_routes: list[Route] = []


class Port:
    """The client's end of one stream-partition: its route while connected, and the pushes without a confirm."""

    __slots__ = (
        "address",
        "create",
        "name",
        "next_request_id",
        "oldest_checked",
        "on_room",
        "partition",
        "pushes",
        "route",
    )

    def __init__(self, name: str, partition: int, create: bytes, address: Address) -> None:
        self.name = name
        self.partition = partition
        self.create = create
        self.address = address
        self.route: Route | None = None
        self.pushes: dict[int, Push] = {}
        self.next_request_id = 0
        self.oldest_checked = -1
        self.on_room: list[Callable[[], None]] = []

    def tell_room(self) -> None:
        """Pushes have been answered: call everybody who waits for that, once."""
        waiting, self.on_room = self.on_room, []
        for each in waiting:
            each()


class ClientCore:
    """See the module. `via`: the hops between the node connected to and the node that has the services.

    Invariant: `_ports` and `_calls` have everything that must be sent again after a new connection.
    """

    def __init__(self, *, via: Route = (), service: str = "stream_service") -> None:
        self._via = via
        self._service: Route = (*via, local(service))
        self._reader: FrameReader | None = None
        self._writer: FrameWriter | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._ports: dict[Address, Port] = {}
        self._calls: dict[Address, Call] = {}
        self._next_address = 0
        self._closed = False
        self.on_outgoing: Callable[[], None] = lambda: None

    @property
    def outgoing_bytes(self) -> int:
        """How much waits to be taken by `data_to_send`."""
        return self._outgoing_bytes

    def connected(self, wire: Wire = HEAD) -> None:
        """A new connection stands: say hello, create again what is in use, send again what had no answer."""
        self._reader, self._writer = FrameReader(wire, HERE), FrameWriter(wire)
        self._outgoing, self._outgoing_bytes = [], 0
        if wire.hello:
            self._put(wire.hello)
        for call in list(self._calls.values()):
            if not isinstance(call.target, Port):
                call.answers.clear()
                call.return_routes.clear()
                self._send(call.target, call.address, call.payload, call)
        for port in self._ports.values():
            self._send(self._service, port.address, port.create, None)

    def disconnected(self, *, for_good: bool = False) -> None:
        """The connection is gone. What waits is kept for the next one, or fails with ConnectionLost when for good."""
        self._reader = self._writer = None
        self._outgoing, self._outgoing_bytes = [], 0
        for port in self._ports.values():
            port.route = None
        if for_good:
            self._fail_all(ConnectionLost("the connection ended and is not made again"))

    def close(self) -> None:
        """The owner is done: everything that waits fails, and so does every later request."""
        self._closed = True
        self._fail_all(ClientClosed("the client has been closed"))

    def check_progress(self) -> None:
        """To be called at intervals: what has had no answer for a whole interval is asked again.

        A stream is created again first, since the way to it may be gone without this connection noticing (a node
        between us and the services was restarted).
        """
        if self._writer is None:
            return
        stalled = {port for port in self._ports.values() if _is_stalled(port)}
        for call in list(self._calls.values()):
            call.checks += 1
            if call.checks >= 2:
                if isinstance(call.target, Port):
                    stalled.add(call.target)
                elif not call.answers:
                    self._send(call.target, call.address, call.payload, call)
        for port in stalled:
            port.route = None
            self._send(self._service, port.address, port.create, None)

    def data_to_send(self) -> bytes:
        """All that waits to be sent; it is the caller's from now on."""
        data = b"".join(self._outgoing)
        self._outgoing, self._outgoing_bytes = [], 0
        return data

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the connection and finish what they answer. Raises RemoteProtocolError."""
        assert self._reader is not None, "bytes came without a connection"
        roomy: dict[Address, Port] = {}
        ports = self._ports
        for message in self._reader.feed(data):
            address = message.onward_route[0]
            port = ports.get(address)
            if port is None:
                self._answered(address, message)
            elif PUSH.is_in(message.payload):
                _confirm(port, message.payload)
                roomy[address] = port
            else:
                self._opened(port, message)
        for port in roomy.values():
            port.tell_room()

    def call(self, target: Route | Port, payload: bytes, wanted: int = 1) -> Call:
        """Ask a worker (a route from the connected node, or a stream) for something it answers `wanted` times."""
        self._check_open()
        call = Call(target, payload, wanted, self._new_address())
        self._calls[call.address] = call
        route = target.route if isinstance(target, Port) else target
        if route is not None:
            self._send(route, call.address, payload, call)
        return call

    def tell(self, service: str, payload: bytes) -> None:
        """Send a service something that it does not answer; lost where there is no connection just now."""
        self._check_open()
        self._send(self.route_to(service), self._new_address(), payload, None)

    def route_to(self, service: str) -> Route:
        """The route to a service of the node that this client is for."""
        return (*self._via, local(service))

    def forget(self, call: Call) -> None:
        """The caller has stopped waiting: an answer that still comes is dropped."""
        self._calls.pop(call.address, None)

    def create(self, name: str | None, partitions: int = 1) -> Call:
        """Ask the stream service for a stream; `partitions` answers come. 1 is asked by the plain protocol."""
        return self.call(self._service, _create_payload(name, partitions), partitions)

    def ports(self, created: Call) -> list[Port]:
        """The streams that a finished `create` has made, partition 0 first. Raises UnexpectedAnswer."""
        ports = []
        for payload, route in zip(created.answers, created.return_routes, strict=True):
            name, partition = _created(payload)
            port = Port(name, partition, _create_payload(name, partition + 1), self._new_address())
            port.route = route
            self._ports[port.address] = port
            ports.append(port)
        return sorted(ports, key=lambda port: port.partition)

    def push(self, port: Port, data: bytes) -> Push:
        """Send one message; it is sent again after every reconnect until its confirm comes."""
        self._check_open()
        push = Push(data)
        request_id = port.next_request_id
        port.next_request_id = request_id + 1
        port.pushes[request_id] = push
        if port.route is not None:
            self._send_push(port, port.route, request_id, push)
        return push

    def pull(self, port: Port, index: int, limit: int) -> Call:
        """Ask for up to `limit` messages from `index` on; `pulled` reads the answer."""
        return self.call(port, PULL.encode_request(PullRequest(0, index, limit)))

    def _send_push(self, port: Port, route: Route, request_id: int, push: Push) -> None:
        payload = PUSH.encode_request(PushRequest(request_id, push.data))

        def too_large(error: FrameTooLarge) -> None:
            del port.pushes[request_id]
            push.finish(RequestRefused(f"the message is too large to send: {error}"))

        self._write(Message((port.address, *route), (port.address,), payload), too_large)

    def _send(self, route: Route, address: Address, payload: bytes, call: Call | None) -> None:
        def too_large(error: FrameTooLarge) -> None:
            if call is not None:
                self._calls.pop(call.address, None)
                call.finish(RequestRefused(f"the request is too large to send: {error}"))

        self._write(Message((address, *route), (address,), payload), too_large)

    def _write(self, message: Message, too_large: Callable[[FrameTooLarge], None]) -> None:
        if self._writer is not None:
            for frame in self._writer.frames((message,), too_large):
                self._put(frame)

    def _put(self, data: bytes) -> None:
        self._outgoing.append(data)
        if not self._outgoing_bytes:
            self.on_outgoing()
        self._outgoing_bytes += len(data)

    def _opened(self, port: Port, message: Message) -> None:
        """The stream exists on this connection: send what it has not answered."""
        if ERROR.is_in(message.payload):
            error = _refusal(message.payload)
            for push in port.pushes.values():
                push.finish(error)
            port.pushes.clear()
            port.tell_room()
            return
        try:
            _, partition = _created(message.payload)
        except UnexpectedAnswer:
            return
        if partition != port.partition or port.route is not None:
            return
        port.route = message.return_route
        for request_id, push in list(port.pushes.items()):
            self._send_push(port, port.route, request_id, push)
        for call in list(self._calls.values()):
            if call.target is port:
                self._send(port.route, call.address, call.payload, call)

    def _answered(self, address: Address, message: Message) -> None:
        call = self._calls.get(address)
        if call is None:
            return
        if ERROR.is_in(message.payload):
            del self._calls[address]
            call.finish(_refusal(message.payload))
            return
        call.answers.append(message.payload)
        call.return_routes.append(message.return_route)
        if len(call.answers) >= call.wanted:
            del self._calls[address]
            call.finish()

    def _fail_all(self, error: ClientError) -> None:
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.finish(error)
        for port in self._ports.values():
            pushes, port.pushes = list(port.pushes.values()), {}
            for push in pushes:
                push.finish(error)
            port.tell_room()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client has been closed")

    def _new_address(self) -> Address:
        self._next_address += 1
        return local(f"c{self._next_address}")


def _is_stalled(port: Port) -> bool:
    """Whether the oldest push without a confirm is the same as at the check before."""
    oldest = next(iter(port.pushes), -1)
    stalled = oldest >= 0 and oldest == port.oldest_checked
    port.oldest_checked = oldest
    return stalled


def pulled(call: Call) -> Sequence[StreamMessage]:
    """The messages of a finished pull. Raises UnexpectedAnswer."""
    try:
        return PULL.decode_response(call.answers[0]).messages
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a pull: {error}") from error


def _confirm(port: Port, payload: bytes) -> None:
    try:
        confirm = PUSH.decode_response(payload)
    except ProtocolError:
        return
    push = port.pushes.pop(confirm.request_id, None)
    if push is None:
        return
    if confirm.status is Status.OK:
        push.index = confirm.index
        push.finish()
    else:
        push.finish(PushFailed("the node could not save the message; it has not been stored"))


def _create_payload(name: str | None, partitions: int) -> bytes:
    if partitions == 1:
        return CREATE.encode_request(CreateStream(name))
    return CREATE_PARTITIONED.encode_request(CreatePartitions(name, partitions))


def _created(payload: bytes) -> tuple[str, int]:
    """Name and partition of an Init. Raises UnexpectedAnswer."""
    try:
        if CREATE.is_in(payload):
            return CREATE.decode_response(payload).stream_name, 0
        answer = CREATE_PARTITIONED.decode_response(payload)
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a create: {error}") from error
    return answer.stream_name, answer.partition


def _refusal(payload: bytes) -> RequestRefused:
    try:
        return RequestRefused(ERROR.decode_response(payload).reason)
    except ProtocolError as error:
        return RequestRefused(f"an error that cannot be read: {error}")
