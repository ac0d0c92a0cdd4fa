"""Router: sends each message for a stream of another member to that member, in order, also while the shard moves.

A message waits here while nobody serves its shard, while the connection to the owner is made, and until the route that
earlier messages took is clear. When a shard has a new owner (also this member itself), a mark clears the old route:
this member sends it there behind the earlier messages, and the new owner sends it back. Only then do later messages
take the new route. If the old owner is dead, its route is clear when the clients who used it are gone.

Link: this node's connection to another member, over which it sends messages of clients. Proofs: the connections that
other members have made to this node. Both ends prove that they know the tokens of both members, which only readers of
the database know:

    caller                                          called
    name, nonce            ───────────────────▶
                           ◀───────────────────     nonce, proof
    proof                  ───────────────────▶
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
import structlog
import trio

from ockam.actors.address import LOCAL, Address, Route, local
from ockam.actors.asker import Answers, Asker, Unanswered
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Forward, Node
from ockam.actors.worker import NEVER
from ockam.identity.identity import Identity
from ockam.log_rate import LogRate
from ockam.protocol import ProtocolError
from ockam.quotas.usage import UNLIMITED, Usage, Usages
from ockam.transport.forwarding import CONNECTION_PREFIX, OpenRequests, destination_unreachable
from stream_node.fleet.cluster.protocol import (
    CLUSTER,
    LINK,
    MARK,
    MEMBER,
    PROVE,
    LinkRequest,
    LinkResponse,
    Mark,
    MemberEnvelope,
    ProveRequest,
    Role,
    envelope_hop,
    read_envelope,
)
from stream_node.fleet.cluster.unanswered import UnansweredRequests, is_silent
from stream_node.fleet.cluster.view import SHARDS, UNOWNED, ClusterView, Shard, StoredMember, find_shard, shard_of
from stream_service.names import stream_address

ENVELOPES_MAX = 10_000
NONCE_BYTES = 32
ROUTES_MAX = 10_000
"""The number of routes that a link remembers, since making a route for each message takes longer."""
MOVES_MAX = 16
"""A message that this many members have passed on is dropped: they do not agree who owns the shard."""
PASSED_ON_MAX = 10_000
MARK_S_MAX = 5.0
"""A mark that is not back after this time counts as lost, and its link as broken."""
GATHER_PREFIX = "gather_"
GATHER_S_MAX = 5.0
"""The longest wait for the answers of all members to one request."""

logger = structlog.get_logger(__name__)


class WaitingStatistics(msgspec.Struct, frozen=True):
    messages: int
    waits_s: float


class RouterStatistics(msgspec.Struct, frozen=True):
    links: int
    waiting: int
    sent: dict[str, int]
    linked: frozenset[str]
    waiting_by_shard: dict[int, WaitingStatistics]


class Held:
    """The messages that wait for one shard."""

    __slots__ = ("own", "passed_on", "since_s")

    def __init__(self) -> None:
        # Messages from other members, and those that waited for workers which have stopped. They go first: some may
        # have come from this member's own clients, before those that are in `own`.
        self.passed_on = Mailbox()
        self.own = Mailbox()  # messages that the clients of this member have sent after those
        self.since_s = 0.0  # since when some message waits, on trio's clock

    def __len__(self) -> int:
        return len(self.passed_on) + len(self.own)

    def put(self, message: Message, now_s: float, *, is_own: bool) -> Mailbox:
        """Adds a message, and returns its mailbox. is_own: whether a client of this member has sent it."""
        if not len(self):
            self.since_s = now_s
        mailbox = self.own if is_own else self.passed_on
        mailbox.put(message)
        return mailbox

    def take(self) -> Iterator[Message]:
        """Removes and returns all messages, in the order in which they go on."""
        for mailbox in (self.passed_on, self.own):
            while run := mailbox.take_run():
                yield from run

    def drop(self, senders: Container[Address]) -> None:
        """Drops the messages of senders whose connections were at these addresses and are closed."""
        for mailbox in (self.passed_on, self.own):
            kept: list[Message] = []
            while run := mailbox.take_run():
                kept += (each for each in run if not each.return_route or each.return_route[0] not in senders)
            for message in kept:
                mailbox.put(message)


class Router:
    """The routes of one member: an `ockam.transport.forwarding.RemoteStreams`.

    Invariant: no shard that this member serves is in `_held`, `_ways` or `_unclear`. If a shard is in `_held`, all its
    messages wait there. A shard in `_unclear` is in `_ways` with the same link.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        token: str,
        *,
        call: Callable[[Link], None],  # begins to connect a link, and later calls its `begin` or `ended`
        hang_up: Callable[[Sequence[Address]], None],  # ends these connections
        new_nonce: Callable[[], bytes],
        refresh: Callable[[], None],  # makes the member read the tables of the cluster again, and then call `update`
        has_own_database: bool = False,  # whether each member has its streams in a database of its own
        # The stream whose owner gets the messages for unknown addresses that are no streams; None: they are dropped.
        others_at: Address | None = None,
        # The addresses where a message opens a session, each with the function that encodes a refusal. A session is
        # never opened by way of a third member: it would end without a word when that member leaves.
        openings: Mapping[Address, Callable[[Message], bytes]] | None = None,
        homes: Mapping[Address, int] | None = None,  # by an operator's worker, the shard at whose owner it runs
        linked: Callable[[Address], None] = lambda connection: None,  # called with each connection of a proved member
    ) -> None:
        self.name = name
        self.proofs = Proofs(token, new_nonce, node.is_registered)
        # The return routes of messages of other members that went on to a third member, and have no answer yet.
        self.passed_on: set[Route] = set()
        self.node = node
        self.token = token
        self._call = call
        self.hang_up = hang_up
        self._new_nonce = new_nonce
        self._refresh = refresh
        self._has_own_database = has_own_database
        self._others_at = None if others_at is None else shard_of(others_at)
        self.openings = openings or {}
        self._homes = homes or {}
        self._linked = linked
        self.view = ClusterView({}, (Shard(UNOWNED, 0),) * SHARDS)
        self._served: dict[int, float] = {}
        self._held: dict[int, Held] = {}
        # By shard, the link over which messages went last, until it is known that none of them is under way.
        self._ways: dict[int, Link] = {}
        # The shards whose messages wait until their link has no earlier message under way, and since when they wait.
        self._unclear: dict[int, float] = {}
        self._awaiting_view: set[int] = set()
        self._links: dict[str, Link] = {}
        self._ended: list[tuple[Link, OpenRequests]] = []
        self._sent: Counter[str] = Counter()
        self._envelopes = Envelopes(node.usages)
        self._lines = LogRate()
        self._missed: Forward | None = node.register_forward(LOCAL, self._forward)

    # The questions of this node's services: see `ockam.transport.forwarding.RemoteStreams`.

    def is_remote(self, stream: Address) -> bool:
        return shard_of(stream) not in self._served

    def send(self, stream: Address, message: Message) -> None:
        self._route(shard_of(stream), self._envelopes.wrap(shard_of(stream), message))

    def home_of(self, stream_name: str) -> Address:
        return stream_address(stream_name, 0)

    def served_since_s(self, stream: Address) -> float:
        return self._served.get(shard_of(stream), trio.current_time())

    def owner_of(self, stream: Address) -> tuple[str, int]:
        shard = self.view.shards[shard_of(stream)]
        member = self.view.members.get(shard.owner)
        return ("" if member is None or member.name == self.name else member.address), shard.epoch

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        # Members with one common database all see every stream, so the local answer is complete.
        if not self._has_own_database:
            return False
        # Each member serves at least one shard. Its envelope leads there.
        shards = {shard.owner: number for number, shard in enumerate(self.view.shards)}
        back = local(GATHER_PREFIX + self._new_nonce()[:8].hex())
        asker = Asker(self.node)
        self.node.register([back], lambda: asker, restarts=NEVER)

        def gathered(answers: Answers) -> None:
            self.node.unregister(back)
            on_done(None if isinstance(answers, Unanswered) else answers)

        # Each member answers the asker, which calls `gathered` after the last answer.
        asker.expect(len(shards), gathered, GATHER_S_MAX)
        with self.node.batch():
            for owner, shard in shards.items():
                asked = Message(message.onward_route, (back,), message.payload, message.origin)
                if owner == self.name:
                    self.node.deliver(asked)
                else:
                    self._route(shard, self._envelopes.wrap(shard, asked))
        return True

    # The calls of the member.

    @property
    def served(self) -> list[int]:
        return sorted(self._served)

    @property
    def owes_answers(self) -> bool:
        """Whether a member whose connection is open waits for the answer to a message that was passed on."""
        return any(self.node.is_registered(route[0]) for route in self.passed_on)

    def clear(self, shards: Iterable[int]) -> list[int]:
        """Returns the shards of which no message is under way to an earlier owner, so that this member can serve them.
        For the others it begins to clear the route; the member then reads the tables again."""
        # Shards that are being cleared already keep their mark: a second one would not arrive earlier.
        for shard in shards:
            if shard in self._ways and shard not in self._unclear:
                self._clear_way(shard)
        return [shard for shard in shards if shard not in self._ways]

    def serve(self, shards: Iterable[int]) -> None:
        """Begins to serve shards whose workers run and whose routes are clear. Delivers their waiting messages."""
        with self.node.batch():
            for shard in shards:
                # Served first, delivered second: the waiting messages go to workers of this node and not back into
                # `_held`.
                self._served[shard] = trio.current_time()
                self._awaiting_view.discard(shard)
                for message in self._take_held(shard):
                    self._arrived(message, message.origin)

    def stop_serving(self, shard: int, waiting: Iterable[Message]) -> None:
        """Ends serving a shard whose workers have stopped. waiting: the messages that they have left, in order."""
        del self._served[shard]
        # Everything that comes from now on waits behind the messages that the workers have left, so the order is kept.
        held = self._held[shard] = Held()
        for message in waiting:
            if message.onward_route[0] in self.openings:
                # A session cannot move: its client opens a new one at the new owner. The message may come from another
                # member.
                self._refuse_opening(message.onward_route[0], message)
            else:
                held.put(self._envelopes.wrap(shard, message), trio.current_time(), is_own=False)

    def update(self, view: ClusterView) -> None:
        self.view = view
        self._awaiting_view.clear()
        # A link to a process that is no member any more is forgotten; the member's new process gets a link below.
        for link in list(self._links.values()):
            if not self._is_current(link):
                del self._links[link.member.name]
                if link.connection is not None and link.member.name in view.members:
                    # The process was replaced. It stores nothing any more, so its connection need not last.
                    self.hang_up([link.connection])
        # A mark that is late will not come back. Ending its connection settles the shards that wait for it.
        late_s = trio.current_time() - MARK_S_MAX
        late = {self._ways[shard] for shard, since_s in self._unclear.items() if since_s < late_s}
        self.hang_up([link.connection for link in late if link.connection is not None])
        # Ended links are settled with this view, which says whether their members have left in order.
        ended, self._ended = self._ended, []
        with self.node.batch():
            for link, requests in ended:
                self._settle(link, requests)
            # New members get a link, and waiting messages go where their shard is now.
            for member in view.members.values():
                # A fenced member has no token, and no process that could be reached.
                if member.name != self.name and member.token and member.name not in self._links:
                    link = self._links[member.name] = Link(self, member, self._new_nonce())
                    self._call(link)
            for shard in range(SHARDS):
                self._retarget(shard)

    def statistics(self) -> RouterStatistics:
        linked = frozenset(name for name, link in self._links.items() if link.is_up)
        now_s = trio.current_time()
        waiting = {
            shard: WaitingStatistics(len(held), now_s - held.since_s) for shard, held in self._held.items() if len(held)
        }
        return RouterStatistics(
            links=len(linked),
            waiting=sum(each.messages for each in waiting.values()),
            sent=dict(self._sent),
            linked=linked,
            waiting_by_shard=waiting,
        )

    # Messages that this node has got.

    def _forward(self, message: Message) -> Mailbox | None:
        """Routes a message whose next hop is not a worker of this node."""
        hop = message.onward_route[0]
        # Other members address their messages to MEMBER, whatever hop follows.
        if hop == MEMBER:
            return self._from_connection(message)
        shard = self._homes.get(hop) if hop in self._homes else find_shard(hop)
        # Unknown services may be at the owner of `others_at`. Connections and gathering workers exist on this node
        # alone.
        if shard is None and not hop.value.startswith((CONNECTION_PREFIX, GATHER_PREFIX.encode())):
            shard = self._others_at
        if shard is None or shard in self._served:
            return None if self._missed is None else self._missed(message)
        # The stream is another member's, or nobody's yet.
        return self._route(shard, self._envelopes.wrap(shard, message))

    def _from_connection(self, message: Message) -> Mailbox | None:
        """Handles what a connection has brought for MEMBER: another member's proof, or its clients' messages.
        Returns the mailbox for which the connection waits while it is full."""
        mailbox = None
        try:
            # The first hop of the return route is the connection, by which this member knows who has sent the message.
            if not message.return_route or message.origin.kind == "local":
                raise ProtocolError("a member links by a connection of its own")
            connection = message.return_route[0]
            # The other end proves that it is a member; only then is anything else taken from this connection.
            if PROVE.is_in(message.payload) and len(message.onward_route) == 1:
                self.proofs.finish(connection, PROVE.decode_request(message.payload).proof)
                self._linked(connection)
            elif len(message.onward_route) < 3 or not self.proofs.is_member(connection):
                raise ProtocolError("only members of the cluster send this")
            else:
                # The connection may end while the message waits here, so its origin is read now.
                mailbox = self._arrived(message, self._envelopes.read_origin(message))
        except ProtocolError as error:
            # A refused message is dropped and the connection stays: any client can send to this address.
            self._lines.log(logger.info, "cluster_request_refused", **message.origin.who, reason=str(error))
            self.node.count_drop("cluster_refused")
        # The message was taken, also if no mailbox got it.
        return mailbox or self.node.find_mailbox(CLUSTER)

    def _arrived(self, message: Message, origin: Origin) -> Mailbox | None:
        """Handles a message that another member has sent, or that waited here. Raises ProtocolError.
        Returns the mailbox that got the message, if any. origin: that of the client, which may be at any member."""
        envelope = read_envelope(message.onward_route[1])
        # The usual case: this member serves the shard.
        if envelope.shard in self._served:
            return self.node.deliver(Message(message.onward_route[2:], message.return_route, message.payload, origin))
        if message.onward_route[2:] == (CLUSTER,) and MARK.is_in(message.payload):
            number = MARK.decode_request(message.payload).id
            if any(link.mark_back(number) for link in list(self._ways.values())):
                # It is a mark of this member: all earlier messages of this member have come back, too.
                return None
        # Two members that each take the other for the owner would send the message to and fro without end.
        if envelope.moves >= MOVES_MAX:
            self.node.count_drop("cluster_moves")
            self.hang_up(message.return_route[:1])
            return None
        # The other member takes this one for the owner. One of them has old tables, so this one reads the tables again.
        if envelope.shard not in self._awaiting_view:
            self._awaiting_view.add(envelope.shard)
            self._refresh()
        # It goes on to the owner that this member knows, or waits until the tables have been read.
        hop = envelope_hop(msgspec.structs.replace(envelope, moves=envelope.moves + 1))
        route = (MEMBER, hop, *message.onward_route[2:])
        further = Message(route, message.return_route, message.payload, origin)
        # A session ends when its shard moves, so a message for a session gets no answer.
        is_of_session = envelope.shard == self._others_at and find_shard(message.onward_route[2]) is None
        if not is_of_session and not is_silent(message.payload):
            if len(self.passed_on) >= PASSED_ON_MAX:
                self.passed_on.clear()
            self.passed_on.add(message.return_route)
        return self._route(envelope.shard, further, is_own=False)

    def _route(self, shard: int, wrapped: Message, *, is_own: bool = True) -> Mailbox | None:
        # While messages of the shard wait, every later one waits behind them. Otherwise it would overtake them.
        held = self._held.get(shard)
        if held is None:
            link = self._ready_link(shard)
            if link is not None:
                return self._send(shard, link, wrapped)
            held = self._held[shard] = Held()
        return held.put(wrapped, trio.current_time(), is_own=is_own)

    def _send(self, shard: int, link: Link, wrapped: Message) -> Mailbox | None:
        # A message that another member has passed on to this one opens no session at a third member: the session would
        # end when this one leaves.
        if wrapped.onward_route[2] in self.openings and read_envelope(wrapped.onward_route[1]).moves:
            self._refuse_opening(wrapped.onward_route[2], wrapped)
            return None
        self._ways[shard] = link
        self._sent[link.member.name] += 1
        return link.send(wrapped)

    def _refuse_opening(self, service: Address, message: Message) -> None:
        """Refuses a message that would open a session. The client tries again when its node knows the owner."""
        try:
            payload = self.openings[service](message)
        except ProtocolError:
            self.node.count_drop("cluster_opening")
        else:
            self.node.deliver(Message(message.return_route, (), payload, HERE))

    # Where the messages of a shard go.

    def _ready_link(self, shard: int) -> Link | None:
        """Returns the link to the owner of a shard, or None if the messages of the shard wait."""
        if shard in self._unclear or shard in self._awaiting_view:
            return None
        link = self._links.get(self.view.shards[shard].owner)
        return link if link is not None and link.is_up and self._ways.get(shard, link) is link else None

    def _retarget(self, shard: int) -> None:
        """Makes the messages of a shard go to its owner, as soon as the order allows it."""
        owner = self.view.shards[shard].owner
        # A served shard has no waiting messages. Those of other shards may wait for a mark, an owner, or `serve`.
        if shard in self._served or shard in self._unclear or owner in (UNOWNED, self.name):
            return
        way = self._ways.get(shard)
        # Earlier messages went over another link: it has to be clear before the next one takes the new link.
        if way is not None and way is not self._links.get(owner):
            self._clear_way(shard)
            return
        # The route is free: the waiting messages leave in order.
        link = self._ready_link(shard)
        if link is not None:
            for message in self._take_held(shard):
                self._send(shard, link, message)

    def _clear_way(self, shard: int) -> None:
        """Begins to clear the route that the messages of a shard took until now. Later ones wait."""
        self._unclear[shard] = trio.current_time()
        link = self._ways[shard]
        # The route of a process that was replaced is clear when its connection has ended (`_settle`).
        if link.is_up and (self._is_current(link) or link.member.name not in self.view.members):
            number = int.from_bytes(self._new_nonce()[:8], "big")
            payload = MARK.encode_request(Mark(number, shard))
            message = self._envelopes.wrap(shard, Message((CLUSTER,), (CLUSTER,), payload, HERE))
            link.mark(number, message, lambda: self._cleared(shard))

    def _cleared(self, shard: int) -> None:
        del self._ways[shard], self._unclear[shard]
        if self.view.shards[shard].owner == self.name:
            # The shard is this member's own: reading the tables makes the member serve it.
            self._refresh()
        with self.node.batch():
            self._retarget(shard)

    def _take_held(self, shard: int) -> Iterable[Message]:
        held = self._held.pop(shard, None)
        return () if held is None else held.take()

    # The connections to the other members.

    def _is_current(self, link: Link) -> bool:
        """Whether a link leads to the present process of its member, not to a former one."""
        member = self.view.members.get(link.member.name)
        return member is not None and (member.token, member.address) == (link.member.token, link.member.address)

    def link_up(self, link: Link) -> None:
        logger.info("cluster_link", member=link.member.name, address=link.member.address)
        with self.node.batch():
            for shard in list(self._held):
                self._retarget(shard)

    def link_ended(self, link: Link, requests: OpenRequests) -> None:
        if self._links.get(link.member.name) is link:
            del self._links[link.member.name]
        self._ended.append((link, requests))
        if link.was_up:
            self._refresh()

    def _settle(self, link: Link, requests: OpenRequests) -> None:
        """Handles the end of a link after the tables were read, which say whether the other member left as planned."""
        name, member = link.member.name, self.view.members.get(link.member.name)
        shards = [shard for shard, way in self._ways.items() if way is link]
        has_left = member is None and not shards
        told = requests.take() if has_left else []
        # The other member left after this one had learned that its shards were given away. It has answered all
        # messages, so most clients need not notice. Requests that are still open get an error.
        for route in told:
            self.node.deliver(destination_unreachable(route, link.member.address, "the node has left its cluster"))
        # Nobody knows which of the unanswered pushes the other member has stored: it was lost, or this connection was
        # lost before it left. Publishers that use only Ockam's specification get ERROR. Our clients see what they would
        # see if this node had died: nothing is stored that they have sent later.
        senders, answers = link.unanswered.take(has_left=has_left, told=frozenset(told))
        if senders or answers:
            logger.warning("cluster_link_lost", member=name, clients=len(senders), answered=len(answers))
            self.hang_up(senders)
            for held in self._held.values():
                held.drop(frozenset(senders))
            for answer in answers:
                self.node.deliver(answer)
        # Nothing more can be under way on this link, so the shards that used it are clear.
        for shard in shards:
            self._unclear.setdefault(shard, 0.0)
            self._cleared(shard)

    def check(self) -> None:
        assert not self._served.keys() & (self._held.keys() | self._ways.keys() | self._unclear.keys())
        assert self._unclear.keys() <= self._ways.keys()


class Envelopes:
    """Adds to a client's message the data that another member needs, and reads these data at that member.
    The same few clients send most messages, so both directions remember their results."""

    def __init__(self, usages: Usages) -> None:
        self._usages = usages
        self._origins: dict[tuple[Origin, bytes], Origin] = {}

    def wrap(self, shard: int, message: Message) -> Message:
        """Returns a client's message with two more hops in front: MEMBER, and an envelope for this shard."""
        origin = message.origin
        hop = _hop(shard, origin.identity, origin.peer, origin.frame_bytes_max)
        return Message((MEMBER, hop, *message.onward_route), message.return_route, message.payload, origin)

    def read_origin(self, message: Message) -> Origin:
        """Returns the origin of a message that a member has sent for its client. Raises ProtocolError.
        The origin has the identity that the client has proved to that member."""
        key = message.origin, message.onward_route[1].value
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= ENVELOPES_MAX:
                self._origins.clear()
            envelope = read_envelope(message.onward_route[1])
            # The member to which the client is connected reads no faster than its limits allow. An answer must pass
            # through both connections.
            origin = self._origins[key] = msgspec.structs.replace(
                message.origin,
                identity=envelope.identity,
                peer=envelope.peer,
                usage=self._usage(envelope.identity, envelope.peer),
                frame_bytes_max=min(message.origin.frame_bytes_max, envelope.frame_bytes_max),
            )
        elif (usage := self._usage(origin.identity, origin.peer)) is not origin.usage:
            # The identity used nothing meanwhile and was forgotten.
            origin = self._origins[key] = msgspec.structs.replace(origin, usage=usage)
        return origin

    def _usage(self, identity: Identity, peer: str) -> Usage:
        if identity.source == "local":
            # The workers of the members have no limits.
            return UNLIMITED
        return self._usages.get(self._usages.key_of(identity, peer), trio.current_time())


@lru_cache(ENVELOPES_MAX)
def _hop(shard: int, identity: Identity, peer: str, frame_bytes_max: int) -> Address:
    return envelope_hop(MemberEnvelope(shard, 0, identity.source, identity.name, peer, frame_bytes_max))


class Link:
    """One connection of a router to one process of another member, from its opening to its end. is_up: whether messages
    can be sent. was_up: whether they could ever be sent. unanswered: messages to the member that have no answer yet."""

    def __init__(self, router: Router, member: StoredMember, nonce: bytes) -> None:
        self.member = member
        self.is_up = self.was_up = False
        self.connection: Address | None = None
        self._router = router
        self._tokens = router.token, member.token
        self._nonce = nonce
        self._deliver = router.node.deliver
        # The routes to which answers are due. Each answer removes its route.
        self._passed_on = router.passed_on
        self._openings = router.openings
        self.unanswered = UnansweredRequests(router.node.is_registered)
        self._marks: dict[int, Callable[[], None]] = {}

    def begin(self, connection: Address) -> None:
        """Begins the proof. connection: the address of the open connection."""
        self.connection = connection

        @lru_cache(ROUTES_MAX)
        def through(onward: Route) -> Route:
            return (connection, *onward)

        self._through = through
        self._send(CLUSTER, LINK.encode_request(LinkRequest(self._router.name, self._nonce)))

    def send(self, message: Message) -> Mailbox | None:
        onward = message.onward_route
        self.unanswered.sent(message, opens_session=onward[2] in self._openings)
        return self._deliver(Message(self._through(onward), message.return_route, message.payload, message.origin))

    def mark(self, number: int, message: Message, on_back: Callable[[], None]) -> None:
        """Sends a mark behind all earlier messages. on_back: called when the mark is back; never if the link ends."""
        self._marks[number] = on_back
        self.send(message)

    def mark_back(self, number: int) -> bool:
        """Notes that a mark is back. Returns False if this link has sent no such mark."""
        on_back = self._marks.pop(number, None)
        if on_back is not None:
            on_back()
        return on_back is not None

    def receive(self, messages: Sequence[Message]) -> Sequence[Message]:
        if not self.is_up:
            # Nothing else may come before the proof. Until then, the other end may be anybody.
            for message in messages[:1]:
                self._prove(message)
            messages = messages[1:] if self.is_up else ()
        # Answers settle the requests of this member's clients, and those that it has passed on for another member.
        self.unanswered.answered(messages)
        if self._passed_on:
            self._passed_on.difference_update(message.onward_route for message in messages)
        # Marks are rare: without one under way, the whole run goes to the clients as it is.
        if not self._marks:
            return messages
        rest = []
        for message in messages:
            if message.onward_route != (CLUSTER,) or not MARK.is_in(message.payload):
                rest.append(message)
                continue
            try:
                self.mark_back(MARK.decode_response(message.payload).id)
            except ProtocolError as error:
                logger.warning("cluster_mark_refused", member=self.member.name, reason=str(error))
        return rest

    def ended(self, requests: OpenRequests) -> None:
        self.is_up = False
        self._router.link_ended(self, requests)

    def _prove(self, message: Message) -> None:
        assert self.connection is not None, "the connection is open"
        try:
            response = LINK.decode_response(message.payload)
            # Only a process that knows both tokens can make the proof for this nonce.
            nonces = self._nonce, response.nonce
            if not hmac.compare_digest(response.proof, prove(b"called", self._tokens, nonces)):
                raise ProtocolError("another process answers there")
        except ProtocolError as error:
            logger.warning("cluster_link_refused", member=self.member.name, reason=str(error))
            # The router connects again: the other member may not have read yet that this one has joined.
            self._router.hang_up([self.connection])
            return
        self._send(MEMBER, PROVE.encode_request(ProveRequest(prove(b"caller", self._tokens, nonces))))
        self.is_up = self.was_up = True
        self._router.link_up(self)

    def _send(self, worker: Address, payload: bytes) -> None:
        assert self.connection is not None, "the connection is open"
        self._deliver(Message((self.connection, worker), (CLUSTER,), payload))


def prove(role: Role, tokens: tuple[str, str], nonces: tuple[bytes, bytes]) -> bytes:
    """Returns the proof that a member knows both tokens. tokens, nonces: the caller's, then the called member's."""
    key = "\0".join(tokens).encode()
    return hmac.new(key, role + b"".join(nonces), hashlib.sha256).digest()


class Proofs:
    """The connections that members have proved to have made, and those whose proof is expected.
    Invariant: no connection is both expected to prove itself and proved."""

    def __init__(self, token: str, new_nonce: Callable[[], bytes], is_open: Callable[[Address], bool]) -> None:
        self._token = token
        self._new_nonce = new_nonce
        self._is_open = is_open
        self._expected: dict[Address, bytes] = {}
        self._proved: set[Address] = set()

    def begin(self, connection: Address, caller: StoredMember, nonce: bytes) -> LinkResponse:
        """Begins the proof of a connection that a member seems to have made. Returns this end's nonce and proof."""
        # Connections that have ended are forgotten here, so the tables stay as small as the cluster.
        self._proved = {each for each in self._proved if self._is_open(each) and each != connection}
        self._expected = {each: proof for each, proof in self._expected.items() if self._is_open(each)}
        tokens, nonces = (caller.token, self._token), (nonce, self._new_nonce())
        self._expected[connection] = prove(b"caller", tokens, nonces)
        return LinkResponse(nonces[1], prove(b"called", tokens, nonces))

    def finish(self, connection: Address, proof: bytes) -> None:
        """Notes that a member has made this connection. Raises ProtocolError if the proof is wrong."""
        expected = self._expected.pop(connection, None)
        if expected is None or not hmac.compare_digest(expected, proof):
            raise ProtocolError("the proof of a member is wrong")
        self._proved.add(connection)

    def is_member(self, connection: Address) -> bool:
        return connection in self._proved
