"""Ockam's bidirectional streams, served by the node: it reads and writes streams for peers that know only routes.

The protocols are those of the Elixir worker Ockam.Stream.Client.BiDirectional.Subscribe. The data in the streams is a
routed message with the stream for answers (`stream_client.correspondent`), so that a party behind this service and a
party with a client of its own understand each other:

    [STB_PP_…, to] ─▶ PublisherProxy ─push─▶ stream ─pull─▶ StreamSubscription ─▶ [to] from [STB_PP_…, client]

Each message is sent by the rights of the client that has asked for the subscription, and only to a forwarding address,
to an operator's own worker, or to a connection of that client. An answer goes only where the client may write."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

import msgspec
import structlog

from index_service.protocol import INDEX, GetIndex, SaveIndex
from ockam.actors.address import Address, Route, local
from ockam.actors.forwarders import Forwarder
from ockam.actors.message import HERE, Message, Origin, reply_to
from ockam.actors.node import Node
from ockam.actors.worker import AnsweringWorker, Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ERROR, Protocol, ProtocolError, error_payload, find_name
from ockam.quotas.memory import Holdings
from ockam.quotas.usage import party_key
from ockam.transport.connection import Connection
from stream_client.correspondent import RoutedMessage, encode_routed
from stream_node.forwarding.stream_link import LinkedWorker, StreamLink, read_routed
from stream_service.extensions import RICH_PULL, RichMessage, RichPage

ADDRESSES = ("stream_bidirectional", "stream_subscribe")
"""The addresses of the service. Ockam has no fixed address for it; Ockam's examples use the second of these."""
PARTY_WORKERS_MAX = 100
"""The most subscriptions, and the most publishers, of one client. The oldest publisher ends for a new one."""
WAIT_MS = 5_000
ROOM_WAIT_S = 0.5
"""How long a subscription waits before it looks again whether the receiver of its next message takes messages."""
RETRY_S = 10.0
"""After an error, a subscription waits as long as Ockam's Consumer does, and begins again at its saved index."""

logger = structlog.get_logger(__name__)


# type SubscribeRequest struct { stream_name: str  subscription_id: str }
class SubscribeRequest(msgspec.Struct, frozen=True):
    """A request to send each message of a stream along the route in the message. It has no answer."""

    stream_name: str
    subscription_id: str  # the client id of the saved index


# type PublisherRequest struct { publisher_stream: str  consumer_stream: str  subscription_id: str }
class PublisherRequest(msgspec.Struct, frozen=True):
    """A request for an address that stores all messages to it in `publisher_stream`, and names `consumer_stream` for
    answers. The answer comes from that address; its payload is IRRELEVANT."""

    publisher_stream: str
    consumer_stream: str
    subscription_id: str


SUBSCRIBE = Protocol("stream_bidirectional", SubscribeRequest, SubscribeRequest)
ENSURE_PUBLISHER = Protocol("stream_bidirectional_publisher", PublisherRequest, PublisherRequest)
IRRELEVANT = b"irrelevant"
DELETED = error_payload("the stream was deleted; send it again")
_Key = tuple[str, SubscribeRequest | PublisherRequest]


class Bidirectional(AnsweringWorker):
    """The worker of the service, with all subscriptions and publishers of a node. A subscription ends with the
    connection or channel of its request. A publisher ends with the last of the connections by which its client has
    asked for it.

    stream_service, index_service: the addresses of these services. own_workers: the addresses of the operator's
    workers, also of those that do not run."""

    def __init__(
        self, node: Node, stream_service: Address, index_service: Address, own_workers: Iterable[str] = ()
    ) -> None:
        self.node = node
        self.stream_service, self.index_service = stream_service, index_service
        self.own_workers = frozenset(map(local, own_workers))
        # Each subscription or publisher: its address, and the connections by which it was requested. Their end is
        # watched.
        self._all: dict[_Key, tuple[Address, set[Holdings]]] = {}

    def demand(self, message: Message) -> Demand | list[Demand]:
        request = _read(message)
        if isinstance(request, PublisherRequest):
            return Demand(Right.WRITE, request.publisher_stream)
        return [Demand(Right.READ, request.stream_name), Demand(Right.INDEX, request.subscription_id)]

    def answer(self, message: Message) -> None:
        request = _read(message)
        if isinstance(request, PublisherRequest):
            self.context.send(reply_to(message, self.ensure_publisher(message.origin, request), IRRELEVANT))
        else:
            self.subscribe(message.origin, request, message.return_route)

    def subscribe(self, origin: Origin, request: SubscribeRequest, way_back: Route = ()) -> None:
        """Begins a subscription. If the client has begun it before, it goes on over the new connection. way_back:
        the route to the client, whose first hop is its connection or channel. Raises ProtocolError."""
        key = origin.party, request
        self.end_subscription(origin, request)
        if len(self._mine(key)) >= PARTY_WORKERS_MAX:
            raise ProtocolError(f"too many subscriptions; {PARTY_WORKERS_MAX} are the most for one client")
        self._add(
            key,
            origin,
            local("STB_C_" + secrets.token_hex(8)),
            lambda: StreamSubscription(self, origin, request, way_back),
        )

    def end_subscription(self, origin: Origin, request: SubscribeRequest) -> None:
        key = origin.party, request
        if key in self._all:
            self._end(key)

    def ensure_publisher(self, origin: Origin, request: PublisherRequest) -> Address:
        key = origin.party, request
        if key in self._all:
            # The client may have come back before the end of its earlier connection.
            self._watch(key, origin.holdings)
            return self._all[key][0]
        mine = self._mine(key)
        if len(mine) >= PARTY_WORKERS_MAX:
            self._end(mine[0])
        address = local("STB_PP_" + secrets.token_hex(8))
        self._add(key, origin, address, lambda: PublisherProxy(self, origin, request))
        return address

    def is_read(self, stream_name: str) -> bool:
        """Whether a subscription of this node sends the messages of a stream on."""
        return any(isinstance(each, SubscribeRequest) and each.stream_name == stream_name for _, each in self._all)

    def _mine(self, key: _Key) -> list[_Key]:
        return [each for each in self._all if each[0] == key[0] and type(each[1]) is type(key[1])]

    def _add(self, key: _Key, origin: Origin, address: Address, make: Callable[[], Worker]) -> None:
        self._all[key] = address, set()
        self.node.register([address], make)
        self._watch(key, origin.holdings)

    def _watch(self, key: _Key, holdings: Holdings) -> None:
        address, watched = self._all[key]
        watched.add(holdings)

        def tell(has_ended: bool) -> None:
            if has_ended and self._all.get(key) == (address, watched):
                watched.discard(holdings)
                if not watched:
                    self._end(key)

        holdings.watch(address, tell)
        tell(holdings.has_ended)

    def _end(self, key: _Key) -> None:
        # If it ends before its connections, they forget it here.
        address, watched = self._all.pop(key)
        for holdings in watched:
            holdings.unwatch(address)
        self.node.unregister(address)


def _read(message: Message) -> SubscribeRequest | PublisherRequest:
    for protocol in (SUBSCRIBE, ENSURE_PUBLISHER):
        if protocol.is_in(message.payload):
            return protocol.decode_request(message.payload)
    raise ProtocolError(f"this service serves no {find_name(message.payload)!r}")


class PublisherProxy(LinkedWorker):
    """Stores the messages to its address in one stream, without this address. Answers `error` if it cannot."""

    def __init__(self, owner: Bidirectional, origin: Origin, request: PublisherRequest) -> None:
        self._owner = owner
        self._origin = origin
        self._request = request

    def started(self) -> None:
        self._is_opening = False
        self._refusal = DELETED
        # Messages wait in the mailbox until the first attempt to make the stream has ended.
        self.context.pause()
        stream, owner = self._request.publisher_stream, self._owner
        self._link = StreamLink(self, owner.node, stream, service=owner.stream_service, origin=self._origin)
        self._open()

    def demand(self, message: Message) -> Demand:
        return Demand(Right.WRITE, self._request.publisher_stream)

    def handle(self, message: Message) -> None:
        routed = RoutedMessage(
            message.onward_route[1:], message.return_route, message.payload, self._request.consumer_stream
        )
        if not self._link.push(message, encode_routed(routed), message.origin):
            self._open()
            self._refuse(message, self._refusal)

    def _open(self) -> None:
        # One attempt goes on until the stream exists. If each message began one, the attempts would never get fewer.
        if not self._is_opening:
            self._is_opening = True
            self._link.open()

    def answered(self, what: str, payload: bytes) -> None:
        self._is_opening = False
        self._refusal = DELETED
        self.context.resume()

    def settled(self, message: Message, size_bytes: int, index: int | None, reason: str) -> None:
        if index is None:
            self._refuse(message, error_payload(reason))

    def failed(self, what: str, payload: bytes) -> None:
        # An attempt to make the stream says nothing about pushes, each of which gets an answer of its own.
        if what != "open":
            for message in self._link.take_pending():
                self._refuse(message, payload)
        # The next attempts may fail as well, for example without the right to create. If messages waited for them, the
        # full mailbox would stop each connection that feeds it.
        self.context.resume()
        if what == "open":
            self._refusal = payload
            self.context.call_later(RETRY_S, self._link.open)

    def _refuse(self, message: Message, payload: bytes) -> None:
        self._owner.node.count_drop("not_published")
        # An `error` is never answered: a worker that answers everything would go on with this address for ever.
        if not ERROR.is_in(message.payload):
            self.reply(message, payload)


class StreamSubscription(LinkedWorker):
    """Reads a stream from the saved index of its subscription on, and sends its messages on, each at least once. While
    the receiver of a message is busy, this message and all behind it wait in the stream."""

    def __init__(self, owner: Bidirectional, origin: Origin, request: SubscribeRequest, way_back: Route) -> None:
        self._owner = owner
        self._origin = origin
        # The node must not take a message from a stream for a request of the client itself.
        self._sender = msgspec.structs.replace(origin, kind="stream")
        self._request = request
        self._index = 0
        self._waiting: Message | None = None
        self._way_back = way_back

    def started(self) -> None:
        stream, owner = self._request.stream_name, self._owner
        self._link = StreamLink(self, owner.node, stream, service=owner.stream_service, origin=self._origin)
        self._link.open()

    def _has_ended(self) -> bool:
        """Whether the client is gone. Then this subscription ends, and sends nothing more."""
        # A channel can end long before its connection, for example because its identity is not trusted any more.
        is_gone = any(not self._owner.node.is_registered(hop) for hop in self._way_back[:1])
        if is_gone:
            self._owner.end_subscription(self._origin, self._request)
        return is_gone

    def answered(self, what: str, payload: bytes) -> None:
        if self._has_ended():
            return
        name, client_id = self._request.stream_name, self._request.subscription_id
        if what == "open":
            self._link.ask("index", INDEX.encode_request(GetIndex(client_id, name)), self._owner.index_service)
        elif what == "index":
            self._index = INDEX.decode_response(payload).index or 0
            self._pull()
        else:
            index = self._send_on(RICH_PULL.decode_response(payload))
            if index > self._index:
                self._index = index
                saved = INDEX.encode_request(SaveIndex(client_id, name, self._index))
                self._link.ask("save", saved, self._owner.index_service)
            self._pull()

    def failed(self, what: str, payload: bytes) -> None:
        if self._has_ended():
            return
        logger.warning("subscription_failed", stream=self._request.stream_name, **self._origin.who)
        # An index that cannot be saved does not end the reading. A new beginning would read the stream twice at a time.
        if what != "save":
            self.context.call_later(RETRY_S, self._link.open)

    def _pull(self) -> None:
        """Pulls the next page, now or when the receiver of its first message can take it."""
        if self._has_ended():
            return
        if self._waiting is not None and self._must_wait(self._waiting):
            self.context.call_later(ROOM_WAIT_S, self._pull)
            return
        self._waiting = None
        if not self._link.pull(self._index, request_id=0, wait_ms=WAIT_MS):
            self.failed("pull", b"")

    def _send_on(self, page: RichPage) -> int:
        """Sends the messages of a page, up to one that must wait. Returns the index at which the next page begins."""
        for stored in page.messages:
            message = self._find_allowed(stored)
            if message is not None and self._must_wait(message):
                self._waiting = message
                return stored.index
            if message is None or not self._owner.node.send(message):
                self._owner.node.count_drop("subscription_refused")
        return page.resume_index

    def _find_allowed(self, stored: RichMessage) -> Message | None:
        """Returns the message to send on. Returns None if it is not routed, or no receiver may or can take it."""
        routed = read_routed(stored)
        if routed is None or not routed.onward_route:
            return None
        message = Message(routed.onward_route, self._find_back(routed), routed.payload, self._sender)
        receiver = routed.onward_route[0]
        worker = self._owner.node.find_judge(receiver)
        if isinstance(worker, Connection):
            # This answers a message that the client has put into the other stream, perhaps over another connection.
            is_allowed = party_key(worker.identity, worker.peer) == self._origin.party
            return msgspec.structs.replace(message, origin=HERE) if is_allowed else None
        is_away = worker is None and receiver in self._owner.own_workers
        return message if is_away or _find_demand(worker, message) is not None else None

    def _must_wait(self, message: Message) -> bool:
        """Whether a receiver takes a message later and not now. A message that the rules refuse never waits."""
        node, receiver = self._owner.node, message.onward_route[0]
        mailbox, worker = node.find_mailbox(receiver), node.find_worker(receiver)
        if mailbox is None:
            # While the node stops, the operator's workers end before the connections of the subscribers. A worker that
            # was given up runs again after the next start. At other addresses, a client has gone, perhaps for good.
            may_route = node.gate is None or node.gate.holds(self._origin, Right.ROUTE, str(receiver))
            return may_route and receiver in self._owner.own_workers
        is_behind = isinstance(worker, Forwarder) and worker.is_behind
        if not (is_behind or mailbox.full or mailbox.at_limit):
            return False
        # Otherwise a message to a full worker that this client may not reach would stop all behind it for ever.
        demand, gate = _find_demand(worker, message), node.gate
        if gate is None or isinstance(worker, Connection):
            return True
        return demand is not None and gate.holds(self._origin, demand.rights, demand.name or str(receiver))

    def _find_back(self, routed: RoutedMessage) -> Route:
        """Returns the return route of a message: through a publisher of its stream for answers, or empty without it."""
        gate, stream = self._owner.node.gate, routed.return_stream
        # Whoever writes the stream has chosen these routes, and the receiver answers by its own rights, also with an
        # `error` of the node. So an answer goes into a stream only, and into none that this client may not write.
        if not stream or (gate is not None and not gate.holds(self._origin, Right.WRITE, stream)):
            return ()
        # An answer in the stream that is read here would go to a worker that answers again, without end.
        if stream == self._request.stream_name:
            return ()
        # An answer to an answer may go on without end, too, through two streams that are read here. So an answer from
        # one worker of this node to another, or to itself, names no stream for answers.
        answers = "" if self._stays_inside(routed) and self._owner.is_read(stream) else self._request.stream_name
        request = PublisherRequest(stream, answers, self._request.subscription_id)
        # The publisher stores the rest of the route with the answer, for whoever reads that stream.
        return (self._owner.ensure_publisher(self._origin, request), *routed.return_route)

    def _stays_inside(self, routed: RoutedMessage) -> bool:
        """Whether a message and its answer go to the same address, or to two workers that take messages of streams."""
        message = Message(routed.onward_route, (), routed.payload, self._sender)
        hops = {routed.onward_route[0], *routed.return_route[:1]}
        found = [self._owner.node.find_judge(hop) for hop in hops - self._owner.own_workers]
        # Clients outside may go on, also those of secure channels. Without a return route, no answer is sent on.
        is_outside = any(isinstance(each, Connection | Forwarder) or not _find_demand(each, message) for each in found)
        return bool(routed.return_route) and (len(hops) == 1 or not is_outside)


def _find_demand(worker: Worker | None, message: Message) -> Demand | None:
    """Returns what a worker demands for this message, if that is only the right to route; otherwise None."""
    try:
        demand = getattr(worker, "demand", lambda message: None)(message)
    except ProtocolError:
        return None
    return demand if isinstance(demand, Demand) and demand.rights == Right.ROUTE else None
