"""ChannelLimits and ChannelStatistics: the bounds of a node's channels, and their statistics."""

from __future__ import annotations

import msgspec


class ChannelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the channels of one node. A peer can begin handshakes before it proves anything.

    handshakes_max, peer_handshakes_max: the most under way, in all and for one connection. The oldest gives way.
    handshakes_per_s: how many one identity or address can begin in a second. Each costs a quarter of a millisecond.
    handshake_s_max: the longest time from message 1 to message 3.
    channels_max, peer_channels_max: the most open channels, in all and for one connection.
    idle_s_max: a channel ends after this many seconds without a message.
    gone_s_max: a channel ends this long after its connection. Until then, its peer can use another connection."""

    handshakes_max: int = 1_000
    peer_handshakes_max: int = 8
    handshakes_per_s: float = 50.0
    handshake_s_max: float = 10.0
    channels_max: int = 10_000
    peer_channels_max: int = 64
    idle_s_max: float = 3_600.0
    gone_s_max: float = 60.0


class ChannelStatistics(msgspec.Struct, frozen=True):
    """The statistics of a node's channels. open, handshakes: present numbers; the others count since the start (the
    last three by reason).

    refused: messages that began no handshake, and refused identities and channels. dropped: messages in channels, and
    wrong messages of handshakes."""

    open: int
    handshakes: int
    opened: int
    refused: dict[str, int]
    ended: dict[str, int]
    dropped: dict[str, int]
