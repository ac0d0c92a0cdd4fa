"""Usage: one place that knows what each identity uses of a node. It counts, and says what must be refused or must wait.

An identity is known by its text. A peer that has proved nothing is known by its address: `anonymous:192.0.2.7`, and for
IPv6 by the network of 64 bits, `anonymous:2001:db8:1:2::/64`, since every machine has such a network to itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Protocol

import msgspec

from ockam.identity import Identity
from ockam.protocol import REFUSAL
from ockam.usage_machine import NO_LIMITS, OPEN_LIMITS, IdentityLimits, UsageMachine

LIMITED = "limit exceeded: "
"""The first words of the reason in an `error` for a request that exceeds a limit of its sender's identity."""
SETTING_PREFIX = "identity_"
"""The settings of the node for all identities have the names of `IdentityLimits` with this beginning."""
IPV6_PREFIX_BITS = 64
REFUSED_CONNECTIONS_MAX = 16
"""The most connections of one identity above its limit that are kept until their first request has been refused."""
USAGES_MAX = 10_000
"""The number of known identities from which on those without any usage are forgotten at the next new one."""
ANONYMOUS_PREFIX = "anonymous:"
ADVICE = {
    "connections_max": "close connections that are not needed",
    "streams_per_hour": "create streams later",
    "pulls_parked_max": "let fewer consumers wait at a time, or pull without waiting",
    "channels_max": "close channels that are not needed",
    "block_publish_sessions_max": "end sessions that are not needed",
    "block_subscribe_sessions_max": "end subscriptions that are not needed",
}
"""What a client can do that exceeds a limit."""


REFUSING_LIMITS = frozenset((*OPEN_LIMITS, "streams_per_hour"))
"""The limits above which a request is refused. Above the other limits, the node reads more slowly."""


class LimitStatistics(msgspec.Struct, frozen=True):
    """The statistics of the limits of identities.

    identities: the identities that use something now. held_bytes: the bytes that the node holds for all of them. open:
    the things that are open, by limit. refused: the refused requests since the start, by limit. slowed: how often
    reading had to wait since the start, by limit.
    """

    identities: int
    held_bytes: int
    open: dict[str, int]
    refused: dict[str, int]
    slowed: dict[str, int]


class Excess(msgspec.Struct, frozen=True):
    """One event of an identity that exceeded a limit. peer: the `host:port`; empty if the identity was only slowed
    down. reason: what the sender was told, or would have been."""

    key: str
    limit: str
    reason: str
    peer: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether a request was refused. If not, the node reads more slowly from the identity."""
        return self.limit in REFUSING_LIMITS


def party_key(identity: Identity, peer: str) -> str:
    """Returns the text under which the usage of a connection counts. peer: the `host:port` of the other side."""
    if identity.source != "anonymous":
        return str(identity)
    host = peer.rpartition(":")[0].strip("[]")
    address = find_address(host)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return f"{ANONYMOUS_PREFIX}{address.ipv4_mapped}"
        if not address.is_loopback:
            # A scope such as %eth0 names an interface of this node and not the peer.
            return f"{ANONYMOUS_PREFIX}{IPv6Network((int(address), IPV6_PREFIX_BITS), strict=False)}"
    return f"{ANONYMOUS_PREFIX}{host}"


def find_address(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the address that a text names, or None if it is not an address."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def find_network(text: str) -> IPv6Network | None:
    """Returns the IPv6 network of 64 bits that a text names, or None if it names none."""
    try:
        network = IPv6Network(text)
    except ValueError:
        return None
    return network if network.prefixlen == IPV6_PREFIX_BITS else None


def is_limited(reason: str) -> bool:
    """Whether the reason of an `error` says that the sender's identity has exceeded a limit."""
    return reason.startswith((REFUSAL + LIMITED, LIMITED))


class Waiting(Protocol):
    """What makes the connections of one identity wait. `usage_waits.UsageWaits` does."""

    def tell_room(self) -> None:
        """The node holds no more bytes for the identity than it may, so its connections may be read again."""
        ...


class Usage:
    """What one identity uses. All connections, channels and workers that serve the identity share this object.

    key: the text of the identity. is_rated: whether the requests or bytes of a second are limited. counts_bytes:
    whether the bytes in flight are limited. waiting: what makes the identity's connections wait (`usage_waits`); None
    if none of them has waited yet. refused_connections: the connections above the limit whose first request is to be
    answered by a refusal.
    """

    __slots__ = ("_note", "counts_bytes", "is_rated", "key", "machine", "refused_connections", "waiting")

    def __init__(self, key: str, limits: IdentityLimits, note: Callable[[Excess], None] = lambda excess: None) -> None:
        """note: is told of each excess, also when reading was only slowed down."""
        self.key = key
        self.machine = UsageMachine(limits)
        self._note = note
        self.waiting: Waiting | None = None
        self.refused_connections = 0
        self.is_rated = self.machine.is_rated
        self.counts_bytes = limits.in_flight_bytes_max is not None

    def change_limits(self, limits: IdentityLimits, now_s: float) -> None:
        self.machine.change_limits(limits, now_s)
        self.is_rated = self.machine.is_rated
        self.counts_bytes = limits.in_flight_bytes_max is not None
        self._tell_room()

    def is_unused(self, now_s: float) -> bool:
        return not self.refused_connections and self.machine.is_unused(now_s)

    # Refusals.

    def take(self, limit: str, peer: str = "") -> str | None:
        """Counts one more open thing. Returns None, or the reason why it must be refused; then nothing is counted.

        limit: one of `usage_machine.OPEN_LIMITS`. Call `give_back` when the thing has ended."""
        return None if self.machine.take(limit) else self._refuse(limit, peer)

    def give_back(self, limit: str) -> None:
        self.machine.give_back(limit)

    def create(self, partitions: int, now_s: float, peer: str = "") -> str | None:
        """Counts partitions that are to be created. Returns None, or the reason why they must be refused."""
        return None if self.machine.may_create(partitions, now_s) else self._refuse("streams_per_hour", peer)

    @property
    def turns_away(self) -> bool:
        """Whether a further connection is closed at once, because too many others wait for their refusal already."""
        return self.refused_connections >= REFUSED_CONNECTIONS_MAX and not self.machine.has_room("connections_max")

    def reason(self, limit: str) -> str:
        """Returns the text for a request that exceeds a limit."""
        name, most = SETTING_PREFIX + limit, getattr(self.machine.limits, limit)
        advice = ADVICE.get(limit, "send less at a time")
        return f"{LIMITED}{name} is {most} for {self.key}; {advice}, or ask the operator to raise it"

    def _refuse(self, limit: str, peer: str) -> str:
        reason = self.reason(limit)
        self._note(Excess(self.key, limit, reason, peer))
        return reason

    # Bytes in flight.

    def hold(self, change_bytes: int) -> None:
        """Counts bytes that the node holds for the identity. A negative number gives bytes back."""
        self.machine.hold(change_bytes)
        if change_bytes < 0 and self.waiting is not None:
            self._tell_room()

    def note_wait(self, limit: str) -> None:
        """Counts that a connection of the identity must wait before it is read again."""
        self._note(Excess(self.key, limit, self.reason(limit)))

    def _tell_room(self) -> None:
        if self.waiting is not None and not self.machine.is_over:
            self.waiting.tell_room()


UNLIMITED = Usage("local:node", NO_LIMITS)
"""The usage of this node's own workers and of the nodes that it has called, which have no limits."""


class Usages:
    """The usage of all identities of a node, and their limits.

    limits: the limits of every identity without limits of its own. limits_loopback: whether they also count for
    anonymous peers on this machine; without it, these have only the limits that a table names for them. on_excess: is
    told of each excess.
    """

    def __init__(
        self,
        limits: IdentityLimits = NO_LIMITS,
        *,
        limits_loopback: bool = False,
        on_excess: Callable[[Excess], None] | None = None,
    ) -> None:
        self.on_excess = on_excess
        self._limits = limits
        self._limits_loopback = limits_loopback
        self._tables: dict[str, dict[str, int | None]] = {}
        self._usages: dict[str, Usage] = {}
        self._refused: Counter[str] = Counter()
        self._slowed: Counter[str] = Counter()

    def get(self, key: str, now_s: float) -> Usage:
        """Returns the usage of an identity. key: the result of `party_key`, or the text of a channel's identity.

        Who keeps the result must have something open or held in it; otherwise the node may forget it."""
        usage = self._usages.get(key)
        if usage is None:
            if len(self._usages) >= USAGES_MAX:
                self.forget_unused(now_s)
            usage = self._usages[key] = Usage(key, self.limits_of(key), self._exceeded)
        return usage

    def limits_of(self, key: str) -> IdentityLimits:
        """Returns the limits of an identity. Each limit is that of the most precise pattern that names it, and else the
        general one.

        A star at the end of a pattern stands for the rest of the text; `anonymous` matches all anonymous peers."""
        limits = self._limits
        if not self._limits_loopback and key.startswith(ANONYMOUS_PREFIX):
            address = find_address(key.removeprefix(ANONYMOUS_PREFIX))
            if address is not None and address.is_loopback:
                limits = NO_LIMITS
        changes: dict[str, int | None] = {}
        for pattern in sorted(self._tables, key=_precision):
            if _matches(pattern, key):
                changes |= self._tables[pattern]
        return msgspec.structs.replace(limits, **changes) if changes else limits

    def replace_tables(self, tables: Mapping[str, Mapping[str, int | None]], now_s: float) -> None:
        """Takes other limits of single identities, by pattern. None in a table means no limit. Open connections keep
        what they have, and obey the new limits from now on."""
        self._tables = {pattern: dict(table) for pattern, table in tables.items()}
        for key, usage in self._usages.items():
            usage.change_limits(self.limits_of(key), now_s)

    def forget_unused(self, now_s: float) -> None:
        """Forgets the identities that use nothing."""
        for key in [key for key, usage in self._usages.items() if usage.is_unused(now_s)]:
            del self._usages[key]

    def statistics(self) -> LimitStatistics:
        used: Counter[str] = Counter()
        held_bytes = identities = 0
        for usage in self._usages.values():
            opened = {name: usage.machine.count(name) for name in OPEN_LIMITS}
            held_bytes += usage.machine.held_bytes
            identities += bool(usage.machine.held_bytes or any(opened.values()))
            used.update({name: count for name, count in opened.items() if count})
        return LimitStatistics(identities, held_bytes, dict(used), dict(self._refused), dict(self._slowed))

    def _exceeded(self, excess: Excess) -> None:
        counter = self._refused if excess.is_refusal else self._slowed
        counter[excess.limit] += 1
        if self.on_excess is not None:
            self.on_excess(excess)


def _precision(pattern: str) -> tuple[bool, int]:
    """Orders patterns from the general to the precise ones."""
    return not pattern.endswith("*") and pattern != "anonymous", len(pattern)


def _matches(pattern: str, key: str) -> bool:
    if pattern.endswith("*"):
        return key.startswith(pattern[:-1])
    return key == pattern or (pattern == "anonymous" and key.startswith(ANONYMOUS_PREFIX))
