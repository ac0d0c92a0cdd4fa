"""Places: decides which connections of a door (HTTP or gRPC) may be open. It opens and closes nothing.

A connection is half while its request has not come whole: in the TLS handshake, before or between requests, and while a
part of a body is missing. Half connections give way to new ones, the oldest first, so nobody keeps others out by saying
nothing. When all connections are busy, a few more may ask for the health of the node."""

from __future__ import annotations

import enum
from collections import Counter
from itertools import islice
from typing import Generic, Protocol, TypeVar

from ockam.quotas.limits import share_of

HEALTH_PLACES = 16
"""The number of connections above all limits that can only ask for the health of the node."""
CANDIDATES_MAX = 32
"""The largest number of half connections that are searched for one whose peer has not just sent something."""


class Guest(Protocol):
    """A connection. has_unread: whether the peer has sent bytes that were not read yet."""

    def has_unread(self) -> bool: ...


class Admission(enum.Enum):
    """Whether a connection may open: as any other, only to ask for the health of the node, or not at all."""

    USUAL = enum.auto()
    HEALTH = enum.auto()
    REFUSED = enum.auto()


G = TypeVar("G", bound=Guest)


class Places(Generic[G]):
    """The open connections, by party: one host, or one certificate.
    Invariant: a guest has one place, under its party or in `_health`. `_half` has the half guests, the oldest first."""

    def __init__(self) -> None:
        self._parties: dict[G, str] = {}
        self._counts: Counter[str] = Counter()
        self._health: dict[G, None] = {}
        self._half: dict[G, None] = {}

    def __len__(self) -> int:
        return len(self._parties) + len(self._health)

    def enter(self, guest: G, party: str, guests_max: int) -> tuple[Admission, G | None]:
        """Gives a place to a new guest, which is half. Returns how it may stay, and the guest that must go for it."""
        # A full party makes room among its own connections; a full node makes room among all.
        is_party_full = self._counts[party] >= share_of(guests_max)
        is_full = is_party_full or len(self._parties) >= guests_max
        gone = self._oldest(party if is_party_full else None) if is_full else None
        is_for_health = is_full and gone is None
        # No half connection can go, so the new one may only ask for the health, if a place for such requests is free.
        if is_for_health and len(self._health) >= HEALTH_PLACES:
            gone = next((each for each in self._half if each in self._health), None)
            if gone is None:
                return Admission.REFUSED, None
        if gone is not None:
            self.leave(gone)
        self._half[guest] = None
        if is_for_health:
            self._health[guest] = None
            return Admission.HEALTH, gone
        self._parties[guest] = party
        self._counts[party] += 1
        return Admission.USUAL, gone

    def leave(self, guest: G) -> None:
        """Frees the place of a guest. Safe to repeat."""
        self._half.pop(guest, None)
        self._health.pop(guest, None)
        party = self._parties.pop(guest, None)
        if party is not None:
            self._counts[party] -= 1
            if not self._counts[party]:
                del self._counts[party]

    def note_received(self, guest: G) -> None:
        self._half.pop(guest, None)

    def note_waits(self, guest: G) -> None:
        """Notes that the answer was sent, and the guest may send its next request."""
        if guest in self._parties or guest in self._health:
            self._half[guest] = None

    def _oldest(self, party: str | None) -> G | None:
        """Returns the guest that has been half for longest, among those of the party if one is given.
        Of the CANDIDATES_MAX oldest, a guest with unread bytes is passed over if a later one has none."""
        parties = ((each, self._parties.get(each)) for each in self._half)
        half = (each for each, its in parties if its is not None and party in (None, its))
        candidates = list(islice(half, CANDIDATES_MAX))
        return next((each for each in candidates if not each.has_unread()), candidates[0] if candidates else None)

    def check(self) -> None:
        """Raises AssertionError if the invariant does not hold. Tests call it after every step."""
        assert not self._parties.keys() & self._health.keys()
        assert self._half.keys() <= self._parties.keys() | self._health.keys()
        assert len(self._health) <= HEALTH_PLACES
        assert self._counts == Counter(self._parties.values())
