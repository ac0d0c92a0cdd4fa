"""ClientCore: the logic of a client, without I/O. It turns received bytes into answers, and requests into bytes.

One core serves one node, over one connection at a time, and lives longer than a connection. It reads no sockets, has no
clock and starts no tasks. A shell does these things, and calls these methods:

    connected, disconnected     a connection was made, or has ended
    receive_data                bytes were received
    check_progress              at intervals: repeat requests that stay unanswered
    fail_all, close             fail every waiting request; end the client

The bytes to send are those of `connection.data_to_send`. `states_machine` has the states of all parts of the core, and
how each event changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ockam.actors.address import Address, Route, local
from ockam.actors.message import Message
from ockam.protocol import ERROR
from ockam.transport.frames import BadFrame
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_client.arguments import encoded
from stream_client.core.calls import PATIENCE_CHECKS, Call, Calls
from stream_client.core.client_connection import ClientConnection
from stream_client.core.conversation import CoreConversation
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.push_queue import PushQueue, distribute
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.core.service_route import INDEX_SERVICE, STREAM_SERVICE, ServiceRoute, index_service_of
from stream_client.core.states_machine import ConnectionState
from stream_client.core.streams_in_use import StreamsInUse
from stream_client.errors import (
    ChannelRefused,
    ClientClosed,
    ClientError,
    ConnectionLost,
    PeerNotTrusted,
    RouteLost,
    RouteRefused,
)
from stream_service.protocol import PULL, PullRequest

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing

SILENT_CHANNEL_CHECKS = 5
"""The checks for late answers after which a secure channel is replaced if no message comes through it while requests
wait. A pull that waits for a new message is answered sooner."""
SILENT_CHECKS_MAX = 8
"""The checks for late answers after which a connection without received bytes counts as dead while requests wait."""


class ClientStatistics(msgspec.Struct, frozen=True):
    """The counts of one client at one moment.

    connections: the number of connections made so far.
    unconfirmed: the number of unanswered pushes. `unanswered`: the number of other unanswered requests.
    sent_again: the number of pushes that were sent more than once, by publishers that are not closed.
    sent_bytes, received_bytes: the number of bytes over all connections.
    """

    connections: int
    unconfirmed: int
    unanswered: int
    sent_again: int
    sent_bytes: int
    received_bytes: int


class ClientCore:
    """All state of one client: its connection, its streams in use, its unanswered requests and its conversations.

    connections: the number of connections so far. The next one can lead to another version of the node.

    Invariant: the core has every unanswered request, every unanswered push and every conversation that is not closed.
    After a reconnect, it sends the requests and pushes again, and opens the conversations again.
    """

    def __init__(
        self,
        *,
        via: Route = (),
        service: str = STREAM_SERVICE,
        index_service: str | None = None,
        asks_route: bool = False,
        connection: ClientConnection | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """via: the route from the node that the client connects to, to the node with the services.
        service, index_service: the names of both services; None: see `index_service_of`.
        asks_route: whether each new connection asks the stream service, unless the service is plain. True with `via`.
        tracing: makes a span of each push; None: pushes are not traced.
        """
        self.connection = ClientConnection() if connection is None else connection
        self.connection.on_channel = self._channel_changed
        self.asks_route = asks_route or bool(via)
        self._via = via
        self._names = {STREAM_SERVICE: service, INDEX_SERVICE: index_service or index_service_of(service)}
        stream_service = self.route_to(STREAM_SERVICE)
        self.calls = Calls(self.connection, self._new_address, self._route_lost)
        self.service_route = ServiceRoute(
            self.calls, stream_service, self._new_address, self._route_refused, self.send_again
        )
        self.streams = StreamsInUse(
            self.connection, self.calls, stream_service, via, self._new_address, tracing, self.service_route.made
        )
        # This is `StreamsInUse.queues`: the busiest loop of the client looks up each message's queue in this
        # dictionary.
        self._queues = self.streams.queues
        self._conversations: dict[Address, CoreConversation] = {}
        self._broken: list[CoreConversation] = []
        self._next_address = 0
        self._silent_checks = 0
        self.connections = 0
        self._has_received = False

    @property
    def service_name(self) -> str:
        return self._names[STREAM_SERVICE]

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            connections=self.connections,
            unconfirmed=sum(len(queue.pushes) for queue in self._queues.values()),
            unanswered=len(self.calls),
            sent_again=sum(queue.sent_again for queue in self._queues.values()),
            sent_bytes=self.connection.sent_bytes,
            received_bytes=self.connection.received_bytes,
        )

    @property
    def awaits_answer(self) -> bool:
        """Whether a push or a request waits for an answer that the node must not delay. A long poll does not count."""
        in_calls = any(call.patience <= PATIENCE_CHECKS for call in self.calls)
        return in_calls or any(queue.pushes for queue in self._queues.values())

    def check(self) -> None:
        """Raises AssertionError if the invariant of the core or of one of its parts does not hold. For tests."""
        self.connection.check()
        self.service_route.check()
        self.calls.check()
        self.streams.check()
        for address, conversation in self._conversations.items():
            assert conversation.is_open
            assert conversation.address == address
        for conversation in (*self._conversations.values(), *self._broken):
            conversation.check()
        assert not any(conversation.is_open for conversation in self._broken)
        assert self.connection.state is not ConnectionState.CLOSED or not (self._conversations or len(self.calls))

    # ------------------------------------------------------------------------------------------ for the shells

    def connected(self, wire: Wire = HEAD, *, greeted: bool = False) -> None:
        """Uses a new connection: finds the routes of the streams again, and repeats all unanswered requests. `greeted`:
        whether the hello, the byte before the first frame, was already sent."""
        # Requests that were sent over the old connection count as unsent, so that they are sent over the new one.
        self._leave_connection()
        self.connection.connected(wire, greeted=greeted)
        # With a secure channel, requests are sent as soon as the channel is open.
        self._begin()

    def _begin(self) -> None:
        # A secure channel that is not open yet calls `_begin` again when it opens.
        if self.connection.wire is None:
            return
        self._silent_checks = 0
        self.connections += 1
        # A new connection can lead to another version of the node, so the service's protocols are unknown again.
        self.service_route.connected()
        self._send_again()
        # A question to the stream service that is still unanswered was repeated above. Otherwise it is asked now. A
        # plain service is not asked, because it would log the question as an error, and any answer shows that it is
        # reached.
        if self.asks_route and not (self.service_route.is_asking or self.service_route.is_plain):
            self.service_route.ask()
        # A program that waits for a connection sends at once when it is woken. So all parts use the new connection
        # first.
        self.connection.finish_attempt()
        self.connection.finish_taken()

    def disconnected(self, error: ClientError | None = None) -> None:
        """Records the end of the connection. Requests fail with `error`; None: they wait for the next one."""
        lost = error or ConnectionLost("the connection ended")
        # The bytes of the old connection go first: nothing below may append to them.
        self.connection.disconnected()
        # With an error, the other side broke the protocol, and would probably do so again over the next connection.
        self._lose(lost, fails=error is not None)

    def fail_all(self, error: ClientError) -> None:
        """Fails every unanswered request and push. The client continues: its streams and conversations stay in use."""
        for call in self.calls:
            self.calls.finish(call, error)
        for queue in list(self._queues.values()):
            queue.fail_all(error)

    def close(self, error: ClientError | None = None) -> None:
        """Ends the client: every unanswered and every later request fails with `error`; None: with ClientClosed."""
        reason = error or ClientClosed("the client has been closed")
        # The connection closes first, so that a program that is woken below cannot send through a client that ends.
        self.connection.close(reason)
        self._leave_connection()
        self.fail_all(reason)
        open_now, self._conversations = self._conversations, {}
        broken, self._broken = self._broken, []
        for conversation in (*open_now.values(), *broken):
            conversation.close(reason)
            # A reader of the conversation may wait, so it must be woken to see the end.
            conversation.on_change()
        self.connection.finish_taken()

    def receive_data(self, data: bytes) -> None:
        """Processes received bytes, and finishes the requests that they answer. Raises RemoteProtocolError if the bytes
        violate the protocol; the caller must then drop the connection."""
        # Forged bytes must not keep a dead secure channel in use: only what comes through it is a sign of life.
        if not self.connection.is_encrypted:
            self._silent_checks = 0
        try:
            messages = self.connection.messages(data)
        except BadFrame as error:
            # The messages before the fault are complete, and requests are waiting for them.
            self._take(error.messages)
            raise
        if messages:
            self._silent_checks = 0
        self._take(messages)
        # The other end may have closed the secure channel. The messages that came before have been handled, so the
        # channel ends now.
        self.connection.settle()

    def check_progress(self) -> bool:
        """Repeats requests that have been unanswered for too long. The shell must call this at regular intervals.
        Returns whether the caller must drop the connection because nothing has arrived over it for too long."""
        # Without a wire there is either no connection, or a handshake of a secure channel that may be late.
        if self.connection.wire is None:
            error = self.connection.check_channel()
            if error is not None:
                self.fail_all(error)
            self._silent_checks += self.connection.framing is not None
            return self.connection.framing is not None and self._silent_checks >= SILENT_CHECKS_MAX
        # Over a lost route nothing can be answered, and a request sent now would arrive twice when the route is back.
        if self.service_route.is_lost:
            self.service_route.ask()
        else:
            self._ask_again()
        # An idle client receives nothing, and its connection is good all the same.
        waits = bool(len(self.calls)) or any(queue.pushes for queue in self._queues.values())
        self._silent_checks = self._silent_checks + 1 if waits else 0
        # More than 32 messages lost in a row make a secure channel deaf, while the connection is good.
        if self.connection.is_encrypted and self._silent_checks == SILENT_CHANNEL_CHECKS:
            self.connection.renew(ConnectionLost("nothing comes through the secure channel any more"))
        return self._silent_checks >= SILENT_CHECKS_MAX

    def _channel_changed(self, error: ClientError | None) -> None:
        """Begins to use the secure channel that has opened (error is None), or leaves it because of this error."""
        if error is None:
            self._begin()
            return
        is_refused = isinstance(error, PeerNotTrusted | ChannelRefused)
        # Rules may change back while a client runs, but a client that has never worked was set up wrongly.
        if is_refused and not self.connection.has_worked:
            self.close(error)
            return
        # The TCP connection stays, but everything that went through the channel is lost as if the connection had ended.
        self._lose(error, fails=is_refused)

    def _lose(self, error: ClientError, *, fails: bool) -> None:
        """Leaves the connection or the secure channel that has ended. `fails`: whether all requests fail."""
        self._leave_connection()
        self._break_conversations(error)
        self.connection.finish_taken()
        self.service_route.disconnected(error)
        if fails:
            self.fail_all(error)

    # ----------------------------------------------------------------------------------------- for the session

    def call(
        self, target: Route | PartitionHandle, payload: bytes, wanted: int = 1, patience: int = PATIENCE_CHECKS
    ) -> Call:
        """Sends a request to a worker, by its route, or to a partition. `Call` explains `wanted` and `patience`."""
        self.connection.check_open()
        if isinstance(target, PartitionHandle) and target.gone is not None:
            raise target.gone.with_traceback(None)
        call = Call(target, payload, wanted, self._new_address(), patience)
        self.calls.add(call)
        return call

    def notify(self, service: str, payload: bytes) -> None:
        """Sends a message that the service does not answer. Without a connection, the message is lost."""
        self.connection.check_open()
        header = self.connection.header(self.route_to(service), self._new_address())
        if header:
            error = self.connection.put_frame(header, payload)
            if error is not None:
                raise error

    def converse(self, service: str) -> CoreConversation:
        """Begins a conversation, which opens once there is a connection. End it with `end_conversation`."""
        self.connection.check_open()
        conversation = CoreConversation(self.connection, self.route_to(service))
        self._broken.append(conversation)
        # Without a connection or a route, the conversation opens when there is one again.
        if self.connection.wire is not None and not self.service_route.is_lost:
            self._open_conversations()
        return conversation

    def end_conversation(self, conversation: CoreConversation) -> None:
        """Ends a conversation. Messages that arrive for it later are dropped. Safe to repeat."""
        conversation.close()
        if conversation in self._broken:
            self._broken.remove(conversation)
        if conversation.address is not None:
            self._conversations.pop(conversation.address, None)

    def route_to(self, service: str) -> Route:
        """Returns the route to a service: STREAM_SERVICE, INDEX_SERVICE, or another one by its name at that node."""
        return (*self._via, local(self._names.get(service, service)))

    def create(self, name: str | None, partitions: int = 1) -> Call:
        self.connection.check_open()
        return self.streams.create(name, partitions)

    def find_handles(self, name: str, partitions: Sequence[int]) -> list[PartitionHandle]:
        self.connection.check_open()
        return self.streams.find_handles(name, partitions)

    def open_queue(self, handle: PartitionHandle, sequences: SequenceMachine | None = None) -> PushQueue:
        """Opens a push queue for one publisher. The caller must end it with `close_queue`."""
        self.connection.check_open()
        return self.streams.open_queue(handle, sequences)

    def pull(self, handle: PartitionHandle, index: int, limit: int) -> Call:
        return self.call(handle, encoded(PULL, PullRequest(0, index, limit)))

    # ------------------------------------------------------------------------------------------------- inside

    def send_again(self) -> None:
        """Repeats every unanswered request and finds the routes again, because a lost route works again."""
        self._send_again()
        # Conversations that waited for a route are open now, so the programs that wait for them are woken.
        self.connection.finish_attempt()

    def _send_again(self) -> None:
        # Requests to services are sent first, so that a stream is created again before requests to this stream arrive.
        for call in self.calls:
            if not isinstance(call.target, PartitionHandle):
                self.calls.send_again(call, call.target)
        for stream in self.streams:
            self.streams.find(stream)
        self._open_conversations()

    def _take(self, messages: Sequence[Message]) -> None:
        # Without `via`, the connected node has the services, so its first message shows that they are reached.
        if not self._has_received and messages and not self._via:
            self._has_received = True
            self.service_route.note_received()
        distribute(messages, self._queues, self._take_other)

    def _take_other(self, message: Message) -> None:
        conversation = self._conversations.get(message.onward_route[0])
        if conversation is None:
            self.calls.take(message)
            return
        # An `error` that says that the route is lost concerns all conversations, and is no message of this one.
        if ERROR.is_in(message.payload):
            error = refusal(message.payload)
            if isinstance(error, RouteLost) and self._route_lost(error):
                return
        conversation.arrived(message)

    def _ask_again(self) -> None:
        """Repeats the requests that have been unanswered for too long.

        The route to a stream may have become wrong without notice, because a node on it was restarted or the stream was
        deleted. So the client first finds the route again. This also prevents double pushes at a slow node: the node
        answers the request for the route only after all pushes that it has received.
        """
        stalled = {stream for stream in self.streams if stream.is_stalled()}
        # A stream that this client has created, and for which only pushes wait, is created again. The service is not
        # asked whether it exists.
        doubted = {handle for stream in stalled if not stream.creates for handle in stream.handles.values()}
        for call in self.calls:
            call.checks += 1
            if call.checks >= call.patience:
                if isinstance(call.target, PartitionHandle):
                    stalled.add(call.target.stream)
                    doubted.add(call.target)
                else:
                    self.calls.send_again(call, call.target)
        # The question whether a partition exists goes first: its answer can drop the partition before it is found
        # again.
        for handle in doubted:
            self.streams.ask_existence(handle)
        for stream in stalled:
            stream.close()
            self.streams.find(stream)
        # Nodes on the route silently drop messages that they cannot forward, except questions in our own protocols.
        if stalled and self._via:
            self.service_route.ask()

    def _leave_connection(self) -> None:
        self.streams.close_all()
        self.calls.disconnected()

    def _route_lost(self, error: RouteLost) -> bool:
        """Records that the route to the services is lost, and stops sending over it until it works again. Returns
        whether unanswered requests are retained until then; if false, the request that met the error fails."""
        kept = self.service_route.lost(error)
        if kept:
            self.streams.close_all()
            self._break_conversations(error)
        return kept

    def _route_refused(self, error: RouteRefused) -> None:
        # A service that was reached before has changed its rules, and can change them back. A service that was never
        # reached would refuse this client for ever.
        if self.service_route.reached:
            self.fail_all(error)
        else:
            self.close(error)

    def _open_conversations(self) -> None:
        broken, self._broken = self._broken, []
        for conversation in broken:
            # The program may have ended a conversation between two connections.
            if conversation.is_closed:
                continue
            address = self._new_address()
            self._conversations[address] = conversation
            conversation.open(address)

    def _break_conversations(self, error: ClientError) -> None:
        open_now, self._conversations = self._conversations, {}
        self._broken += open_now.values()
        for conversation in open_now.values():
            if not conversation.is_closed:
                conversation.break_off(error)

    def _new_address(self, prefix: bytes = b"") -> Address:
        """Returns a new return address. `prefix` is its beginning, for example `stream_service.extensions.BATCHED`."""
        self._next_address += 1
        return local(f"{prefix.decode()}c{self._next_address}")
