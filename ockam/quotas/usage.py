"""Usage: counts what each identity uses of a node, and says which of its requests must be refused or must wait.

An identity is known by its text. A peer that has proved nothing is known by its IP address, `anonymous:192.0.2.7`, or
for IPv6 by the network of 64 bits, whose addresses one machine can all use: `anonymous:2001:db8:1:2::/64`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING

import msgspec

from ockam.identity.identity import ANONYMOUS, Identity
from ockam.protocol import REFUSAL
from ockam.quotas.limits import HOUR_S, NO_LIMITS, OPEN_LIMITS, Bucket, IdentityLimits, bucket_of
from ockam.quotas.shared_use import SharedUse

if TYPE_CHECKING:
    import trio

LIMITED = "limit exceeded: "
"""The first words of the reason in an `error` for a request that exceeds a limit of its sender's identity."""
SETTING_PREFIX = "identity_"
"""The beginning of the names of the node's settings for all identities. A field name of `IdentityLimits` follows it."""
STEP_S = 0.005
"""An identity with a limit on its rate is read in steps: at most what the limit allows in this time."""
READ_BYTES_MIN = 2 * 1024
BURST_S = 1.0
"""After a pause, an identity can send at once what its limit allows in this many seconds."""
IPV6_PREFIX_BITS = 64
REFUSED_CONNECTIONS_MAX = 16
"""If an identity has too many connections, at most this many new ones stay open for a first request, to refuse it."""
USAGES_MAX = 10_000
ANONYMOUS_PREFIX = "anonymous:"
SHARED = "everybody without a certificate or token at this address counts for it; "
ADVICE = {
    "connections_max": "close connections that are not needed",
    "streams_per_hour": "create streams later",
    "pulls_parked_max": "let fewer consumers wait at a time, or pull without waiting",
    "channels_max": "close channels that are not needed",
    "block_publish_sessions_max": "end sessions that are not needed",
    "block_subscribe_sessions_max": "end subscriptions that are not needed",
}


REFUSING_LIMITS = frozenset((*OPEN_LIMITS, "streams_per_hour"))
"""The limits above which a request is refused. Above the other limits, the node reads more slowly."""


class LimitStatistics(msgspec.Struct, frozen=True):
    """The statistics of the limits of identities. `open`, and since the start `refused` and `slowed`, are by limit.

    identities: the number of identities that use something now. held_bytes: the bytes that the node holds for all.
    slowed: how often the node had to wait before it read from an identity."""

    identities: int
    held_bytes: int
    open: dict[str, int]
    refused: dict[str, int]
    slowed: dict[str, int]


class Excess(msgspec.Struct, frozen=True):
    """The event that an identity (key) has exceeded a limit. peer: the `host:port` that was refused, or ""."""

    key: str
    limit: str
    reason: str
    peer: str = ""

    @property
    def is_refusal(self) -> bool:
        return self.limit in REFUSING_LIMITS


@lru_cache(maxsize=1_000)
def party_key(identity: Identity, peer: str) -> str:
    """Returns the text of the identity for which a connection counts. peer: the `host:port` of the other side."""
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
    try:
        return ip_address(host)
    except ValueError:
        return None


def find_network(text: str) -> IPv6Network | None:
    try:
        network = IPv6Network(text)
    except ValueError:
        return None
    return network if network.prefixlen == IPV6_PREFIX_BITS else None


def is_limited(reason: str) -> bool:
    return reason.startswith((REFUSAL + LIMITED, LIMITED))


class Usage:
    """What one identity uses. All connections, channels and workers that serve the identity share this object.

    is_rated: whether the requests or the bytes in a second are limited.
    counts_bytes: whether the bytes that the node holds for the identity are limited.
    refused_connections: the number of open connections above the limit, whose first requests will be refused.
    Times are monotonic seconds.

    Invariant: no count is negative. A count is at most its limit, unless the limit was lowered since."""

    __slots__ = (
        "_bytes",
        "_note",
        "_open",
        "_request_bytes",
        "_requests",
        "_room",
        "_shared",
        "_streams",
        "_turn",
        "counts_bytes",
        "held_bytes",
        "is_rated",
        "key",
        "limits",
        "refused_connections",
    )

    def __init__(
        self,
        key: str,
        limits: IdentityLimits,
        note: Callable[[Excess], None] = lambda excess: None,
        shared: SharedUse | None = None,
    ) -> None:
        """note: called each time when the identity exceeds a limit, also if the node only reads more slowly.
        shared: what the identities use at all processes of the node; None: this is the only process."""
        self.key = key
        self._shared = shared
        self._note = note
        # Both are made at the first wait. Most identities never wait, and settings are read without trio.
        self._turn: trio.StrictFIFOLock | None = None
        self._room: trio.lowlevel.ParkingLot | None = None
        self.refused_connections = 0
        self.held_bytes = 0
        self._open: Counter[str] = Counter()
        self._requests: Bucket | None = None
        self._bytes: Bucket | None = None
        self._streams: Bucket | None = None
        self._request_bytes = 0.0
        self.change_limits(limits, 0.0)

    def change_limits(self, limits: IdentityLimits, now_s: float) -> None:
        """Replaces the limits. What is open above a lower limit stays open. Permits that were taken stay taken."""
        self.limits = limits
        self._requests = bucket_of(self._requests, limits.requests_per_second, BURST_S, 1.0, now_s)
        self._bytes = bucket_of(self._bytes, limits.bytes_per_second, BURST_S, 1.0, now_s)
        self._streams = bucket_of(self._streams, limits.streams_per_hour, HOUR_S, HOUR_S, now_s)
        self.is_rated = self._requests is not None or self._bytes is not None
        self.counts_bytes = limits.in_flight_bytes_max is not None
        self._report_room()

    def is_unused(self, now_s: float) -> bool:
        buckets = (self._requests, self._bytes, self._streams)
        full = all(bucket is None or bucket.room(now_s) >= bucket.room_max for bucket in buckets)
        return full and not self._open and not self.held_bytes and not self.refused_connections

    def check(self) -> None:
        assert self.held_bytes >= 0
        assert all(count > 0 for count in self._open.values())
        assert set(self._open) <= set(OPEN_LIMITS)

    # Things that are open.

    def count(self, limit: str) -> int:
        return self._open[limit]

    def _has_room(self, limit: str) -> bool:
        most = getattr(self.limits, limit)
        return most is None or self._open[limit] < most

    def take(self, limit: str, peer: str = "") -> str | None:
        """Counts one more open thing (one of `limits.OPEN_LIMITS`) until `give_back` is called. If the limit forbids
        it, returns the reason and counts nothing."""
        # The other processes of the node count, too.
        if not self._has_room(limit) or (
            self._shared is not None and not self._shared.take(self.key, limit, getattr(self.limits, limit))
        ):
            return self.refuse(limit, peer)
        self._open[limit] += 1
        return None

    def give_back(self, limit: str) -> None:
        left = self._open[limit] - 1
        assert left >= 0, f"more {limit} have ended than were open"
        if left:
            self._open[limit] = left
        else:
            del self._open[limit]
        if self._shared is not None:
            self._shared.give_back(self.key, limit)

    def create(self, partitions: int, now_s: float, peer: str = "") -> str | None:
        """Counts partitions that will be created. If they are too many, returns the reason and counts nothing."""
        bucket, most = self._streams, self.limits.streams_per_hour
        if bucket is None or most is None:
            return None
        if self._shared is not None:
            may_create = self._shared.create(self.key, partitions, most)
        else:
            may_create = bucket.room(now_s) >= partitions
            if may_create:
                bucket.spend(partitions, now_s)
        return None if may_create else self.refuse("streams_per_hour", peer)

    def give_back_created(self, partitions: int, now_s: float) -> None:
        """Returns the permits of partitions that `create` has counted and that were not created."""
        bucket, most = self._streams, self.limits.streams_per_hour
        if bucket is None or most is None:
            return
        if self._shared is not None:
            self._shared.give_back_created(self.key, partitions, most)
        else:
            # The permits may have come back with time already.
            bucket.spend(-min(partitions, bucket.room_max - bucket.room(now_s)), now_s)

    @property
    def turns_away(self) -> bool:
        """Whether a new connection must be closed at once: too many others are open above the limit already."""
        return self.refused_connections >= REFUSED_CONNECTIONS_MAX and not self._has_room("connections_max")

    def reason(self, limit: str) -> str:
        name, most = SETTING_PREFIX + limit, getattr(self.limits, limit)
        advice = ADVICE.get(limit, "send less at a time")
        shared = SHARED if self.key.startswith(ANONYMOUS_PREFIX) else ""
        return f"{LIMITED}{name} is {most} for {self.key}; {shared}{advice}, or ask the operator to raise it"

    def refuse(self, limit: str, peer: str) -> str:
        reason = self.reason(limit)
        self._note(Excess(self.key, limit, reason, peer))
        return reason

    # Rates.

    def spend(self, requests: int, size_bytes: int, now_s: float) -> None:
        if self._requests is not None:
            self._requests.spend(requests, now_s)
        if self._bytes is not None:
            self._bytes.spend(size_bytes, now_s)

    def note_request_bytes(self, requests: int, size_bytes: int) -> None:
        """Updates the estimated size of the identity's requests after a read that completed this number of them."""
        # A read without a complete request means that requests are larger than estimated.
        found_bytes = size_bytes / requests if requests else self._request_bytes + size_bytes
        self._request_bytes = found_bytes if not self._request_bytes else (self._request_bytes + found_bytes) / 2

    def delay_s(self, now_s: float) -> tuple[float, str]:
        """Returns for how many seconds nothing should be read from the identity, and the name of the exceeded limit."""
        delays = [(0.0, "")]
        if self._requests is not None:
            delays.append((self._requests.delay_s(now_s), "requests_per_second"))
        if self._bytes is not None:
            delays.append((self._bytes.delay_s(now_s), "bytes_per_second"))
        return max(delays)

    def read_bytes_max(self) -> int:
        found = math.inf
        if self._requests is not None:
            found = max(1.0, self._requests.rate * STEP_S) * self._request_bytes
        if self._bytes is not None:
            found = min(found, self._bytes.rate * STEP_S)
        return 1 << 62 if found == math.inf else max(READ_BYTES_MIN, int(found))

    def take_turn(self, now_s: float) -> bool:
        """Counts an answer that no new request asked for as if it were a request. Returns False if the identity must
        request the next answer, because the node reads its requests more slowly now."""
        if self.is_rated:
            self.spend(1, 0, now_s)
        return not (self.is_over or (self.is_rated and self.delay_s(now_s)[0]))

    async def wait_turn(self) -> None:
        """Waits until the rates allow to read from the identity."""
        import trio

        if self._turn is None:
            self._turn = trio.StrictFIFOLock()
        # Only the first connection in the line looks at the time. So a thousand connections wake no oftener than one.
        async with self._turn:
            while True:
                delay_s, limit = self.delay_s(trio.current_time())
                if not delay_s:
                    return
                self._note(Excess(self.key, limit, self.reason(limit)))
                await trio.sleep(delay_s)

    # Bytes in flight.

    def hold(self, change_bytes: int) -> None:
        self.held_bytes += change_bytes
        if change_bytes < 0 and self._room is not None:
            self._report_room()

    @property
    def is_over(self) -> bool:
        most = self.limits.in_flight_bytes_max
        return most is not None and self.held_bytes > most

    async def wait_room(self) -> None:
        """Waits until the node holds no more bytes for the identity than its limit."""
        import trio

        if self._room is None:
            self._room = trio.lowlevel.ParkingLot()
        if self.is_over:
            self._note(Excess(self.key, "in_flight_bytes_max", self.reason("in_flight_bytes_max")))
        # The room may be used up by another connection, or a limit be lowered, before this one goes on.
        while self.is_over:
            await self._room.park()

    def _report_room(self) -> None:
        if self._room is not None and not self.is_over:
            self._room.unpark_all()


UNLIMITED = Usage("local:node", NO_LIMITS)
"""The usage, without limits, of this node's own workers and of the nodes that this node has called."""


class Usages:
    """The usage of all identities of a node, and their limits.

    limits: the general limits. `replace_tables` sets other limits for single identities.
    limits_loopback: whether the general limits also apply to anonymous peers on this machine.
    on_excess: called each time when an identity exceeds a limit.
    names_channels: whether only identities that the operator has named can open channels. If not, anybody can make any
    number of identities. So a request that came out of a channel of another process, or that a worker makes for its
    sender, counts for the peer's address."""

    def __init__(
        self,
        limits: IdentityLimits = NO_LIMITS,
        *,
        limits_loopback: bool = False,
        on_excess: Callable[[Excess], None] | None = None,
        shared: SharedUse | None = None,
        names_channels: bool = True,
    ) -> None:
        self.on_excess = on_excess
        self.names_channels = names_channels
        self._shared = shared
        self._limits = limits
        self._limits_loopback = limits_loopback
        self._tables: dict[str, dict[str, int | None]] = {}
        self._usages: dict[str, Usage] = {}
        self._refused: Counter[str] = Counter()
        self._slowed: Counter[str] = Counter()

    def get(self, key: str, now_s: float) -> Usage:
        """Returns an identity's usage. A caller that retains it must count something in it, or it can be forgotten."""
        usage = self._usages.get(key)
        if usage is None:
            # Anybody can come from many addresses, so identities that use nothing are forgotten.
            if len(self._usages) >= USAGES_MAX:
                self.forget_unused(now_s)
            usage = self._usages[key] = Usage(key, self.limits_of(key), self._exceeded, self._shared)
        return usage

    def key_of(self, identity: Identity, peer: str) -> str:
        """Returns the key of the usage for which this identity counts outside its own channel, see `names_channels`.
        peer: the `host:port` of the other side."""
        if identity.source == "channel" and not self.names_channels:
            identity = ANONYMOUS
        return party_key(identity, peer)

    def limits_of(self, key: str) -> IdentityLimits:
        """Returns the limits of an identity. The most precise pattern that sets a limit decides, else the general
        limit. A star at the end of a pattern matches any text; `anonymous` matches all anonymous peers."""
        limits = self._limits
        if not self._limits_loopback and key.startswith(ANONYMOUS_PREFIX):
            address = find_address(key.removeprefix(ANONYMOUS_PREFIX))
            if address is not None and address.is_loopback:
                limits = NO_LIMITS
        changes: dict[str, int | None] = {}
        is_wide = {pattern: pattern.endswith("*") or pattern == "anonymous" for pattern in self._tables}
        for pattern in sorted(is_wide, key=lambda pattern: (not is_wide[pattern], len(pattern))):
            begin = ANONYMOUS_PREFIX if pattern == "anonymous" else pattern.removesuffix("*")
            if key == pattern or (is_wide[pattern] and key.startswith(begin)):
                changes |= self._tables[pattern]
        return msgspec.structs.replace(limits, **changes) if changes else limits

    def replace_tables(self, tables: Mapping[str, Mapping[str, int | None]], now_s: float) -> None:
        self._tables = {pattern: dict(table) for pattern, table in tables.items()}
        self._report_limits(now_s)

    def replace_limits(self, limits: IdentityLimits, now_s: float, *, limits_loopback: bool) -> None:
        self._limits = limits
        self._limits_loopback = limits_loopback
        self._report_limits(now_s)

    def _report_limits(self, now_s: float) -> None:
        for key, usage in self._usages.items():
            usage.change_limits(self.limits_of(key), now_s)

    def forget_unused(self, now_s: float) -> None:
        for key in [key for key, usage in self._usages.items() if usage.is_unused(now_s)]:
            del self._usages[key]

    def statistics(self) -> LimitStatistics:
        used: Counter[str] = Counter()
        held_bytes = identities = 0
        for usage in self._usages.values():
            opened = {name: usage.count(name) for name in OPEN_LIMITS}
            held_bytes += usage.held_bytes
            identities += bool(usage.held_bytes or any(opened.values()))
            used.update({name: count for name, count in opened.items() if count})
        return LimitStatistics(identities, held_bytes, dict(used), dict(self._refused), dict(self._slowed))

    def _exceeded(self, excess: Excess) -> None:
        counter = self._refused if excess.is_refusal else self._slowed
        counter[excess.limit] += 1
        if self.on_excess is not None:
            self.on_excess(excess)
