"""The limits of one identity, and the buckets of permits that limit its rates. This module reads no clock."""

from __future__ import annotations

import math

import msgspec

OPEN_LIMITS = (
    "connections_max",
    "pulls_parked_max",
    "channels_max",
    "block_publish_sessions_max",
    "block_subscribe_sessions_max",
)
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


def bucket_of(bucket: Bucket | None, count: int | None, room_s: float, per_s: float, now_s: float) -> Bucket | None:
    """Returns the bucket for a new limit of `count` permits in `per_s` seconds, with room for `room_s` seconds."""
    if count is None:
        return None
    made = Bucket(count / per_s, count / per_s * room_s)
    # Permits that were taken out of the bucket before stay taken.
    used = 0.0 if bucket is None else bucket.room_max - bucket.room(now_s)
    if used > 0:
        made.spend(used, now_s)
    return made
