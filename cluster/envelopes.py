"""Envelopes: adds to a message of a client what another member must know about it, and takes that off again.

The same few clients send most messages, so both directions remember what they have made.
"""

from __future__ import annotations

import msgspec

from cluster.protocol import CLUSTER, Envelope, envelope_hop
from ockam.address import Address
from ockam.identity import Identity
from ockam.message import HERE, Message, Origin
from ockam.usage import UNLIMITED

ENVELOPES_MAX = 10_000
"""The number of envelopes that are remembered, in each direction."""


class Envelopes:
    """The envelopes that one member has written and read."""

    def __init__(self) -> None:
        self._hops: dict[tuple[int, Identity, str], Address] = {}
        self._origins: dict[tuple[Origin, bytes], Origin] = {}

    def wrap(self, shard: int, message: Message) -> Message:
        """Returns a message of a client with the hops to the same worker of another member."""
        origin = message.origin
        key = shard, origin.identity, origin.peer
        hop = self._hops.get(key)
        if hop is None:
            if len(self._hops) >= ENVELOPES_MAX:
                self._hops.clear()
            identity = origin.identity
            hop = self._hops[key] = envelope_hop(Envelope(shard, 0, identity.source, identity.name, origin.peer))
        return Message((CLUSTER, hop, *message.onward_route), message.return_route, message.payload, origin)

    def unwrap(self, message: Message, envelope: Envelope) -> Message:
        """Returns the message of the client, with the identity that it has proved to the other member."""
        key = message.origin, message.onward_route[1].value
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= ENVELOPES_MAX:
                self._origins.clear()
            origin = message.origin
            if origin is not HERE:
                # The limits of the client are those of the member to which it is connected.
                known = {"identity": envelope.identity, "peer": envelope.peer, "usage": UNLIMITED}
                origin = msgspec.structs.replace(origin, **known)
            self._origins[key] = origin
        return Message(message.onward_route[2:], message.return_route, message.payload, origin)
