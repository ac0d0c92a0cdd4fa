"""UsageMachine: counts what one identity uses of a node, and compares it with its limits. It reads no clock."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

OPEN_LIMITS = (
    "connections_max",
    "pulls_parked_max",
    "channels_max",
    "block_publish_sessions_max",
    "block_subscribe_sessions_max",
)
STEP_S = 0.005
"""An identity with a limit on its rate is read in steps: at most what the limit allows in this time."""
READ_BYTES_MIN = 2 * 1024
BURST_S = 1.0
"""After a pause, an identity can send at once what its limit allows in this many seconds."""
HOUR_S = 3_600.0

PARTY_SHARE = 4
"""One party (a host or an identity) can have at most the fraction 1/PARTY_SHARE of what all parties share, such as the
connections of a door."""


def share_of(most: int) -> int:
    return max(1, most // PARTY_SHARE)


class IdentityLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one identity. None means that there is no limit.

    connections_max: the number of open connections.
    requests_per_second: received messages. Above the limit, the node reads more slowly from the identity.
    bytes_per_second: received and sent bytes. Above the limit, the node reads more slowly from the identity.
    in_flight_bytes_max: the bytes that the node holds for the identity, such as answers that its peers have not taken.
    Above the limit, the node reads nothing from the identity.
    streams_per_hour: created partitions.
    pulls_parked_max: the number of pulls that wait for a message.
    channels_max: the number of open secure channels.
    block_publish_sessions_max, block_subscribe_sessions_max: the number of publishers, and of subscribers, of blocks.
    Above a limit without another explanation, the request is refused."""

    connections_max: int | None = None
    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    in_flight_bytes_max: int | None = None
    streams_per_hour: int | None = None
    pulls_parked_max: int | None = None
    channels_max: int | None = None
    block_publish_sessions_max: int | None = None
    block_subscribe_sessions_max: int | None = None


LIMIT_NAMES = IdentityLimits.__struct_fields__
NO_LIMITS = IdentityLimits()


class Bucket:
    """A bucket of permits, which fills with time. If too many are taken, its owner must wait for the missing ones.

    rate: the permits that come in a second. Invariant: the number of permits is at most `room_max`."""

    __slots__ = ("_at_s", "_room", "rate", "room_max")

    def __init__(self, rate: float, room_max: float) -> None:
        self.rate = rate
        self.room_max = room_max
        self._room = room_max
        self._at_s = -math.inf

    def room(self, now_s: float) -> float:
        if self._room >= self.room_max:
            return self.room_max
        return min(self.room_max, self._room + max(0.0, now_s - self._at_s) * self.rate)

    def spend(self, count: float, now_s: float) -> None:
        self._room = self.room(now_s) - count
        self._at_s = max(now_s, self._at_s)

    def delay_s(self, now_s: float) -> float:
        return max(0.0, -self.room(now_s) / self.rate)

    def changed(self, rate: float, room_max: float, now_s: float) -> Bucket:
        bucket = Bucket(rate, room_max)
        used = self.room_max - self.room(now_s)
        if used > 0:
            bucket.spend(used, now_s)
        return bucket


class UsageMachine:
    """What one identity uses, and its limits. Times are monotonic seconds.

    Invariant: no count is negative. A count is at most its limit, unless the limit was lowered since."""

    def __init__(self, limits: IdentityLimits = NO_LIMITS) -> None:
        self.limits = limits
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
        self._requests = _changed(self._requests, limits.requests_per_second, BURST_S, 1.0, now_s)
        self._bytes = _changed(self._bytes, limits.bytes_per_second, BURST_S, 1.0, now_s)
        self._streams = _changed(self._streams, limits.streams_per_hour, HOUR_S, HOUR_S, now_s)

    # Things that are open.

    def count(self, limit: str) -> int:
        return self._open[limit]

    def has_room(self, limit: str) -> bool:
        most = getattr(self.limits, limit)
        return most is None or self._open[limit] < most

    def take(self, limit: str) -> bool:
        if not self.has_room(limit):
            return False
        self._open[limit] += 1
        return True

    def give_back(self, limit: str, count: int = 1) -> None:
        left = self._open[limit] - count
        assert left >= 0, f"more {limit} have ended than were open"
        if left:
            self._open[limit] = left
        else:
            del self._open[limit]

    # Rates.

    @property
    def is_rated(self) -> bool:
        return self._requests is not None or self._bytes is not None

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

    def may_create(self, partitions: int, now_s: float) -> bool:
        """Counts created partitions. Returns False, and counts nothing, if they are too many."""
        bucket = self._streams
        if bucket is None:
            return True
        if bucket.room(now_s) < partitions:
            return False
        bucket.spend(partitions, now_s)
        return True

    def give_back_created(self, partitions: int, now_s: float) -> None:
        """Returns the permits of partitions that were counted and not created."""
        bucket = self._streams
        if bucket is not None:
            # The permits may have come back with time already.
            bucket.spend(-min(partitions, bucket.room_max - bucket.room(now_s)), now_s)

    # Bytes in flight.

    def hold(self, change_bytes: int) -> None:
        self.held_bytes += change_bytes

    @property
    def is_over(self) -> bool:
        most = self.limits.in_flight_bytes_max
        return most is not None and self.held_bytes > most

    def is_unused(self, now_s: float) -> bool:
        buckets = (self._requests, self._bytes, self._streams)
        full = all(bucket is None or bucket.room(now_s) >= bucket.room_max for bucket in buckets)
        return full and not self._open and not self.held_bytes

    def check(self) -> None:
        assert self.held_bytes >= 0
        assert all(count > 0 for count in self._open.values())
        assert set(self._open) <= set(OPEN_LIMITS)


def _changed(bucket: Bucket | None, count: int | None, room_s: float, per_s: float, now_s: float) -> Bucket | None:
    """Returns the bucket for a new limit of `count` permits in `per_s` seconds, with room for `room_s` seconds."""
    if count is None:
        return None
    rate = count / per_s
    return Bucket(rate, rate * room_s) if bucket is None else bucket.changed(rate, rate * room_s, now_s)
