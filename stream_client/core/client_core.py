"""The client without I/O: bytes in, answered requests and messages out; requests in, bytes out.

One core serves one node, over one connection at a time. It outlives connections: after `connected`, the route to every
stream in use is found again, and everything without an answer is sent once more, in order. It reads no sockets, keeps
no time and starts no tasks; the shells around it do. What they call:

    connected, disconnected     there is a connection, or none any more
    unreachable                 an attempt to make one has failed
    receive_data, data_to_send  its bytes
    check_progress              at intervals: ask again for what stays unanswered
    fail_all, close             nobody should wait any longer; the client ends

The states of everything in here, and what each of these calls changes in them, are the table in `states_machine`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ockam.address import Address, Route, local
from ockam.frames import BadFrame
from ockam.message import Message
from ockam.protocol import ERROR
from ockam.wire import Wire
from ockam.wire_head import HEAD
from stream_client.arguments import encoded
from stream_client.core.calls import Calls
from stream_client.core.client_connection import ClientConnection
from stream_client.core.conversation import CoreConversation
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.push_queue import PushQueue
from stream_client.core.requests import PATIENCE_CHECKS, Call, Create, Push
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.core.service_route import INDEX_SERVICE, STREAM_SERVICE, ServiceRoute, index_service_of
from stream_client.core.states_machine import ConnectionState, ConversationState, Event
from stream_client.core.statistics import CoreStatistics
from stream_client.core.streams_in_use import StreamsInUse
from stream_client.errors import ClientClosed, ClientError, ConnectionLost, RouteLost, RouteRefused
from stream_service.protocol import PULL, PullRequest

SILENT_CHECKS_MAX = 8
"""A connection that has brought nothing for that many checks, while something was waited for, is taken for dead."""


class ClientCore:
    """The state of one client. See the module.

    Invariant: every request without an answer, every push without a confirm and every conversation that is not closed
    is kept here, and is sent again or opened again after a new connection; `check` also checks the parts.
    """

    def __init__(
        self,
        *,
        via: Route = (),
        service: str = STREAM_SERVICE,
        index_service: str | None = None,
        asks_route: bool = False,
    ) -> None:
        """via: the hops between the node connected to and the node that has the services.

        service, index_service: the names of the services there; an index service without a name is called as the
        stream service is, with `_index` in it. asks_route: whether every connection begins with a question to the
        stream service; through other nodes it always does.
        """
        self.connection = ClientConnection()
        self.asks_route = asks_route or bool(via)
        self._via = via
        self._names = {STREAM_SERVICE: service, INDEX_SERVICE: index_service or index_service_of(service)}
        stream_service = self.route_to(STREAM_SERVICE)
        self._calls = Calls(self.connection, self._new_address, self._route_lost)
        self.service_route = ServiceRoute(
            self._calls, stream_service, self._new_address, self._route_refused, self.send_again
        )
        self._streams = StreamsInUse(self.connection, self._calls, stream_service, via, self._new_address)
        # The same dictionary: a message is matched with its queue in the hottest loop of the client.
        self._queues = self._streams.queues
        self._conversations: dict[Address, CoreConversation] = {}
        self._broken: list[CoreConversation] = []
        self._next_address = 0
        self._silent_checks = 0
        self._connections = 0
        self._has_heard = False

    @property
    def service_name(self) -> str:
        """The name of the stream service at the node."""
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

    def check(self) -> None:
        """Raises AssertionError where the invariant of the core or of a part does not hold; for tests."""
        self.connection.check()
        self.service_route.check()
        self._calls.check()
        self._streams.check()
        for address, conversation in self._conversations.items():
            assert conversation.is_open
            assert conversation.address == address
        for conversation in (*self._conversations.values(), *self._broken):
            conversation.check()
        assert not any(conversation.is_open for conversation in self._broken)
        assert self.connection.state is not ConnectionState.CLOSED or not (self._conversations or len(self._calls))

    # ------------------------------------------------------------------------------------------ for the shells

    def connected(self, wire: Wire = HEAD, *, greeted: bool = False) -> None:
        """Use a new connection: say hello, find the streams in use again, send again what has no answer.

        greeted: whether the hello has been sent already.
        """
        self._leave_connection()
        self.connection.connected(wire, greeted=greeted)
        if self.connection.wire is None:
            return
        self._silent_checks = 0
        self._connections += 1
        self.service_route.connected()
        self._send_again(Event.CONNECTED)
        # The question is sent with everything else where it had no answer yet; else it begins the connection.
        if self.asks_route and not self.service_route.is_asking:
            self.service_route.ask()
        self.connection.finish_attempt()

    def unreachable(self, error: ClientError) -> None:
        """Note that an attempt to connect has failed; the shell makes the next one."""
        self.connection.unreachable(error)

    def disconnected(self, error: ClientError | None = None) -> None:
        """Note that the connection has ended. Unanswered requests wait for the next one, or fail with `error`."""
        lost = error or ConnectionLost("the connection ended")
        self.connection.disconnected()
        self._leave_connection()
        self._break_conversations(lost, Event.DISCONNECTED)
        self.service_route.disconnected(lost)
        if error is not None:
            self.fail_all(error)

    def fail_all(self, error: ClientError) -> None:
        """Fail everything that waits for an answer. The client goes on: streams and conversations stay in use."""
        for call in self._calls:
            self._calls.finish(call, error)
        for queue in list(self._queues.values()):
            queue.fail_all(error)

    def close(self, error: ClientError | None = None) -> None:
        """End the client: everything that waits fails, and so does every later request."""
        reason = error or ClientClosed("the client has been closed")
        self.connection.close(reason)
        self._leave_connection()
        self.fail_all(reason)
        open_now, self._conversations = self._conversations, {}
        broken, self._broken = self._broken, []
        for conversation in (*open_now.values(), *broken):
            conversation.close(reason)
            conversation.on_change()

    def data_to_send(self) -> bytes:
        """All bytes that wait to be sent; sending them is up to the caller from here on."""
        return self.connection.data_to_send()

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the connection and finish what they answer. Raises RemoteProtocolError; then drop it."""
        self._silent_checks = 0
        try:
            messages = self.connection.messages(data)
        except BadFrame as error:
            # The messages before the fault are whole, and somebody waits for them.
            self._take(error.messages)
            raise
        self._take(messages)

    def check_progress(self) -> bool:
        """Ask again for what has had no answer for an interval or longer; to be called at intervals.

        True where the connection is to be given up, since nothing has come over it for long.
        """
        if self.connection.wire is None:
            return False
        # Over a lost route nothing can be answered; what was sent before it is back would arrive twice.
        if self.service_route.is_lost:
            self.service_route.ask()
        else:
            self._ask_again()
        waits = bool(len(self._calls)) or any(queue.pushes for queue in self._queues.values())
        self._silent_checks = self._silent_checks + 1 if waits else 0
        return self._silent_checks >= SILENT_CHECKS_MAX

    # ------------------------------------------------------------------------------------------- for the rooms

    def call(
        self, target: Route | PartitionHandle, payload: bytes, wanted: int = 1, patience: int = PATIENCE_CHECKS
    ) -> Call:
        """Ask a worker (a route from the node connected to) or a stream-partition; `wanted` answers come."""
        self.connection.check_open()
        if isinstance(target, PartitionHandle) and target.gone is not None:
            raise target.gone
        call = Call(target, payload, wanted, self._new_address(), patience)
        self._calls.add(call)
        return call

    def forget(self, call: Call) -> None:
        """Drop a request whose caller has stopped waiting."""
        self._calls.forget(call)

    def tell(self, service: str, payload: bytes) -> None:
        """Send a message that a service does not answer. Without a connection it is lost."""
        self.connection.check_open()
        header = self.connection.header(self.route_to(service), self._new_address())
        if header:
            error = self.connection.put_frame(header, payload)
            if error is not None:
                raise error

    def converse(self, service: str) -> CoreConversation:
        """A conversation with a service, open as soon as there is a connection; to be ended by `end_conversation`."""
        self.connection.check_open()
        conversation = CoreConversation(self.connection, self.route_to(service))
        self._broken.append(conversation)
        if self.connection.wire is not None and not self.service_route.is_lost:
            self._open_conversations(Event.CONNECTED)
        return conversation

    def end_conversation(self, conversation: CoreConversation) -> None:
        """Drop the messages that still come for a conversation. Safe to repeat."""
        conversation.close()
        if conversation in self._broken:
            self._broken.remove(conversation)
        if conversation.address is not None:
            self._conversations.pop(conversation.address, None)

    def route_to(self, service: str) -> Route:
        """The route to a service of the node that has the streams."""
        return (*self._via, local(self._names.get(service, service)))

    def create(self, name: str | None, partitions: int = 1) -> Create:
        """Ask the stream service for a stream; `partitions` answers come."""
        self.connection.check_open()
        return self._streams.create(name, partitions)

    def handles(self, request: Create) -> list[PartitionHandle]:
        """The partitions that a finished `create` has made, partition 0 first. Raises UnexpectedAnswer."""
        return self._streams.handles(request)

    def find_handles(self, name: str, partitions: Sequence[int]) -> list[PartitionHandle]:
        """Partitions that are known to exist, at the addresses that their names give; nothing is created."""
        self.connection.check_open()
        return self._streams.find_handles(name, partitions)

    def drop(self, handle: PartitionHandle) -> None:
        """Forget a stream-partition that has been deleted: it is not created again, and what is asked of it fails."""
        self._streams.drop(handle)

    def open_queue(self, handle: PartitionHandle, sequences: SequenceMachine | None = None) -> PushQueue:
        """A push queue for one publisher, to be ended by `close_queue`. sequences: has each message stored once."""
        self.connection.check_open()
        return self._streams.open_queue(handle, sequences)

    def close_queue(self, handle: PartitionHandle, queue: PushQueue) -> None:
        """Let the queue go when its pushes have been answered; no more will be pushed."""
        self._streams.close_queue(handle, queue)

    def push(self, handle: PartitionHandle, data: bytes) -> Push:
        """Send one message; it is sent again after every reconnect until its confirm comes."""
        return handle.queue.push(data)

    def pull(self, handle: PartitionHandle, index: int, limit: int) -> Call:
        """Ask for up to `limit` messages from `index` on; `payloads.pulled` reads the answer."""
        return self.call(handle, encoded(PULL, PullRequest(0, index, limit)))

    # ------------------------------------------------------------------------------------------------- inside

    def send_again(self) -> None:
        """Ask again for everything without an answer, and find the streams in use: a lost route is back."""
        self._send_again(Event.ANSWERED)

    def _send_again(self, event: Event) -> None:
        # Requests to services first: a stream that is created again is asked for in front of what it gets.
        for call in self._calls:
            if not isinstance(call.target, PartitionHandle):
                self._calls.send_again(call, call.target)
        self._streams.find_all()
        self._open_conversations(event)

    def _take(self, messages: Sequence[Message]) -> None:
        """Hand each message to the queue, the request or the conversation that it is for."""
        if not self._has_heard and messages and not self._via:
            self._has_heard = True
            self.service_route.heard()
        # Confirms come in runs for one queue, with one route object for the run: it is looked up once.
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
            elif message.onward_route[0] in self._conversations:
                self._take_in_conversation(self._conversations[message.onward_route[0]], message)
            else:
                self._calls.take(message)
        # Behind all answers of this read, so that a publisher is woken once and finds all the room there is.
        for queue in answered:
            queue.settle()

    def _take_in_conversation(self, conversation: CoreConversation, message: Message) -> None:
        """A node between that has lost the next one breaks the conversation; every other message is for its owner."""
        if ERROR.is_in(message.payload):
            error = refusal(message.payload)
            if isinstance(error, RouteLost) and self._route_lost(error):
                return
        conversation.arrived(message)

    def _ask_again(self) -> None:
        """Send once more what stays unanswered; the stream in question is found again first.

        The way to a stream may be gone without this connection noticing it: a node between was restarted, or the
        stream was deleted. The request that finds the stream is answered behind the pushes that a slow node has, so
        that such a node does not get them twice.
        """
        stalled = {stream for stream in self._streams if stream.is_stalled()}
        # Where only pushes wait for a stream that this client makes, whether it still exists makes no difference.
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
            self._streams.ask_existence(handle)
        for stream in stalled:
            self._streams.find_again(stream)
        # Nodes between drop what they cannot pass on, unless it is a question in a protocol of ours.
        if stalled and self._via:
            self.service_route.ask()

    def _leave_connection(self) -> None:
        """Nothing is on its way any more, and no route is known."""
        self._streams.close_all()
        self._calls.disconnected()

    def _route_lost(self, error: RouteLost) -> bool:
        """Send nothing along a route that is lost: what went before it is back would arrive a second time behind it."""
        kept = self.service_route.lost(error)
        if kept:
            self._streams.close_all()
            self._break_conversations(error, Event.ROUTE_LOST)
        return kept

    def _route_refused(self, error: RouteRefused) -> None:
        """A service that was never reached never will be; else a node between has become less open, and may change."""
        if self.service_route.reached:
            self.fail_all(error)
        else:
            self.close(error)

    def _open_conversations(self, event: Event) -> None:
        broken, self._broken = self._broken, []
        for conversation in broken:
            # The owner of one that was opened before may have ended this one.
            if conversation.state is ConversationState.CLOSED:
                continue
            address = self._new_address()
            self._conversations[address] = conversation
            conversation.open(address, event)

    def _break_conversations(self, error: ClientError, event: Event) -> None:
        open_now, self._conversations = self._conversations, {}
        self._broken += open_now.values()
        for conversation in open_now.values():
            if conversation.state is not ConversationState.CLOSED:
                conversation.break_off(error, event)

    def _new_address(self, prefix: bytes = b"") -> Address:
        """An address that nothing else of this client has. prefix: see `stream_service.extensions.TOLD`."""
        self._next_address += 1
        return local(f"{prefix.decode()}c{self._next_address}")
