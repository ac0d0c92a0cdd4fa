"""Router: sends each message for a stream of another member to that member, in order, also while the shard moves.

A message waits here while nobody serves its shard, while the connection to the owner is made, and while a mark is on
its way. The mark keeps the order when a shard has a new owner: this member sends it the old way, behind the messages
that went there, and the new owner sends it back. Only then do later messages go the new way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog
import trio

from cluster.envelopes import Envelopes
from cluster.gather import Gather
from cluster.link import Link
from cluster.protocol import CLUSTER, MARK, Mark, envelope_hop, read_envelope
from cluster.shards import SHARDS, find_shard, shard_of
from cluster.view import UNOWNED, Member, Shard, View
from ockam.address import LOCAL, Address, local
from ockam.forwarding import CONNECTION_PREFIX, OpenRequests, destination_unreachable
from ockam.mailbox import Mailbox
from ockam.message import HERE, Message
from ockam.node import Forward, Node
from stream_service.names import stream_address

MOVES_MAX = 16
"""A message that was sent on by so many members is dropped: they do not agree who owns the shard."""

GATHER_PREFIX = "gather_"
"""The beginning of the addresses of workers that collect answers."""

logger = structlog.get_logger(__name__)


class RouterStatistics(msgspec.Struct, frozen=True):
    """The statistics of a router.

    links: the number of members to which this one is connected.
    waiting: the number of messages that wait for the owner of their shard. sent: by member, the messages sent there.
    """

    links: int
    waiting: int
    sent: dict[str, int]


class Router:
    """The routes of one member: an `ockam.elsewhere.Elsewhere`.

    name: the name of this member.

    Invariant: no shard that this member serves is in `_held` or in `_marked`. If a shard is in `_held`, all its
    messages wait there, in the order of their arrival.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        token: str,
        *,
        call: Callable[[Link], None],
        hang_up: Callable[[Sequence[Address]], None],
        new_nonce: Callable[[], bytes],
        refresh: Callable[[], None],
        has_own_database: bool = False,
        others_at: Address | None = None,
    ) -> None:
        """call: begins to connect a link; then its `begin` is called, or `ended`.
        hang_up: ends the connections with these addresses. new_nonce: returns 32 random bytes.
        refresh: makes the member read the tables of the cluster again, and then call `update`.
        has_own_database: whether each member has its streams in a database of its own.
        others_at: the address of the stream whose owner gets the messages for addresses that are no streams and that
        this node does not have; None: they are dropped.
        """
        self.name = name
        self._node = node
        self._token = token
        self._call = call
        self._hang_up = hang_up
        self._new_nonce = new_nonce
        self._refresh = refresh
        self._has_own_database = has_own_database
        self._others_at = None if others_at is None else shard_of(others_at)
        self._view = View({}, (Shard(UNOWNED, 0),) * SHARDS)
        self._served: dict[int, float] = {}
        self._held: dict[int, Mailbox] = {}
        # By shard, the member to which the messages go, or went last.
        self._targets: dict[int, str] = {}
        self._used: set[int] = set()
        self._marked: set[int] = set()
        self._awaiting_view: set[int] = set()
        self._links: dict[str, Link] = {}
        self._ended: list[tuple[Link, OpenRequests]] = []
        self._sent: Counter[str] = Counter()
        self._envelopes = Envelopes()
        self._missed: Forward | None = node.register_forward(LOCAL, self._forward)

    # What the services of this node ask: see `ockam.elsewhere.Elsewhere`.

    def is_elsewhere(self, stream: Address) -> bool:
        return shard_of(stream) not in self._served

    def send(self, stream: Address, message: Message) -> None:
        self._route(shard_of(stream), self._envelopes.wrap(shard_of(stream), message))

    def home_of(self, stream_name: str) -> Address:
        return stream_address(stream_name, 0)

    def served_since_s(self, stream: Address) -> float:
        return self._served.get(shard_of(stream), trio.current_time())

    def owner_of(self, stream: Address) -> tuple[str, int]:
        shard = self._view.shards[shard_of(stream)]
        member = self._view.members.get(shard.owner)
        return ("" if member is None or member.name == self.name else member.address), shard.epoch

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        if not self._has_own_database:
            return False
        # Each member serves at least one shard. Its envelope leads there.
        shards = {shard.owner: number for number, shard in enumerate(self._view.shards)}
        back = local(GATHER_PREFIX + self._new_nonce()[:8].hex())
        gather = Gather(len(shards), on_done, lambda: self._node.unregister(back))
        self._node.register([back], lambda: gather, restarts=False)
        with self._node.batch():
            for owner, shard in shards.items():
                asked = Message(message.onward_route, (back,), message.payload, message.origin)
                if owner == self.name:
                    self._node.deliver(asked)
                else:
                    self._route(shard, self._envelopes.wrap(shard, asked))
        return True

    # What the member tells.

    @property
    def view(self) -> View:
        """What was read about the cluster last."""
        return self._view

    @property
    def served(self) -> list[int]:
        """The shards that this member serves."""
        return sorted(self._served)

    def serve(self, shards: Iterable[int]) -> None:
        """Begins to serve shards, whose workers run. The messages that wait for them are delivered."""
        with self._node.batch():
            for shard in shards:
                self._served[shard] = trio.current_time()
                self._targets.pop(shard, None)
                self._used.discard(shard)
                self._awaiting_view.discard(shard)
                held = self._held.pop(shard, None)
                for message in _drained(held):
                    self.arrived(message)

    def stop_serving(self, shard: int, waiting: Iterable[Message]) -> None:
        """Ends serving a shard, whose workers have stopped. waiting: the messages that wait for them, in order."""
        del self._served[shard]
        held = self._held[shard] = Mailbox()
        for message in waiting:
            held.put(self._envelopes.wrap(shard, message))

    def update(self, view: View) -> None:
        """Takes what was just read about the cluster."""
        self._view = view
        self._awaiting_view.clear()
        # A process that is a member no longer gets no further messages. If it left, it has answered all earlier ones.
        for name, link in list(self._links.items()):
            member = view.members.get(name)
            if member is None or (member.token, member.address) != (link.member.token, link.member.address):
                del self._links[name]
        ended, self._ended = self._ended, []
        with self._node.batch():
            for link, requests in ended:
                self._settle(link, requests)
            for member in view.members.values():
                self._link_to(member)
            for shard in range(SHARDS):
                self._retarget(shard)

    def is_connected(self, connection: Address) -> bool:
        """Whether a connection of this node is open."""
        return self._node.is_registered(connection)

    def statistics(self) -> RouterStatistics:
        return RouterStatistics(
            links=sum(link.is_up for link in self._links.values()),
            waiting=sum(map(len, self._held.values())),
            sent=dict(self._sent),
        )

    # Messages that this node has got.

    def _forward(self, message: Message) -> Mailbox | None:
        """Takes a message whose next hop is not a worker of this node."""
        hop = message.onward_route[0]
        shard = find_shard(hop)
        if shard is None and not hop.value.startswith((CONNECTION_PREFIX, GATHER_PREFIX.encode())):
            shard = self._others_at
        if shard is None or shard in self._served:
            return None if self._missed is None else self._missed(message)
        return self._route(shard, self._envelopes.wrap(shard, message))

    def arrived(self, message: Message) -> None:
        """Takes a message that another member has sent, or that waited here. Raises ProtocolError."""
        envelope = read_envelope(message.onward_route[1])
        if envelope.shard in self._served:
            self._node.deliver(self._envelopes.unwrap(message, envelope))
            return
        if envelope.moves >= MOVES_MAX:
            self._node.count_drop("cluster_moves")
            return
        # The other member takes this one for the owner. One of the two does not know the latest, so this one reads it.
        if envelope.shard not in self._awaiting_view:
            self._awaiting_view.add(envelope.shard)
            self._refresh()
        hop = envelope_hop(msgspec.structs.replace(envelope, moves=envelope.moves + 1))
        route = (CLUSTER, hop, *message.onward_route[2:])
        self._route(envelope.shard, Message(route, message.return_route, message.payload, message.origin))

    def _route(self, shard: int, wrapped: Message) -> Mailbox | None:
        held = self._held.get(shard)
        if held is None:
            link = self._ready_link(shard)
            if link is not None:
                return self._send(shard, link, wrapped)
            held = self._held[shard] = Mailbox()
        held.put(wrapped)
        return held

    def _send(self, shard: int, link: Link, wrapped: Message) -> Mailbox | None:
        self._used.add(shard)
        self._sent[link.member.name] += 1
        return link.send(wrapped)

    # Where the messages of a shard go.

    def _ready_link(self, shard: int) -> Link | None:
        """Returns the link to the owner of a shard, or None if the messages of the shard wait."""
        if shard in self._marked or shard in self._awaiting_view:
            return None
        owner = self._view.shards[shard].owner
        if owner == self.name or self._targets.get(shard) != owner:
            return None
        link = self._links.get(owner)
        return link if link is not None and link.is_up else None

    def _retarget(self, shard: int) -> None:
        """Makes the messages of a shard go to its owner, as soon as the order allows it."""
        owner = self._view.shards[shard].owner
        if shard in self._served or shard in self._marked or owner in (UNOWNED, self.name):
            return
        target = self._targets.get(shard)
        if target != owner:
            before = None if target is None else self._links.get(target)
            if before is not None and before.is_up and shard in self._used:
                self._mark(shard, before)
                return
            self._targets[shard] = owner
            self._used.discard(shard)
        self._release(shard)

    def _mark(self, shard: int, link: Link) -> None:
        """Sends a mark the way that the messages of the shard went until now. They wait until it is back."""
        self._marked.add(shard)
        number = int.from_bytes(self._new_nonce()[:8], "big")
        payload = MARK.encode_request(Mark(number, shard))
        message = self._envelopes.wrap(shard, Message((CLUSTER,), (CLUSTER,), payload, HERE))
        link.mark(number, message, lambda: self._marked_back(shard))

    def _marked_back(self, shard: int) -> None:
        self._marked.discard(shard)
        self._used.discard(shard)
        self._targets.pop(shard, None)
        with self._node.batch():
            self._retarget(shard)

    def _release(self, shard: int) -> None:
        """Sends the messages that wait for a shard, if there is a way to its owner."""
        link = self._ready_link(shard)
        if link is not None:
            for message in _drained(self._held.pop(shard, None)):
                self._send(shard, link, message)

    # The connections to the other members.

    def _link_to(self, member: Member) -> None:
        if member.name == self.name or not member.token or member.name in self._links:
            return
        link = self._links[member.name] = Link(
            self.name,
            self._token,
            member,
            self._new_nonce(),
            deliver=self._node.deliver,
            on_up=self._link_up,
            on_ended=self._link_ended,
        )
        self._call(link)

    def _link_up(self, link: Link) -> None:
        logger.info("cluster_link", member=link.member.name, address=link.member.address)
        with self._node.batch():
            for shard in list(self._held):
                self._retarget(shard)

    def _link_ended(self, link: Link, requests: OpenRequests) -> None:
        if self._links.get(link.member.name) is link:
            del self._links[link.member.name]
        self._ended.append((link, requests))
        if link.was_up:
            self._refresh()

    def _settle(self, link: Link, requests: OpenRequests) -> None:
        """Does what is due after a connection to another member has ended, when this member knows whether that one has
        left in order."""
        name, member = link.member.name, self._view.members.get(link.member.name)
        if member is None and not self._view.owned_by(name):
            # It has answered what it got, so the clients need not notice. What it has not answered never will be.
            for route in requests.take():
                self._node.deliver(destination_unreachable(route, link.member.address, "the node has left its cluster"))
            return
        # Nobody knows which pushes it has stored. So their clients see what they would see if this node had died.
        senders = requests.senders
        if senders:
            logger.warning("cluster_link_lost", member=name, clients=len(senders))
            self._hang_up(senders)

    def check(self) -> None:
        """Asserts the invariant of this class. Only tests call this method."""
        assert not self._served.keys() & self._held.keys()
        assert not self._served.keys() & self._marked


def _drained(held: Mailbox | None) -> Iterable[Message]:
    """Removes and returns the messages of a mailbox, in order."""
    while held is not None and (run := held.take_run()):
        yield from run
