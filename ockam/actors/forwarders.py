"""Forwarders: addresses on this node whose messages go on to a client that nobody can call, for example behind NAT.

    client                                        node                                       sender
      │ [forwarding_service]  from [me]             │                                           │
      ├────────────────────────────────────────────▶│ makes the forwarder FWD_…                 │
      │ [me]  from [FWD_…], the same payload        │                                           │
      │◀────────────────────────────────────────────┤                                           │
      │                                             │      [FWD_…, x…]  from [s]                │
      │ [me, x…]  from [FWD_…, S, s]                │◀──────────────────────────────────────────┤
      │◀────────────────────────────────────────────┤                                           │
      │ [FWD_…, S, s]  from [y]                     │      [s]  from [FWD_…, C, y]              │
      ├────────────────────────────────────────────▶├──────────────────────────────────────────▶│

C and S are the connections of the client and the sender. The messages are those of Ockam's forwarding services in
Elixir (`forwarding_service`, `static_forwarding_service`), which Rust calls relays. One thing is added: the forwarder
stands in the return route, so that answers pass through it. On a node with rules, messages between two connections
pass in no other way."""

from __future__ import annotations

import re
import secrets
import weakref
from collections import Counter
from collections.abc import Callable

import msgspec

import bare
from ockam.actors.address import LOCAL, Address, Route, local
from ockam.actors.forwarding_protocol import DELIVERY, FORWARD, REGISTER, Forwarded, Registered, RegisterRequest
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Forward, Node
from ockam.actors.worker import AnsweringWorker, Worker
from ockam.errors import AddressInUse
from ockam.identity.gate import DENIED
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import NOTHING, Demand, Right
from ockam.protocol import ERROR, ProtocolError, error_payload
from ockam.transport.connection import Connection
from ockam.transport.wire_legacy import ROUTE_HOPS_MAX

ADDRESSES = ("forwarding_service", "forwarding")
STATIC_ADDRESSES = ("static_forwarding_service",)
"""The addresses where the payload of an Ockam peer names the wanted address. Elsewhere, it is only sent back."""
PREFIX, STATIC_PREFIX = "FWD_", "forward_to_"
NAME = re.compile(r"[^/\s\x00-\x1f\x7f]{1,64}")
"""The names of forwarding addresses. They stand in rules, in logs and in the names of streams."""
FORWARDERS_MAX = 10_000
PARTY_FORWARDERS_MAX = 100
SENDERS_MAX = 1_000
"""The most senders that the client of one forwarder can answer. The one that was quiet longest is forgotten first."""
SHOWN_MAX = 4 * SENDERS_MAX
"""The most routes that one forwarder remembers of its client's answers. The one that was unused longest is forgotten
first; a message over it then goes the registered route."""
HEADER_BYTES = 256
"""An upper bound of the bytes that a frame adds to its payload and routes, and a ForwardDelivery to its payload."""
FORWARDED, NOT_FORWARDED = "forwarded", "not_forwarded"
"""The names by which the node counts messages that are sent on to a client, and messages that are dropped."""
FROM_OUTSIDE = ("tcp", "channel")
_name_decoder = bare.Decoder(str)


class Registration(msgspec.Struct, eq=False):
    """One forwarding address, which survives a crash of its worker.

    owner: the identity that has registered the address; no other identity can get the address.
    party: the party whose limit counts the address. stores, confirms: see `RegisterRequest`.
    route, origin: the route to the client, and the client's connection; the route is empty while the client is away."""

    address: Address
    owner: Identity
    party: str
    stores: bool
    confirms: bool = False
    route: Route = ()
    origin: Origin = HERE


class Forwarder(Worker):
    """The worker of one forwarding address. It stores nothing: if the client is away, the sender gets an `error`.

    The node counts the messages that are passed on (FORWARDED), and the others (NOT_FORWARDED)."""

    def __init__(self, node: Node, registration: Registration) -> None:
        self._node = node
        self.registration = registration
        # The origin of each sender, by its first hop; None for a worker of this node. A strong reference would keep the
        # connections of a thousand senders in memory after their end.
        self._senders: dict[Address, weakref.ref[Origin] | None] = {}
        # The hashes of the routes that the client has shown, each with the sender, see `_show`.
        self._shown: dict[int, None] = {}

    def joined(self, answer: bytes) -> None:
        """Tells the client, whose route is new, that it is registered."""
        self.context.send(Message(self.registration.route, (self.registration.address,), answer))

    def demand(self, message: Message) -> Demand | None:
        """Returns the right to route to this address. The client needs no right: it only answers and confirms."""
        return NOTHING if self._is_owner(message) else Demand(Right.ROUTE, str(self.registration.address))

    def handle(self, message: Message) -> None:
        try:
            self._handle(message, message.onward_route[1:])
        except ProtocolError as error:
            self.refuse(message, str(error))

    def _handle(self, message: Message, rest: Route) -> None:
        if self._is_owner(message) and rest and rest[0] in self._senders:
            self._answer(message, rest)
        elif not rest and DELIVERY.is_in(message.payload) and message.origin.identity == self.registration.owner:
            self.confirmed(message)
        elif FORWARD.is_in(message.payload):
            request = FORWARD.decode_request(message.payload)
            self.forward(message, request.payload, request.request_id)
        else:
            self.forward(message, message.payload, None)

    def forward(self, message: Message, payload: bytes, request_id: int | None) -> None:
        """Passes a message on. request_id: from a `ForwardRequest`, which gets an answer; None: a plain message."""
        refusal = self.find_refusal(message.onward_route[1:], message.return_route, payload)
        if refusal is not None:
            self.refuse(message, refusal)
            return
        self.context.send(self.through(self._note_sender(message), message.onward_route[1:], payload))
        self._node.count(FORWARDED)
        if request_id is not None:
            self.reply(message, FORWARD.encode_response(Forwarded(request_id, stored=False)))

    def confirmed(self, message: Message) -> None:
        """Handles the client's confirm of stored messages. This class stores none, and ignores the confirm."""

    def find_refusal(self, rest: Route, return_route: Route, payload: bytes) -> str | None:
        """Returns why this message cannot be sent to the client now; None if it can."""
        registration = self.registration
        if not self.is_connected:
            return f"nobody is connected at {registration.address}; ask again later"
        if self.is_behind:
            return f"too much waits for {registration.address} already; ask again later"
        return self.refusal_of_size(rest, return_route, payload)

    def refusal_of_size(self, rest: Route, return_route: Route, payload: bytes) -> str | None:
        # A message of somebody else must not end the client's connection, so its limits are checked.
        registration = self.registration
        onward, back = (*registration.route, *rest), (registration.address, *return_route)
        return _refusal_of_size("client", registration.origin, onward, back, payload)

    def through(self, return_route: Route, rest: Route, payload: bytes) -> Message:
        route = self.registration.route
        # A sender that replies to an answer of the client has the client's first hop in its route already. The
        # hops behind it must have been shown to the sender: else one answer would open every worker of the client.
        is_reply = rest[:1] == route[:1] and len(return_route) > 1 and self._is_shown(return_route[1], rest[1:])
        return Message(rest if is_reply else (*route, *rest), return_route, payload)

    @property
    def is_connected(self) -> bool:
        route = self.registration.route
        worker = self._node.find_worker(route[0]) if route else None
        if worker is None or self.registration.origin.connection.holdings.has_ended:
            return False
        return not isinstance(worker, Connection) or worker.is_reading

    @property
    def is_behind(self) -> bool:
        """Whether the client has so many unread bytes that it is sent no more."""
        return self.registration.origin.connection.is_behind(1 << 62)

    def refuse(self, message: Message, reason: str) -> None:
        self._node.count_drop(NOT_FORWARDED)
        # An `error` is never answered, so that two parties do not go on refusing each other's refusals.
        if message.return_route and not ERROR.is_in(message.payload):
            self.reply(message, error_payload(reason))

    def _is_owner(self, message: Message) -> bool:
        # The node itself writes the first hop of a return route.
        return bool(message.return_route) and message.return_route[:1] == self.registration.route[:1]

    def _note_sender(self, message: Message) -> Route:
        """Remembers the sender, to whom the client may answer. Returns the return route with this forwarder in it."""
        if message.return_route:
            sender, origin = message.return_route[0], message.origin
            self._senders.pop(sender, None)
            self._senders[sender] = weakref.ref(origin) if origin.kind in FROM_OUTSIDE else None
            if len(self._senders) > SENDERS_MAX:
                del self._senders[next(iter(self._senders))]
        return (self.registration.address, *message.return_route)

    def _answer(self, message: Message, rest: Route) -> None:
        known = self._senders[rest[0]]
        # The origin ends with its connection, and when a channel moves to another one. Then there are no bounds to ask.
        sender = HERE if known is None else known() or HERE
        back = (self.registration.address, *message.return_route)
        # The sender's connection sends an answer of this node at once, and ends if too much waits for the sender. So an
        # answer must not come there that the sender cannot take: it would cost the sender all its other requests.
        refusal = _refusal_of_size("sender", sender, rest, back, message.payload)
        if sender.is_behind(1 << 62):
            refusal = "too much waits for the sender already; ask again later"
        if refusal is None:
            self._show(rest[0], message.return_route[1:])
            # An answer to a sender outside passes like an answer of this node. If the sender is a worker of this node,
            # the rights of the client decide.
            origin = message.origin if known is None else HERE
            if not self.context.send(Message(rest, back, message.payload, origin)):
                refusal = "the sender is not connected any more"
        if refusal is not None:
            self.refuse(message, refusal)

    def _show(self, sender: Address, route: Route) -> None:
        """Remembers that the client has shown this route (without its first hop, which changes) to the sender."""
        # A route has up to 8 KiB. Its hash is enough: it depends on a secret of this process, so nobody can find
        # another route with the same hash.
        key = hash((sender, route))
        self._shown.pop(key, None)
        self._shown[key] = None
        if len(self._shown) > SHOWN_MAX:
            del self._shown[next(iter(self._shown))]

    def _is_shown(self, sender: Address, route: Route) -> bool:
        """Whether this route begins with one that the client has shown to the sender."""
        for end in range(1, len(route) + 1):
            if hash((sender, route[:end])) in self._shown:
                # A route that is used must not be forgotten.
                self._show(sender, route[:end])
                return True
        return False


Make = Callable[[Registration], Forwarder]


class Forwarders:
    """The forwarding addresses of a node.

    make: makes the workers of addresses that store messages; None: no address can store any.

    Invariant: each registration in `all` has a worker at its address, or one that restarts. `_parties` has the number
    of registrations of each party."""

    def __init__(self, node: Node, make: Make | None = None) -> None:
        self._node = node
        self._make = make
        self.all: dict[Address, Registration] = {}
        self._parties: Counter[str] = Counter()
        self._missed_before: Forward = lambda message: None

    def start(self) -> None:
        """Starts the forwarding services. Raises AddressInUse."""
        addresses = [local(name) for name in (*ADDRESSES, *STATIC_ADDRESSES)]
        self._node.register(addresses, lambda: ForwardingService(self))
        before = self._node.register_forward(LOCAL, self._missed)
        self._missed_before = before if before is not None else self._missed_before

    def register(self, message: Message, request: RegisterRequest) -> Registration:
        """Gives the sender of this message an address, or a new route to its address. Raises ProtocolError."""
        if not message.return_route:
            raise ProtocolError("a registration has a return route, which is the route to the client")
        if request.stores and (self._make is None or request.name is None):
            raise ProtocolError("only an address with a name can store messages, on a node that stores some")
        origin = message.origin
        registration = self.all.get(self.address_of(request.name) if request.name is not None else local(b""))
        if registration is None:
            address = self.address_of(request.name)
            self._check_room(origin.party)
            registration = Registration(address, origin.identity, origin.party, stores=request.stores)
        elif registration.owner != origin.identity:
            raise ProtocolError(f"the address {registration.address} belongs to another identity; choose another name")
        registration.origin.lifetime.unwatch(registration)
        registration.route, registration.origin = message.return_route, origin
        registration.confirms = request.confirms
        if registration.stores < request.stores:
            self.end(registration)
            registration.stores = True
        if registration.address not in self.all:
            self.add(registration)
        if not registration.stores:
            # A client that is gone needs its address no longer. It may be gone before its request was read.
            origin.lifetime.watch(registration, lambda has_ended: self._gone(registration, origin, has_ended))
            self._gone(registration, origin, origin.lifetime.has_ended)
        return registration

    def _check_room(self, party: str) -> None:
        if len(self.all) < FORWARDERS_MAX and self._parties[party] < PARTY_FORWARDERS_MAX:
            return
        # If a secure channel or a worker of this node has registered an address and has ended, the address ends here.
        for each in [each for each in self.all.values() if not each.stores]:
            if not self._node.is_registered(each.route[0]):
                self.end(each)
        if len(self.all) >= FORWARDERS_MAX or self._parties[party] >= PARTY_FORWARDERS_MAX:
            raise ProtocolError(f"too many forwarding addresses; {PARTY_FORWARDERS_MAX} are the most for one client")

    def add(self, registration: Registration) -> None:
        """Starts the worker of an address. Raises ProtocolError if another worker has the address."""
        make = self._make if registration.stores and self._make else lambda each: Forwarder(self._node, each)
        self.all[registration.address] = registration
        self._parties[registration.party] += 1
        try:
            self._node.register([registration.address], lambda: make(registration))
        except AddressInUse as error:
            self.forget(registration)
            raise ProtocolError(f"{error}; choose another name") from error

    def end(self, registration: Registration) -> None:
        """Ends an address. Safe to repeat."""
        if self.all.get(registration.address) is registration:
            self.forget(registration)
            registration.origin.lifetime.unwatch(registration)
            self._node.unregister(registration.address)

    def forget(self, registration: Registration) -> None:
        del self.all[registration.address]
        self._parties[registration.party] -= 1
        if not self._parties[registration.party]:
            del self._parties[registration.party]

    def address_of(self, name: str | None) -> Address:
        if name is None:
            return local(PREFIX + secrets.token_hex(8))
        if not NAME.fullmatch(name):
            raise ProtocolError("the name of a forwarding address has 1 to 64 characters, without slashes and spaces")
        return local(STATIC_PREFIX + name)

    def find_worker(self, registration: Registration) -> Forwarder | None:
        worker = self._node.find_worker(registration.address)
        return worker if isinstance(worker, Forwarder) else None

    def _gone(self, registration: Registration, origin: Origin, has_ended: bool) -> None:
        if has_ended and registration.origin is origin:
            self.end(registration)

    def _missed(self, message: Message) -> Mailbox | None:
        """Answers a message to an address whose client is gone. A sender without the right learns nothing."""
        name, gate = str(message.onward_route[0]), self._node.gate
        if not name.startswith((PREFIX, STATIC_PREFIX)) or ERROR.is_in(message.payload):
            return self._missed_before(message)
        reason = f"nobody is connected at {name[:100]}; ask again later"
        if gate is not None and not gate.holds(message.origin, Right.ROUTE, name):
            reason = f"{DENIED}route on {name[:100]!r}"
        self._node.count_drop(NOT_FORWARDED)
        self._node.send(Message(message.return_route, (), error_payload(reason)))
        return None


class ForwardingService(AnsweringWorker):
    """The service at which clients register. A real Ockam peer sends any payload, such as `register`, and gets it back
    from its new address; at `static_forwarding_service` the payload is a name. Our client sends a `RegisterRequest`."""

    def __init__(self, forwarders: Forwarders) -> None:
        self._forwarders = forwarders

    def demand(self, message: Message) -> Demand:
        name = _read(message).name
        return Demand(Right.REGISTER, PREFIX if name is None else str(self._forwarders.address_of(name)))

    def answer(self, message: Message) -> None:
        request = _read(message)
        registration = self._forwarders.register(message, request)
        answer = message.payload
        if REGISTER.is_in(message.payload):
            address = registration.address.value
            answer = REGISTER.encode_response(Registered(request.request_id, address, registration.stores))
        worker = self._forwarders.find_worker(registration)
        # A worker that has crashed restarts soon, and the client asks again.
        if worker is not None:
            worker.joined(answer)


def _read(message: Message) -> RegisterRequest:
    payload = message.payload
    if REGISTER.is_in(payload):
        return REGISTER.decode_request(payload)
    name = None
    if str(message.onward_route[0]) in STATIC_ADDRESSES:
        try:
            name = _name_decoder.decode(payload)
        except bare.DecodeError as error:
            raise ProtocolError(f"the payload is no name, a BARE string: {error}") from error
    return RegisterRequest(0, name, stores=False, confirms=False)


def _refusal_of_size(whose: str, origin: Origin, onward: Route, back: Route, payload: bytes) -> str | None:
    """Returns why the other side of `origin` cannot get a message with these routes and this size, or None."""
    if max(len(onward), len(back)) > ROUTE_HOPS_MAX:
        return f"the route is too long; {ROUTE_HOPS_MAX} hops are the most"
    size_bytes = len(payload) + sum(len(hop.value) + 8 for hop in (*onward, *back)) + HEADER_BYTES
    most_bytes = origin.frame_bytes_max
    return None if size_bytes <= most_bytes else f"the {whose} takes frames of at most {most_bytes} bytes"
