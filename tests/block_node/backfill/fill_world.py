"""Sources that lie, are slow, die and come back, against the fill machines alone; no node, no time but the test's."""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from block_node.backfill.fill_machine import FetchedRange, FillMachine
from block_node.backfill.health_machine import Health
from block_node.backfill.plan import Kind
from block_node.backfill.settings import BackfillSettings, SourceSetting
from block_node.events import BackfilledBlockNotification
from block_node.persist.ranges import BlockRanges, NumberRange

BLOCK_BYTES = 10
CHECKED_EVERY = 5
"""Steps between two checks of the invariant, which cost more than the steps."""


def root_of(number: int) -> bytes:
    return b"root of %d" % number


def good(number: int) -> list[bytes]:
    """The block that the chain has."""
    return [b"block %d" % number]


def forged(number: int) -> list[bytes]:
    """A block that passes by itself, and is not the chain's."""
    return [b"another %d" % number]


class FakeSource(msgspec.Struct):
    """claims: what it says it has. has: what it sends. forges: the share of bad blocks. dies: of broken requests.

    flaps: the share of times at which it does not answer at all. steps: until a request is answered.
    """

    name: str
    claims: BlockRanges
    has: BlockRanges
    forges: float = 0.0
    dies: float = 0.0
    flaps: float = 0.0
    steps: int = 1
    priority: int = 0


class Broken(AssertionError):
    """A promise was broken."""


class FillWorld:
    """One machine, its sources and a chain that is stored. Every step is some time; what is random comes from `rng`."""

    def __init__(
        self, kind: Kind, rng: random.Random, sources: list[FakeSource], known: BlockRanges, limits: BackfillSettings
    ) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.sources = {source.name: source for source in sources}
        settings = [SourceSetting(source.name, (source.name,), source.priority) for source in sources]
        self.health = Health(settings, retry_delay_s=5.0, backoff_s_max=300.0, tie=rng.random)
        self.machine = FillMachine(kind, limits, self.health)
        self.kind = kind
        self.known = known
        self.under_way: dict[int, tuple[FetchedRange, int]] = {}
        self.persisting: list[int] = []
        self.stored: Counter[int] = Counter()
        self.fetches: list[FetchedRange] = []
        self.asked: Counter[int] = Counter()
        self.refusals = 0
        self.steps = 0

    def scan(self, first: int, last: int) -> None:
        """Ask the sources what they have, and see what is missing."""
        for source in self.sources.values():
            if self.health.sources[source.name].backoff_until_s > self.now_s:
                continue
            if self.rng.random() < source.flaps:
                self.health.failed(source.name, self.now_s, "unreachable")
            else:
                self.health.claimed(source.name, source.claims.copy(), 0.01 * source.steps)
        if not self.machine.busy:
            for hole in self.known.missing(first, last):
                self.machine.assign(*hole)

    def run(self, first: int, last: int, *, scans: int) -> None:
        """Scan every minute until all is filled."""
        for _ in range(scans):
            self.scan(first, last)
            self.settle()
            if not self.known.missing(first, last):
                return
            self.now_s += 60.0
        raise Broken(f"still missing: {self.known.missing(first, last)}; {self.health.statistics(self.now_s)}")

    def settle(self) -> None:
        """Until the run has ended."""
        for _ in range(20_000):
            if not self.machine.busy:
                return
            self.step()
        raise Broken("the run does not end")

    def step(self) -> None:
        self.now_s += 0.1
        self.steps += 1
        while (fetch := self.machine.next_fetch(self.now_s)) is not None:
            self._begin(fetch)
        for chunk in self.machine.late(self.now_s):
            self.machine.failed(chunk.chunk_id, self.now_s, "too slow", slow=True)
        for chunk_id, (fetch, left) in list(self.under_way.items()):
            self.under_way[chunk_id] = (fetch, left - 1)
            if left <= 0:
                del self.under_way[chunk_id]
                self._answer(fetch)
        for number in self.machine.wanted_anchors():
            if number + 1 not in self.known:
                raise Broken(f"block {number + 1} is not stored, and was to be read")
            self.machine.anchored(number, (root_of(number),))
        if (delivery := self.machine.next_delivery(self.now_s)) is not None:
            self._verify(delivery)
        if self.persisting and self.rng.random() < 0.7:
            self._persist(self.persisting.pop(0))
        self.machine.given_up.clear()
        if self.steps % CHECKED_EVERY == 0 or not self.machine.busy:
            self.machine.check()

    def _begin(self, fetch: FetchedRange) -> None:
        asked = NumberRange(fetch.first, fetch.last)
        for other, _ in self.under_way.values():
            if self.machine.find_awaited(other.chunk_id) and other.first <= asked.last and asked.first <= other.last:
                raise Broken(f"{asked} is asked for while {other} is under way")
        self.fetches.append(fetch)
        self.asked.update(range(fetch.first, fetch.last + 1))
        self.under_way[fetch.chunk_id] = (fetch, self.sources[fetch.source].steps)

    def _answer(self, fetch: FetchedRange) -> None:
        source, machine = self.sources[fetch.source], self.machine
        if self.rng.random() < source.flaps:
            if machine.find_awaited(fetch.chunk_id):
                machine.failed(fetch.chunk_id, self.now_s, "unreachable")
            return
        dies_at = self.rng.randint(fetch.first, fetch.last) if self.rng.random() < source.dies else None
        for number in range(fetch.first, fetch.last + 1):
            if machine.find_awaited(fetch.chunk_id) is None:
                return
            if number == dies_at or number not in source.has:
                machine.failed(fetch.chunk_id, self.now_s, "it ended", lied=number not in source.has)
                return
            items = forged(number) if self.rng.random() < source.forges else good(number)
            if not machine.grew(fetch.chunk_id, BLOCK_BYTES):
                # What has been sent already goes on coming, and is nobody's business any more.
                machine.overflowed(fetch.chunk_id)
                continue
            machine.arrived(fetch.chunk_id, number, items)

    def _verify(self, delivery: BackfilledBlockNotification) -> None:
        number, is_good = delivery.block_number, delivery.items == good(delivery.block_number)
        if self.kind is Kind.HISTORICAL and delivery.roots != (root_of(number),):
            raise Broken(f"block {number} is handed on with {delivery.roots!r} as its roots")
        if (
            self.kind is Kind.LIVE_TAIL
            and number - 1 not in self.known
            and number - 1 not in self.persisting
            and number
        ):
            raise Broken(f"block {number} is handed on before {number - 1}")
        if not is_good:
            self.refusals += 1
            self.machine.refused(number, self.now_s, "another root")
            return
        self.machine.verified(number, root_of(number - 1))
        self.persisting.append(number)

    def _persist(self, number: int) -> None:
        self.stored[number] += 1
        self.known.add(number)
        self.machine.stored(number)
