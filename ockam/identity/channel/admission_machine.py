"""AdmissionMachine: decides whether a handshake can begin and a channel can open. It only counts, and has no clock.

Whoever reaches the listener can begin handshakes before proving an identity, so their number and rate are limited. If
too many are under way, a new one takes the place of the oldest, whose peer has probably given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from ockam.quotas.limits import Bucket

HOSTS_MAX = 10_000
"""The most hosts whose handshakes of the last second are counted. The host idle longest is forgotten first."""

C = TypeVar("C", bound=Hashable)


class ChannelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the channels of one node. A peer can begin handshakes before it proves anything.

    handshakes_max, peer_handshakes_max: the most handshakes in all and for one connection. The oldest gives way.
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


class AdmissionMachine(Generic[C]):
    """The handshakes under way and the open channels, by connection. C: the type of a handshake or channel.

    Invariant: no channel is in both `handshakes` and `channels`, and the counts agree with these two."""

    def __init__(self, limits: ChannelLimits) -> None:
        self._limits = limits
        self._hosts: dict[str, Bucket] = {}
        # The oldest handshake is the first of a dict.
        self.handshakes: dict[C, Hashable] = {}
        self.channels: dict[C, Hashable] = {}
        self._by_peer: Counter[Hashable] = Counter()
        self._handshakes_by_peer: dict[Hashable, dict[C, None]] = {}

    def may_begin(self, host: str, now_s: float) -> bool:
        """Whether a host is allowed to begin one more handshake at this time. If so, the handshake is counted."""
        # A host gets permits with time, and has at most the permits of one second.
        rate = self._limits.handshakes_per_s
        bucket = self._hosts[host] = self._hosts.pop(host, Bucket(rate, rate))
        is_admitted = bucket.room(now_s) >= 1
        bucket.spend(is_admitted, now_s)
        if len(self._hosts) > HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]
        return is_admitted

    def begin(self, channel: C, peer: Hashable) -> list[C]:
        """Adds a handshake of the connection `peer`. Returns the older handshakes that must be dropped, mostly none."""
        dropped: list[C] = []
        # At its own limit, a connection replaces its own oldest handshake, and not one of another connection.
        own = self._handshakes_by_peer.setdefault(peer, {})
        if len(own) >= self._limits.peer_handshakes_max:
            dropped.append(next(iter(own)))
        elif len(self.handshakes) >= self._limits.handshakes_max:
            dropped.append(next(iter(self.handshakes)))
        for each in dropped:
            self.remove(each)
        self.handshakes[channel] = peer
        self._handshakes_by_peer.setdefault(peer, {})[channel] = None
        return dropped

    def open(self, channel: C) -> str | None:
        """Makes a handshake an open channel. Returns None, or the reason why there is no room for it."""
        peer = self.handshakes[channel]
        # The limits on channels are checked only here: a handshake that never opens takes no place of a channel.
        limits = self._limits
        if len(self.channels) >= limits.channels_max:
            return "channels_max"
        if self._by_peer[peer] >= limits.peer_channels_max:
            return "peer_channels_max"
        self._forget_handshake(channel)
        self.channels[channel] = peer
        self._by_peer[peer] += 1
        return None

    def remove(self, channel: C) -> None:
        if channel in self.handshakes:
            self._forget_handshake(channel)
        elif channel in self.channels:
            peer = self.channels.pop(channel)
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def _forget_handshake(self, channel: C) -> None:
        peer = self.handshakes.pop(channel)
        own = self._handshakes_by_peer[peer]
        del own[channel]
        if not own:
            del self._handshakes_by_peer[peer]

    def check(self) -> None:
        assert not self.handshakes.keys() & self.channels.keys()
        assert self._by_peer == Counter(self.channels.values())
        assert {(each, peer) for peer, own in self._handshakes_by_peer.items() for each in own} == set(
            self.handshakes.items()
        )
        assert all(self._handshakes_by_peer.values())
