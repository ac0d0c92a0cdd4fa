"""AdmissionMachine: decides whether a handshake can begin and a channel can open. It only counts, and has no clock.

Whoever reaches the listener can begin handshakes before proving an identity, so their number and rate are limited. If
too many are under way, a new one takes the place of the oldest, whose peer has probably given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

from ockam.identity.channel.limits import ChannelLimits

HOSTS_MAX = 10_000
"""The most hosts whose handshakes of the last second are counted. The host idle longest is forgotten first."""

C = TypeVar("C", bound=Hashable)


class AdmissionMachine(Generic[C]):
    """The handshakes under way and the open channels, by connection. C: the type of a handshake or channel.

    Invariant: no channel is in both `handshakes` and `channels`, and the counts agree with these two."""

    def __init__(self, limits: ChannelLimits) -> None:
        self._limits = limits
        self._hosts: dict[str, tuple[float, float]] = {}
        # The oldest handshake is the first of a dict.
        self.handshakes: dict[C, Hashable] = {}
        self.channels: dict[C, Hashable] = {}
        self._by_peer: Counter[Hashable] = Counter()
        self._handshakes_by_peer: dict[Hashable, dict[C, None]] = {}

    def may_begin(self, host: str, now_s: float) -> bool:
        """Whether a host is allowed to begin one more handshake at this time. If so, the handshake is counted."""
        # A host gets permits with time, and has at most the permits of one second.
        rate = self._limits.handshakes_per_s
        room, at_s = self._hosts.pop(host, (rate, now_s))
        room = min(rate, room + (now_s - at_s) * rate)
        is_admitted = room >= 1
        self._hosts[host] = (room - 1 if is_admitted else room, now_s)
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
