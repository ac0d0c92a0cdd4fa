"""Compares the chains of the source nodes with each other and with the stored chain, by the root hash of one block: two
nodes with the same root hash for a block have the same chain up to it.

The stored chain decides which source node has another chain. While the node is empty, the operator decides: by the root
hash of a known block, or by an address book. Else nothing is fetched from source nodes with different chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from block_node.backfill.filler import Guard
from block_node.backfill.state import BackfillState
from block_node.persist.ranges import BlockRanges
from block_node.persist.schema import BlockPlace
from stream_storage.contract import Do
from stream_storage.errors import StorageClosed

SHOWN_CHARACTERS = 16


class Opinion(NamedTuple):
    """The root hash that a source node has for a block. expected: the right root hash; empty if unknown."""

    source: str
    number: int
    root: bytes
    expected: bytes


def ask_opinions(
    state: BackfillState, names: list[str], on_done: Callable[[list[Opinion]], None], guard: Guard
) -> None:
    """Asks each source node for the root hash of one block. on_done: called with all answers, perhaps none."""
    claims = {name: ranges for name in names if (ranges := state.health.sources[name].claims)}
    questions = _choose(state, claims)
    opinions: list[Opinion] = []
    waiting = set(questions)

    def answered(name: str, expected: bytes, root: bytes | None, reason: str) -> None:
        waiting.discard(name)
        if root:
            opinions.append(Opinion(name, questions[name], root, expected))
        if not waiting:
            on_done(opinions)

    def ask(name: str, operation: Do[BlockPlace | None] | None) -> None:
        place = None if operation is None or operation.error is not None else operation.result
        if operation is not None and place is None:
            # The stored block cannot be read, or retention has just deleted it: there is nothing to compare with.
            answered(name, b"", None, "")
            return
        known = state.verifier.settings.known_roots.get(questions[name], b"")
        expected, size_bytes = (known, 0) if place is None else (place.root, place.size_bytes)
        callback = guard(partial(answered, name, expected))
        state.sources[name].ask_root(questions[name], size_bytes, callback)

    # Without a common block there is nothing to compare.
    if not questions:
        on_done(opinions)
    for name in sorted(questions):
        if not state.store.available:
            ask(name, None)
            continue
        try:
            state.store.find(questions[name], guard(partial(ask, name)))
        except StorageClosed:
            # The node is stopping.
            return


def _choose(state: BackfillState, claims: dict[str, BlockRanges]) -> dict[str, int]:
    """Returns the block to compare for each source node: a block that is stored here too. While nothing is stored here,
    it is the highest block whose root hash the operator knows, else a block that all other source nodes have."""
    available = state.store.available
    if available:
        found = {name: common_block((available, ranges)) for name, ranges in claims.items()}
        return {name: number for name, number in found.items() if number is not None}
    known = state.verifier.settings.known_roots
    questions = {
        name: max(numbers) for name, ranges in claims.items() if (numbers := [each for each in known if each in ranges])
    }
    others = {name: ranges for name, ranges in claims.items() if name not in questions}
    common = common_block(others.values()) if len(others) > 1 else None
    return questions if common is None else questions | dict.fromkeys(others, common)


def common_block(ranges: Iterable[BlockRanges]) -> int | None:
    """Returns a high block that is in all ranges; None if there is none. The root hash of the highest such block is not
    always certain, so the block below is returned if it is in all ranges, too."""
    first, *others = ranges
    common = first.copy()
    for other in others:
        for hole in other.missing(0, common.last or 0):
            common.discard(*hole)
    last = common.last
    return last - 1 if last and last - 1 in common else last


def find_disagreements(opinions: Iterable[Opinion]) -> Mapping[str, str]:
    """Returns a text for each source node with another chain: how its root hash differs. If the right root hash is
    unknown, and the source nodes disagree about it, each of them gets a text."""
    found: dict[str, str] = {}
    open_opinions = []
    for each in sorted(opinions):
        if not each.expected:
            open_opinions.append(each)
        elif each.root != each.expected:
            found[each.source] = f"its block {each.number} has root {_short(each.root)}, not {_short(each.expected)}"
    if len({(each.number, each.root) for each in open_opinions}) > 1:
        roots = ", ".join(f"{each.source} {_short(each.root)}" for each in open_opinions)
        number = open_opinions[0].number
        for each in open_opinions:
            found[each.source] = (
                f"the sources have different roots of block {number}: {roots}; set block_known_roots={number}:ROOT or "
                "an address book to decide"
            )
    return found


def _short(root: bytes) -> str:
    return f"{root.hex()[:SHOWN_CHARACTERS]}…"
