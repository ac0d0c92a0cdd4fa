"""ChannelLimits and ChannelStatistics: the bounds of a node's channels, and what is counted about them."""

from __future__ import annotations

import msgspec


class ChannelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the channels of one node. Each message to the listener makes state before anything is proved.

    handshakes_max, peer_handshakes_max: the handshakes that are under way, in all and for one connection; beyond that,
    the oldest one is dropped. handshakes_per_s: the handshakes that one identity, or one address, may begin in a
    second, because each costs a quarter of a millisecond. handshake_s_max: the longest time from message 1 to
    message 3.

    channels_max, peer_channels_max: the open channels in all, and of one connection. idle_s_max: a channel without
    messages ends after this time. gone_s_max: a channel whose connection has ended ends after this time, in which its
    peer may come back over another connection.
    """

    handshakes_max: int = 1_000
    peer_handshakes_max: int = 8
    handshakes_per_s: float = 50.0
    handshake_s_max: float = 10.0
    channels_max: int = 10_000
    peer_channels_max: int = 64
    idle_s_max: float = 3_600.0
    gone_s_max: float = 60.0


class ChannelStatistics(msgspec.Struct, frozen=True):
    """The statistics of a node's channels.

    open, handshakes: the open channels and the handshakes under way. The others count since the start. opened: the
    channels that were opened. refused: the messages to the listener that began no handshake, by reason. ended: the
    channels and handshakes that have ended, by reason. dropped: the messages that were dropped in channels, by reason.
    """

    open: int
    handshakes: int
    opened: int
    refused: dict[str, int]
    ended: dict[str, int]
    dropped: dict[str, int]
