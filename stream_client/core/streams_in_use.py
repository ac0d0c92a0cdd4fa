"""StreamsInUse: the streams that a client uses. It finds the routes to their partitions, also after a reconnect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ockam.actors.address import Address, Route
from stream_client.arguments import encoded
from stream_client.core.calls import Call, Calls, answer_of
from stream_client.core.client_connection import ClientConnection
from stream_client.core.partition_handle import PartitionHandle, StreamInUse
from stream_client.core.payloads import create_payload, created
from stream_client.core.push_queue import PushQueue, SequencedPushQueue
from stream_client.core.pushes import Push
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.core.traced_queue import TracedPushQueue, TracedSequencedQueue
from stream_client.errors import ClientError, StreamNotFound, UnexpectedAnswer
from stream_service.extensions import BATCHED, LIST, ListRequest, StreamKey
from stream_service.names import stream_address

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing


class StreamsInUse:
    """The handles of the streams that the application uses, and the push queues of these handles.

    queues: the push queues, by the address to which the answers to their pushes are sent.
    service: the route to the stream service. `via` is this route without its last address, that of the service.
    tracing: makes a span of each push; None: pushes are not traced.
    on_made: called for an answer to a create; `ServiceRoute.made` explains its argument.

    Invariant: every queue of every handle in use is in `queues`. A handle has a route only while there is a connection.
    """

    def __init__(
        self,
        connection: ClientConnection,
        calls: Calls,
        service: Route,
        via: Route,
        new_address: Callable[[bytes], Address],
        tracing: Tracing | None,
        on_made: Callable[[bool], None],
    ) -> None:
        self.queues: dict[Address, PushQueue] = {}
        self._connection = connection
        self._calls = calls
        self._service = service
        self._via = via
        self._new_address = new_address
        self._tracing = tracing
        self._on_made = on_made
        self._streams: dict[str, StreamInUse] = {}
        self._asked: set[PartitionHandle] = set()

    def __iter__(self) -> Iterator[StreamInUse]:
        """Iterates over all streams in use. Streams can be dropped during the iteration."""
        return iter(list(self._streams.values()))

    def check(self) -> None:
        for name, stream in self._streams.items():
            assert stream.name == name
            assert stream.handles
            stream.check()
            for handle in stream.handles.values():
                assert handle.route is None or self._connection.wire is not None
                assert all(self.queues[queue.address] is queue for queue in handle.queues)
        for address, queue in self.queues.items():
            assert queue.address == address

    def create(self, name: str | None, partitions: int) -> Call:
        """Sends a request that creates a stream. Without a name, the node chooses one."""
        request = Call(self._service, create_payload(name, partitions), partitions, self._new_address(b""))
        request.when_done(lambda: self._created(request))
        self._calls.add(request)
        return request

    def handles(self, request: Call) -> list[PartitionHandle]:
        """Returns the partitions that a finished `create` request has created, in order. Raises UnexpectedAnswer."""
        if request.made is None:
            # The answers may come in any order, and each has the route to its partition.
            answers = [
                (*created(payload), route)
                for payload, route in zip(request.answers, request.return_routes, strict=True)
            ]
            routes = [(self._handle_of(name, partition), route) for name, partition, route in sorted(answers)]
            request.made = [handle for handle, _ in routes]
            # Only now does the client know the stream as its own, and may create it again after a reconnect.
            for stream in dict.fromkeys(handle.stream for handle in request.made):
                stream.creates = True
            self._found(routes)
        return request.made

    def find_handles(self, name: str, partitions: Sequence[int]) -> list[PartitionHandle]:
        """Returns the handles of existing partitions. Their addresses are computed from the stream's name."""
        # A handle of this client's own `create` waits for the answer: a real Ockam service chooses the address itself.
        handles = [self._handle_of(name, partition) for partition in partitions]
        unknown = [handle for handle in handles if handle.route is None and self._may_be_named(handle)]
        self._found([(handle, self._named_route(handle)) for handle in unknown])
        return handles

    def open_queue(self, handle: PartitionHandle, sequences: SequenceMachine | None) -> PushQueue:
        """Opens a push queue for one publisher. Raises StreamNotFound if the partition was deleted."""
        if handle.gone is not None:
            raise handle.gone.with_traceback(None)
        queue = self._add_queue(handle.name, handle.partition, [], sequences)
        handle.queues.append(queue)
        if handle.route is not None:
            queue.open(handle.route)
        return queue

    def close_queue(self, handle: PartitionHandle, queue: PushQueue) -> None:
        def drop() -> None:
            self.queues.pop(queue.address, None)
            if queue in handle.queues:
                handle.queues.remove(queue)

        queue.when_empty(drop)

    def drop(self, handle: PartitionHandle) -> None:
        """Records that a partition was deleted, and forgets its handle. Every request to the partition fails."""
        # Requests and queues fail before the stream is forgotten: none of them can be answered any more.
        error = not_there(handle)
        handle.drop(error)
        self._fail_calls(lambda target: target is handle, error)
        for queue in handle.queues:
            self.queues.pop(queue.address, None)
        # The stream is dropped with its last partition, so that the client does not create it again after a reconnect.
        # If the same handle is dropped twice, the partition may have got a new handle meanwhile, which must stay.
        stream = handle.stream
        if stream.handles.get(handle.partition) is not handle:
            return
        del stream.handles[handle.partition]
        if not stream.handles:
            del self._streams[stream.name]
            if stream.forget_create is not None:
                stream.forget_create()

    def close_all(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def find(self, stream: StreamInUse) -> None:
        """Finds the routes to the partitions of a stream whose routes are unknown."""
        # One request covers all partitions. If such a request is unanswered, its answer will contain the routes.
        if stream.forget_create is not None:
            return
        # The stream is created again only if pushes wait for it, or if its address cannot be computed from its name.
        named = [(handle, self._named_route(handle)) for handle in stream.handles.values()]
        is_named = all(handle.last_route == route for handle, route in named)
        if not stream.creates or (not stream.unconfirmed and is_named):
            self._found(named)
            return
        # All partitions up to the highest one in use are created, so that each handle gets a route.
        payload = create_payload(stream.name, stream.partitions)
        request = Call(self._service, payload, stream.partitions, self._new_address(b""))
        stream.forget_create = partial(self._calls.forget, request)
        request.when_done(lambda: self._created_again(stream, request))
        self._calls.add(request)

    def ask_existence(self, handle: PartitionHandle) -> None:
        """Asks the service whether this partition exists, and drops it if not. Safe to repeat.

        A node silently drops messages to an unused address, such as that of a deleted partition. So silence proves
        nothing, and the question is a `node/stream_list/1`. The error of a service without this protocol is ignored.
        """
        if handle in self._asked:
            return
        self._asked.add(handle)
        after = StreamKey(handle.name, handle.partition - 1) if handle.partition else None
        request = encoded(LIST, ListRequest(0, handle.name, after, 1))
        call = Call(self._service, request, 1, self._new_address(b""))
        call.when_done(lambda: self._listed(handle, call))
        self._calls.add(call)

    def _created(self, request: Call) -> None:
        """Makes handles of created partitions before the program asks for them, so a reconnect finds their routes."""
        if request.error is None:
            try:
                self._report_made(self.handles(request))
            except UnexpectedAnswer as error:
                request.error = error

    def _report_made(self, handles: Sequence[PartitionHandle]) -> None:
        named = (self._named_route(handle)[-1:] == (handle.last_route or ())[-1:] for handle in handles)
        self._on_made(all(named))

    def _listed(self, handle: PartitionHandle, call: Call) -> None:
        """Takes the answer to the question of `ask_existence`."""
        self._asked.discard(handle)
        if call.error is not None:
            return
        try:
            listed = answer_of(call, LIST).streams
        except UnexpectedAnswer:
            return
        is_there = any((info.stream_name, info.partition) == (handle.name, handle.partition) for info in listed)
        if is_there or handle.gone is not None:
            return
        # A push can create this client's own streams again, so only the requests to the partition fail. The partition
        # of any other stream is dropped.
        if handle.stream.creates:
            self._fail_calls(lambda target: target is handle, not_there(handle))
        else:
            self.drop(handle)

    def _fail_calls(self, concerns: Callable[[Route | PartitionHandle], bool], error: ClientError) -> None:
        for call in self._calls:
            if concerns(call.target):
                self._calls.finish(call, error)

    def _created_again(self, stream: StreamInUse, request: Call) -> None:
        stream.forget_create = None
        error = request.error
        routes = []
        try:
            # Each answer names its partition. The program may have dropped one of them meanwhile.
            for payload, route in zip(request.answers, request.return_routes, strict=True):
                handle = stream.handles.get(created(payload)[1])
                if handle is not None:
                    routes.append((handle, route))
        except UnexpectedAnswer as unexpected:
            error = unexpected
        if error is None:
            self._found(routes)
            self._report_made([handle for handle, _ in routes])
            return
        # Without the stream, the requests that wait for it can never be sent.
        for handle in stream.handles.values():
            for queue in list(handle.queues):
                queue.fail_all(error)
        self._fail_calls(lambda target: isinstance(target, PartitionHandle) and target.stream is stream, error)

    def _found(self, routes: Sequence[tuple[PartitionHandle, Route]]) -> None:
        """Records the found routes to these partitions, and sends the unanswered requests and pushes over them."""
        if self._connection.wire is None:
            return
        # A route that is already in use is skipped, since requests sent over it once would be sent twice.
        opened = {handle: route for handle, route in routes if handle.route != route}
        for handle, route in opened.items():
            handle.open(route)
        # The queues have sent their pushes with `open`. The other requests to these partitions follow.
        for call in self._calls if opened else ():
            if isinstance(call.target, PartitionHandle) and call.target in opened:
                self._calls.send_again(call, opened[call.target])

    def _handle_of(self, name: str, partition: int) -> PartitionHandle:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = StreamInUse(name)
        handle = stream.handles.get(partition)
        if handle is None:
            queue = self._add_queue(name, partition, None, None)
            handle = stream.handles[partition] = PartitionHandle(stream, partition, queue)
        return handle

    def _add_queue(
        self, name: str, partition: int, failed: list[Push] | None, sequences: SequenceMachine | None
    ) -> PushQueue:
        """Makes a queue and adds it to `queues`. failed: collects the failed pushes of a publisher; None: they are not
        collected. sequences: numbers the messages; None: they have no numbers."""
        address = self._new_address(BATCHED)
        common = self._connection, address, partition, failed
        queue: PushQueue
        if self._tracing is not None:
            traced = TracedPushQueue(*common) if sequences is None else TracedSequencedQueue(*common, sequences)
            traced.trace(self._tracing, name)
            queue = traced
        else:
            queue = PushQueue(*common) if sequences is None else SequencedPushQueue(*common, sequences)
        self.queues[address] = queue
        return queue

    def _may_be_named(self, handle: PartitionHandle) -> bool:
        """Whether the route to a partition may be computed from its name: if this client has not made the stream, or if
        the partition was added later. While a create is unanswered, the answer will have the route."""
        is_added = handle.last_route is None and handle.stream.forget_create is None
        return not handle.stream.creates or is_added

    def _named_route(self, handle: PartitionHandle) -> Route:
        return (*self._via, stream_address(handle.name, handle.partition))


def not_there(handle: PartitionHandle) -> StreamNotFound:
    return StreamNotFound(
        f"the node has no partition {handle.partition} of {handle.name!r} any more: it has been deleted"
    )
