"""AuditLines: bounds the lines of the audit log. It decides which lines are written, and counts the others.

Equal lines of one second become one line and a count. The number of different lines is bounded for each party and for
all of one kind, so a flood of one party does not hide the lines about the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ockam.identity.identity import ANONYMOUS
from ockam.quotas.usage import ANONYMOUS_PREFIX, party_key

PARTIES_MAX = 20
"""The most parties whose left out lines are counted apart, in one second. All other parties share one count."""
TOO_MANY = "too many different lines in a short time"
OTHERS = "others"


class Bound(NamedTuple):
    """The bound of the lines of one kind.

    party_max: the most lines about one party at once; `party_per_s` further ones are allowed each second.
    kind_max, kind_per_s: the same for all parties whose identities have the same source, such as all anonymous ones."""

    party_max: int
    party_per_s: int
    kind_max: int
    kind_per_s: int


REFUSALS = Bound(party_max=100, party_per_s=2, kind_max=400, kind_per_s=10)
"""Everybody who reaches the node can be refused. A flood of one party writes some 100 MB in a day."""
ACTS = Bound(party_max=1_000, party_per_s=10, kind_max=4_000, kind_per_s=40)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the audit log without its time.

    event: "refused", "admitted" (a request for an administrative act was passed on to its worker), "limited" and
    "slowed" (a limit was exceeded: a request was refused, or reading had to wait), or an act of the node, such as
    "rules_loaded". An event that ends in "_again" or "_more" is a number of events that have no line of their own.
    peer: the `host:port` of the connection; only the host, or the network, in a line about several connections.
    name: the name on which the right was needed, such as that of a stream; the name of a limit.
    rule: the rule that decided. request: the name of the request's protocol. count: the number of equal events."""

    event: str
    identity: str = ""
    peer: str = ""
    right: str = ""
    name: str = ""
    rule: str = ""
    request: str = ""
    reason: str = ""
    count: int = 1


class _Repeated(msgspec.Struct):
    entry: Entry
    count: int = 0
    is_one_peer: bool = True


class AuditLines:
    """The lines of one kind, such as refusals. more: the event of a line that tells how many lines were left out.

    Invariant: the lines that `take` has admitted, and the counts of `end_interval`, add up to its calls."""

    def __init__(self, bound: Bound, *, more: str) -> None:
        self._bound = bound
        self._more = more
        self._repeated: dict[Entry, _Repeated] = {}
        self._by_party: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def take(self, entry: Entry, party: str | None = None) -> bool:
        """Counts a line. Returns whether it is to be written now. party: see `Audit.refused`."""
        if party is None:
            party = party_key(ANONYMOUS, entry.peer) if entry.identity == str(ANONYMOUS) else entry.identity
        # Each connection of a peer has another port, so the port makes no difference.
        host = entry.peer.rpartition(":")[0]
        key = msgspec.structs.replace(entry, peer=host)
        known = self._repeated.get(key)
        if known is not None:
            known.count += 1
            known.is_one_peer = known.is_one_peer and known.entry.peer == entry.peer
            return False
        # The line is new. It is written while its party and its kind have lines left.
        kind = party.partition(":")[0]
        if self._by_party[party] < self._bound.party_max and self._by_kind[kind] < self._bound.kind_max:
            self._by_party[party] += 1
            self._by_kind[kind] += 1
            self._repeated[key] = _Repeated(entry)
            return True
        is_full = party not in self._left_out and len(self._left_out) >= PARTIES_MAX
        self._left_out[OTHERS if is_full else party] += 1
        return False

    def end_interval(self) -> Iterator[Entry]:
        """Returns the lines with the counts since the last call. To be called every second."""
        repeated, self._repeated = self._repeated, {}
        left_out, self._left_out = self._left_out, Counter()
        # Each second makes room for some more lines.
        self._by_party = _less(self._by_party, self._bound.party_per_s)
        self._by_kind = _less(self._by_kind, self._bound.kind_per_s)
        for key, each in repeated.items():
            if each.count:
                peer = each.entry.peer if each.is_one_peer else key.peer
                yield msgspec.structs.replace(key, event=f"{key.event}_again", peer=peer, count=each.count)
        for party, count in left_out.items():
            is_anonymous = party.startswith(ANONYMOUS_PREFIX)
            identity = str(ANONYMOUS) if is_anonymous else party
            peer = party.removeprefix(ANONYMOUS_PREFIX) if is_anonymous else ""
            yield Entry(self._more, identity, peer, reason=TOO_MANY, count=count)


def _less(counts: Counter[str], number: int) -> Counter[str]:
    return Counter({key: count - number for key, count in counts.items() if count > number})
