"""Envelopes: adds to a client's message the data that another member needs, and reads these data at that member.
The same few clients send most messages, so both directions remember their results."""

from __future__ import annotations

import msgspec
import trio

from ockam.actors.address import Address
from ockam.actors.message import Message, Origin
from ockam.identity.identity import Identity
from ockam.quotas.usage import UNLIMITED, Usage, Usages
from stream_node.fleet.cluster.protocol import MEMBER, MemberEnvelope, envelope_hop, read_envelope

ENVELOPES_MAX = 10_000


class Envelopes:
    def __init__(self, usages: Usages) -> None:
        self._usages = usages
        self._hops: dict[tuple[int, Identity, str, int], Address] = {}
        self._origins: dict[tuple[Origin, bytes], Origin] = {}

    def wrap(self, shard: int, message: Message) -> Message:
        """Returns a client's message with two more hops in front: MEMBER, and an envelope for this shard."""
        origin = message.origin
        key = shard, origin.identity, origin.peer, origin.frame_bytes_max
        hop = self._hops.get(key)
        if hop is None:
            if len(self._hops) >= ENVELOPES_MAX:
                self._hops.clear()
            identity = origin.identity
            hop = self._hops[key] = envelope_hop(
                MemberEnvelope(shard, 0, identity.source, identity.name, origin.peer, origin.frame_bytes_max)
            )
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
