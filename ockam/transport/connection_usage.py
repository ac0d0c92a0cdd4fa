"""ConnectionUsage: what one connection adds to the usage of its peer's identity. It reads and sends nothing.
PartialFrames: limits the memory of the unfinished frames of all connections together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.turns import Share
from ockam.identity.identity import Identity
from ockam.quotas.memory import Holdings
from ockam.quotas.usage import UNLIMITED, Usage, Usages
from ockam.transport.forwarding import CONNECTION_PREFIX, reports_to_sender

REFUSED_S = 5.0
"""How long a new connection of an identity with too many of them stays open. Its requests are refused."""
TOO_MANY = "identity_connections_max"


class ConnectionUsage:
    """What one connection adds to the usage of its peer's identity, from `join` to `leave`.

    usage: UNLIMITED before `join` and after `leave`.
    refusal: the reason why its requests are refused, because the identity has too many connections."""

    def __init__(self, usages: Usages, peer: str, holdings: Holdings, share: Share, *, waits_room: bool = True) -> None:
        """waits_room: whether reading waits while the node holds too many bytes for the identity. Requests in another
        protocol, such as HTTP, must not wait here: they have waited before, and the bytes may be of their answers."""
        self._usages = usages
        self._waits_room = waits_room
        self._peer = peer
        self._holdings = holdings
        self._share = share
        self.usage: Usage = UNLIMITED
        self.refusal: str | None = None

    def join(self, identity: Identity) -> None:
        now_s = trio.current_time()
        key = self._usages.key_of(identity, self._peer)
        # A token can prove the identity for which the connection counts already.
        if key == self.usage.key:
            return
        self.leave()
        usage = self._usages.get(key, now_s)
        # Above the limit, the connection stays open for a while, so that its client is told of the limit.
        self.refusal = usage.take("connections_max", self._peer)
        if self.refusal is not None:
            usage.refused_connections += 1
        self.usage = usage
        self._holdings.count_for(usage)
        # Identities take turns when the event loop is busy, so many connections or addresses bring no advantage.
        self._share.host = key

    def leave(self) -> None:
        usage, self.usage = self.usage, UNLIMITED
        if usage is UNLIMITED:
            return
        # The bytes that the connection still holds count for nobody from now on.
        self._holdings.count_for(UNLIMITED)
        if self.refusal is None:
            usage.give_back("connections_max")
        else:
            usage.refused_connections -= 1
            self.refusal = None

    def limit_refusal(self, node: Node, close: Callable[[str], None]) -> None:
        """Closes a refused connection after REFUSED_S, unless its peer proves another identity before."""
        if self.refusal is not None:
            node.call_later(REFUSED_S, lambda: None if self.refusal is None else close(TOO_MANY))

    def refuse(self, node: Node, messages: Sequence[Message]) -> None:
        """Answers the first requests of a connection above the limit, so that its client learns the limit."""
        assert self.refusal is not None, "the connection is not above the limit"
        with node.batch():
            for message in filter(lambda message: message.onward_route, messages):
                # A message to another peer or node is answered only if its sender expects answers of this node.
                hop = message.onward_route[0]
                if hop.value.startswith(CONNECTION_PREFIX) and not reports_to_sender(message):
                    continue
                # Pushes get no answer: the client sends them again by itself until a connection is accepted.
                frequent = getattr(node.find_judge(hop), "frequent", None)
                if frequent is None or not message.payload.startswith(frequent.tags):
                    node.refuse(message, self.refusal)

    @property
    def slows(self) -> bool:
        """Whether reading may have to wait for a limit of the identity, or the requests are refused."""
        # Either can begin at any time: the rules change, and a token proves another identity.
        return self.usage.is_rated or self.usage.counts_bytes or self.refusal is not None

    def read_bytes(self) -> int:
        share_bytes = self._share.read_bytes
        return min(share_bytes, self.usage.read_bytes_max()) if self.usage.is_rated else share_bytes

    async def wait_turn(self) -> None:
        if self.usage.is_rated:
            await self.usage.wait_turn()

    async def wait_room(self) -> None:
        if self._waits_room and self.usage.counts_bytes:
            await self.usage.wait_room()

    def note_read(self, requests: int, size_bytes: int, now_s: float) -> None:
        if self.usage.is_rated:
            self.usage.note_request_bytes(requests, size_bytes)
            self.usage.spend(requests, size_bytes, now_s)

    def note_sent(self, size_bytes: int) -> None:
        if self.usage.is_rated:
            self.usage.spend(0, size_bytes, trio.current_time())


PARTIAL_BYTES_MAX = 256 * 1024 * 1024
"""The limit for the unfinished frames of one node: sixteen frames of the largest size."""
PARTIAL_FREE_BYTES = 64 * 1024
"""A connection with at most this many bytes of an unfinished frame is always read, so small frames are not delayed."""


class PartialFrames:
    """The total size of all unfinished frames. Above the limit, one connection with a large frame is read at a time. If
    none were read, no frame would become complete.

    Invariant: the total size exceeds `bytes_max` by at most one read and PARTIAL_FREE_BYTES for each connection, plus
    the frame of the connection that may be read above the limit."""

    def __init__(self, bytes_max: int = PARTIAL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0
        self._turn: object | None = None
        self._room = trio.lowlevel.ParkingLot()

    def note(self, holder: object, before_bytes: int, now_bytes: int) -> None:
        self.size_bytes += now_bytes - before_bytes
        # The large frame is complete, so another connection may be read.
        if self._turn is holder and now_bytes <= PARTIAL_FREE_BYTES:
            self._turn = None
        if self._room and (self._turn is None or self.size_bytes < self._bytes_max):
            self._room.unpark_all()

    async def wait_turn(self, holder: object) -> None:
        """Waits until the connection `holder` may be read: below the limit each may, above the limit one at a time."""
        while self.size_bytes >= self._bytes_max and self._turn is not holder:
            # No other connection with a large frame is read, so this one may complete its frame.
            if self._turn is None:
                self._turn = holder
                return
            await self._room.park()
