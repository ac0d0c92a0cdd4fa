"""Goal: increments say of a chain that no honest producer makes what a rebuild says.

Method: light blocks without a connection to the chain, and branches that win although they are shorter, with a small
window, so that increments decide without most of the chain. The states are compared with `mark_chain` over all blocks.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cardinal_streams.message.messages import Batch, decode, encode
from spark_export.pipeline import canon
from spark_export.pipeline.canon import BlockLink, CanonState, find_settled, mark_chain, mark_descendants
from tests.spark_export.pipeline.makers import name_of, odd_chain

ODD_SEED = 3


class Known:
    """The blocks and states of a chain, brought up to date as a step of the pipeline does it."""

    def __init__(self) -> None:
        self.links: dict[bytes, BlockLink] = {}
        self.states: dict[bytes, CanonState] = {}
        self.settled: BlockLink | None = None
        self.shortcuts = 0

    def take(self, new: list[BlockLink]) -> None:
        changed = {each.hash for each in new}
        self.links |= {each.hash: each for each in new}
        found = None
        if self.settled is not None:
            least = self.settled.number
            loaded = [
                link
                for hash_, link in self.links.items()
                if hash_ in changed or link.number >= least or self.states[hash_].state == canon.REORGED
            ]
            found = mark_descendants(loaded, self.states, changed, self.settled.hash)
            self.shortcuts += found is not None
        if found is None:
            found = mark_chain(self.links.values())
        self.states |= found
        self.settled = find_settled(self.links.values(), found)


def link_of(batch: Batch, stored_us: int = 0) -> BlockLink:
    return BlockLink(batch.hash, batch.parent, batch.number, batch.weight, stored_us)


def test_a_shorter_heavier_branch_makes_lost_blocks_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an increment says of a block without a parent what a rebuild says. Method: a chain of ten blocks that is
    settled at block 6 passes a lone block at 9; then a branch wins that ends at 8."""
    monkeypatch.setattr(canon, "WINDOW", 4)
    chain = [
        Batch(name_of(f"odd {at}"), at, name_of(f"odd {at - 1}") if at > 1 else bytes(32), at) for at in range(1, 11)
    ]
    lone = Batch(name_of("lone"), 9, name_of("never comes"), 5)
    fork = [Batch(name_of("fork 7"), 7, name_of("odd 6"), 7), Batch(name_of("fork 8"), 8, name_of("fork 7"), 99)]
    known = Known()
    for part in (chain, [lone], fork):
        known.take([link_of(each) for each in part])
        assert known.states == mark_chain(known.links.values())
    assert known.states[lone.hash].state == "waiting"
    assert known.states[fork[1].hash].state == "canonical"


def test_a_block_that_is_its_own_ancestor_is_decided_and_ends() -> None:
    """Goal: a publisher that closes a ring of blocks does not keep a pipeline at work for good. Method: the parent of
    the settled block comes last, and names the newest block as its parent."""
    first, newest, ring = name_of("first"), name_of("newest"), name_of("ring")
    known = Known()
    for each in (Batch(first, 0, ring, 1), Batch(newest, 5_000, first, 2), Batch(ring, 6_000, newest, 3)):
        known.take([link_of(each)])
        assert known.states == mark_chain(known.links.values())
    assert known.states[first].state == "reorged"


@settings(max_examples=50)
@given(st.integers(0, 10**6))
@example(ODD_SEED)
def test_small_increments_of_an_odd_chain(seed: int) -> None:
    """Goal: the states that increments decide without most of the chain. Method: a few blocks at a time."""
    randomness = random.Random(seed)
    records, known, index = odd_chain(randomness), Known(), 0
    patch = pytest.MonkeyPatch()
    patch.setattr(canon, "WINDOW", 8)
    while index < len(records):
        part = records[index : index + randomness.choice((1, 1, 4, 13))]
        new = []
        for at, each in enumerate(part):
            batch = decode(each.key, each.value)
            assert isinstance(batch, Batch)
            if batch.hash not in known.links:
                new.append(link_of(batch, index + at))
        known.take(new)
        assert known.states == mark_chain(known.links.values())
        index += len(part)
    patch.undo()


def test_an_honest_chain_is_decided_by_its_newest_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above would hold for increments that read all blocks each time, too."""
    monkeypatch.setattr(canon, "WINDOW", 8)
    known = Known()
    for at in range(1, 40):
        parent = bytes(32) if at == 1 else name_of(f"b{at - 1}")
        known.take([link_of(Batch(name_of(f"b{at}"), at, parent, at))])
    assert known.shortcuts == 30
    assert known.settled is not None
    assert known.settled.number == 31


@pytest.mark.spark
@pytest.mark.slow
def test_a_start_counts_for_its_chain_alone(session: Any, tmp_path: Path) -> None:
    """Goal: the start of one chain does not make the blocks of another one wait. Method: two chains of two parts each;
    the smaller part of chain `one` is chosen by a start."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    from spark_export.pipeline.run import Pipeline
    from spark_export.pipeline.silver_cardinal import Topics
    from spark_export.pipeline.step import Settings
    from tests.spark_export.pipeline.lake import Lake, read_rows

    def part(chain: str, first: int, count: int) -> list[Batch]:
        hashes = [name_of(f"{chain} {first + at}") for at in range(count + 1)]
        return [Batch(hashes[at + 1], first + at + 1, hashes[at], first + at) for at in range(count)]

    lake = Lake(tmp_path / "lake")
    for chain in ("one", "two"):
        records = [encode(each) for each in [*part(chain, 1, 4), *part(chain, 100, 2)]]
        lake.add_run({f"{chain}-blocks": [(0, at, at, each.key, [], each.value) for at, each in enumerate(records)]})
    start = part("one", 100, 2)[0].hash
    report = Pipeline(lake.table, tmp_path / "out", Settings(Topics("(one|two)-.*"), {"one": start})).run(session)
    assert report.notes == ()
    rows = read_rows(tmp_path / "out", "silver/batches")
    canonical = sorted((row["chain"], row["number"]) for row in rows if row["state"] == "canonical")
    assert canonical == [("one", 101), ("one", 102), *(("two", number) for number in range(2, 6))]
