"""Asks the source nodes for the root hash of one block each. `agreement` compares their chains by these root hashes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from block_node.backfill.agreement import Opinion, common_block
from block_node.backfill.filler import Guard
from block_node.backfill.state import BackfillState
from block_node.persist.ranges import BlockRanges
from block_node.persist.schema import BlockPlace
from stream_storage.contract import Do
from stream_storage.errors import StorageClosed


def ask_opinions(
    state: BackfillState, names: list[str], on_done: Callable[[list[Opinion]], None], guard: Guard
) -> None:
    """Asks each source node for the root hash of one block. Calls `on_done` with all answers, perhaps none."""
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
    """Returns the block to compare for each source node, by its name: a block that is stored here too. While nothing is
    stored here, it is the highest block whose root hash the operator knows; source nodes without such a block get a
    block that all of them have."""
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
