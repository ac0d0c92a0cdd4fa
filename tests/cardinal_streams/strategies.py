"""Blocks, their messages and trees of blocks, for property tests."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from cardinal_streams.message.messages import Record
from cardinal_streams.payload import CompleteBatch, Payload
from tests.cardinal_streams.helpers import block, hash_of, message_records

PREFIXES = st.sampled_from(["a/", "b/", "q/", "x/", "b/c/"])
KEYS = st.builds("{}{}".format, PREFIXES, st.text("01/é\udcff", max_size=3))
VALUES = st.binary(max_size=4)
UPDATES = st.dictionaries(KEYS, VALUES, max_size=6)
DELETES = st.frozensets(KEYS, max_size=4)


class Sent(NamedTuple):
    """A block, its messages, and what a consumer must make of them."""

    payload: Payload
    records: list[Record]
    values: dict[str, bytes]
    deletes: frozenset[str]


@st.composite
def sent_blocks(draw: st.DrawFn, number: int = 1) -> Sent:
    """A block with up to two sub batches, whose keys are theirs alone."""
    updates, deletes = draw(UPDATES), draw(DELETES)
    paths = draw(st.sampled_from([(), ("b/s",), ("zz", "b/s")]))
    ids = {path: hash_of(f"{number}:{path}") for path in paths}
    contents = {
        id_: (
            draw(st.frozensets(st.sampled_from(["d1", "d2"]).map(f"{path}/{{}}".format), max_size=2)),
            draw(st.dictionaries(st.sampled_from(["1", "2", "3"]).map(f"{path}/{{}}".format), VALUES, max_size=3)),
        )
        for path, id_ in ids.items()
    }
    whole = Payload(
        hash=hash_of(number),
        number=number,
        parent=hash_of(number - 1),
        weight=number,
        updates=updates,
        deletes=deletes,
        sub_batches=ids,
    )
    inline = {key for key in deletes if key.startswith("x/")}
    values = {key: value for key, value in updates.items() if key not in inline}
    for _, more in contents.values():
        values |= more
    gone = deletes.union(*(names for names, _ in contents.values()))
    return Sent(whole, message_records(whole, contents), values, gone)


class Tree(NamedTuple):
    """The root is the block the chain starts from; `blocks` follow it, parents first, each heavier than its parent
    and no two of one weight."""

    root: CompleteBatch
    blocks: list[CompleteBatch]

    def heaviest(self) -> list[str]:
        """The names of the heaviest chain, without the root."""
        by_hash = {each.hash: each for each in self.blocks}
        chain: list[str] = []
        at = max(self.blocks, key=lambda each: each.weight, default=None)
        while at is not None:
            chain.append(at.hash.lstrip(b"\0").decode())
            at = by_hash.get(at.parent)
        return chain[::-1]


@st.composite
def trees(draw: st.DrawFn, size_max: int = 14) -> Tree:
    """Numbers grow by 1 to 3."""
    root = block("r", "before", 10, 10)
    known = [root]
    for index in range(draw(st.integers(0, size_max))):
        parent = known[draw(st.integers(max(0, len(known) - 5), len(known) - 1))]
        number = parent.number + draw(st.integers(1, 3))
        weight = parent.weight + 100 * draw(st.integers(1, 3))
        weight = weight - weight % 100 + index + 11
        name = parent.hash.lstrip(b"\0").decode()
        known.append(block(f"n{index}", name, number, weight))
    return Tree(root, known[1:])
