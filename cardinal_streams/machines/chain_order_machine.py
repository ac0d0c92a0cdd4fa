"""The chain order machine: it takes complete blocks in any order, and returns the heaviest chain in order.

It does no I/O, and has no part in messages or channels. The table shows what it does with a block by the block's place
relative to the chain (`_action_for`). "The final block" is the newest block that reorgs within the threshold must not
remove:

    _ban             another block is wanted at this number, or an ancestor was banned     dropped
    _ignore          the block is in memory or final                                       nothing
    _bury            it forks off before the final block, and is no heavier than the head  dropped
    _keep_for_reorg  it forks off before the final block, and is heavier than the head     kept, for a Reorg to use
    _refuse_number   its number is not higher than its parent's number                     dropped
    _begin           it is the first block, and there is no start block                    added
    _fill            it is the chain's lowest block, known only by its hash until now      its forks are weighed
    _extend          its parent is the head                                                added, with its descendants
    _fork            its parent is on the chain or on a fork of it                         weighed
    _wait            its parent has not arrived                                            kept
    _follow          it arrives between a revert and the end of the reorg                  added, if it follows the head

Weighing (specification, "Reorg Handling"): a branch replaces the blocks after the fork point if its heaviest block is
heavier than the heaviest of these blocks. Equal weight never replaces blocks. If all weights differ and no fork is
buried, the resulting chain does not depend on the order of arrival. A block becomes final when `reorg_threshold` blocks
follow it; only `revert`, which obeys a Reorg message, removes final blocks. From `revert` to `end_reorg` no blocks are
weighed: each must follow the one before. Beyond `waiting_max` kept blocks, or `waiting_bytes_max` bytes, a block is
dropped with an event (`ChainBlocks._needed_last`), so that the caller can give it again later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from cardinal_streams.limits import DEFAULT_CHAIN_LIMITS, ChainLimits, RecentMap
from cardinal_streams.machines.chain_parts import TreeNode
from cardinal_streams.machines.chain_state import ChainBlocks, Fate
from cardinal_streams.machines.events import ChainEvent, ChainStatistics, DropReason, NeedsReorg, Start
from cardinal_streams.payload import CompleteBatch

Action: TypeAlias = Callable[[CompleteBatch, list[ChainEvent]], None]


class ReorgEnd(msgspec.Struct, frozen=True):
    """The result of `ChainOrder.end_reorg`."""

    events: list[ChainEvent]
    removed_weight: int  # of the heaviest removed block; 0 if the reorg has won
    read_again: bool  # whether the normal feed must be read again for the removed blocks


class ChainOrder:
    """The chain order machine: it takes complete blocks and returns the heaviest chain; see the module's docstring.

    `start`: the block after which the chain continues; the application has this block and its ancestors, but none with
    a number below `first_number`. Without `start` the chain begins with the first block that arrives.
    `wanted`: by block number, the only hash that is accepted for this number.

    Invariant: the invariant of `ChainBlocks` holds."""

    def __init__(
        self,
        start: Start | None,
        reorg_threshold: int,
        *,
        wanted: Mapping[int, bytes] | None = None,
        limits: ChainLimits = DEFAULT_CHAIN_LIMITS,
        first_number: int = 0,
    ) -> None:
        if reorg_threshold < 0:
            raise ValueError(f"the reorg threshold is {reorg_threshold}")
        self.reorg_threshold = reorg_threshold
        self._wanted = dict(wanted or {})
        self._state = ChainBlocks(reorg_threshold, limits)
        self._duplicates = self._reverts = 0
        # The blocks of the running reorg, or None. A value is True if this reorg delivered the block first.
        self._reported: RecentMap[bytes, bool] | None = None
        if start is not None:
            self._state.begin_at(TreeNode(start.hash, start.number, weight=start.weight))
            self._state.first_number = first_number

    @property
    def head(self) -> Start | None:
        """The last block of the chain; None while the chain is empty."""
        head = self._state.chain.head
        return None if head is None else Start(head.hash, head.number or 0, head.weight)

    @property
    def final_number(self) -> int | None:
        """The number of the newest block that a reorg within the threshold must not remove; None if it is unknown."""
        return self._state.chain.final_number

    def receive(self, batch: CompleteBatch) -> list[ChainEvent]:
        """Takes a complete block. Returns at most one `ChainUpdate`, and other events, e.g. for each dropped block."""
        events: list[ChainEvent] = []
        self._action_for(batch)(batch, events)
        self._state.keep_limits(events)
        return events

    def bury(self, hash_: bytes) -> list[ChainEvent]:
        """Notes that an incomplete block was given up as too old, so that its descendants are dropped too."""
        events: list[ChainEvent] = []
        if self._state.tree.find(hash_) is None and hash_ not in self._state.fates:
            self._state.bury(hash_, events)
        return events

    def can_revert(self, hash_: bytes, number: int, *, is_whole: bool = True) -> bool:
        """Whether `revert` can go back to this block: it is on the chain or a fork of it, or the chain is empty, or its
        number is below the chain and `is_whole` is True. is_whole: whether the chain has all blocks that it must
        hold."""
        state = self._state
        node = state.tree.find(hash_)
        if node is not None and state.path_to(node):
            return True
        lowest = next((other.number for other in state.chain if other.number is not None), None)
        return state.chain.head is None or (is_whole and lowest is not None and number < lowest)

    def revert(self, hash_: bytes, number: int) -> list[ChainEvent]:
        """Goes back to the common ancestor of a reorg (specification, "Reorg"). Returns a `Revert`. If the ancestor is
        on a fork, a `ChainUpdate` to this fork precedes the `Revert`. From now on, `receive` takes the blocks of the
        reorg."""
        state = self._state
        events: list[ChainEvent] = []
        # The weight to beat is that of the blocks before anything is removed: a ChainUpdate to a fork removes some
        # already.
        state.reverted_weight = max((other.weight for other in state.chain), default=0)
        node = state.tree.find(hash_)
        # An ancestor on a fork comes onto the chain first, so that the revert only removes blocks.
        if node is not None and node.hash not in state.chain and (path := state.path_to(node)):
            state.adopt(path, events)
        state.go_back_to(hash_, number, state.reverted_weight, events)
        # From here on, blocks come from the reorg's channel, and are taken by `_follow`.
        self._reported = RecentMap(state.limits.remembered_max)
        self._reverts += 1
        state.keep_limits(events)
        return events

    def end_reorg(self, hash_: bytes, number: int) -> ReorgEnd:
        """Ends the section of the reorg to this common ancestor, complete or not: the heaviest branch decides again. If
        the chain is then lighter than the removed blocks, which are not in memory any more, a `Revert` to the ancestor
        removes the blocks of the reorg."""
        state, told, tip = self._state, self._reported, self._state.chain.head
        assert told is not None
        assert tip is not None
        self._reported = None
        events: list[ChainEvent] = []
        # The removed blocks are kept as a fork, so the usual weighing brings them back if they are heavier.
        state.weigh(state.branches_off(state.chain), events)
        read_again = state.weight_of_head < state.reverted_weight
        # Some of the heavier removed blocks are not in memory, and are read again. Until then the lighter reorg must
        # neither stay on the chain nor wait as a fork, which would be weighed again.
        if read_again and tip.hash != hash_:
            state.go_back_to(hash_, number, tip.weight, events)
            for node in state.waiting():
                if told.get(node.hash):
                    state.drop(node, DropReason.OLD, events)
        is_kept = not read_again and tip.hash != hash_ and tip.hash in state.chain
        return ReorgEnd(events, 0 if is_kept else state.reverted_weight, read_again)

    def resume_reorg(self, removed_weight: int) -> None:
        """Continues a reorg after a restart. removed_weight: the weight of the heaviest block that its `revert` had
        removed."""
        self._reported = RecentMap(self._state.limits.remembered_max)
        self._state.reverted_weight = removed_weight

    def has_place(self, batch: CompleteBatch) -> bool:
        """Whether `receive` would use this block: it does not fork off before the final block."""
        return self._action_for(batch) not in (self._keep_for_reorg, self._bury)

    def outweighs(self, batch: CompleteBatch, weight_to_beat: int) -> bool:
        """Whether this block, which is not on the chain, or a waiting descendant is heavier than the head and
        `weight_to_beat`."""
        state = self._state
        if self.is_on_chain(batch.hash):
            return False
        # A block is as heavy as the heaviest block that descends from it.
        below = [node.weight for child in state.tree.children(batch.hash) for node in state.tree.subtree(child)]
        return max([batch.weight, *below]) > max(state.weight_of_head, weight_to_beat)

    def is_on_chain(self, hash_: bytes) -> bool:
        """Whether this block is on the chain, or was when it became final."""
        return hash_ in self._state.chain or self.is_final(hash_)

    def is_final(self, hash_: bytes) -> bool:
        """Whether this block became final, and is remembered."""
        return self._state.fates.get(hash_) is Fate.FINAL

    def held(self) -> Iterator[CompleteBatch]:
        """Returns the blocks that another `ChainOrder` needs in order to reach the same state."""
        return iter([node.batch for node in (*self._state.chain, *self._state.waiting()) if node.batch is not None])

    def lacks(self) -> dict[bytes, int]:
        """Returns the missing parents of waiting blocks, by hash, with the number of waiting descendants. Blocks that
        only a Reorg message can put on the chain do not count."""
        state = self._state
        low = state.chain.final_number or 0
        # Only the missing parent of the lowest block of a branch counts: the other blocks have their parents.
        roots = [node for node in state.waiting() if node.parent is not None and state.tree.find(node.parent) is None]
        found: dict[bytes, int] = {}
        for node in sorted(roots, key=lambda node: node.number or 0):
            if node.parent is not None and (node.number or 0) > low:
                found[node.parent] = found.get(node.parent, 0) + len(state.tree.subtree(node))
        return found

    def blocks(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """Returns the hashes of the blocks of the chain that are in memory, and of the waiting blocks."""
        state = self._state
        return frozenset(node.hash for node in state.chain), frozenset(node.hash for node in state.waiting())

    def statistics(self) -> ChainStatistics:
        state = self._state
        head = state.chain.head
        return ChainStatistics(
            head_number=None if head is None else head.number,
            head_weight=None if head is None else head.weight,
            updates=state.updates,
            updates_with_removals=state.updates_with_removals,
            added=state.added,
            removed=state.removed,
            reorg_depth_max=state.depth_max,
            reverts=self._reverts,
            duplicates=self._duplicates,
            dropped=dict(state.dropped),
            chain_length=len(state.chain),
            waiting=state.waiting_count,
            waiting_bytes=state.waiting_bytes,
        )

    def check(self) -> None:
        """Raises AssertionError if the invariant of the class does not hold, or if a limit is exceeded."""
        self._state.check(in_reorg=self._reported is not None)

    def _action_for(self, batch: CompleteBatch) -> Action:
        """Returns the method that takes this block (see the table in the module's docstring)."""
        state = self._state
        node = state.tree.find(batch.hash)
        own_fate = state.fates.get(batch.hash)
        fate = own_fate or state.fates.get(batch.parent)
        final_number = state.chain.final_number
        if batch.parent == batch.hash:
            return self._refuse_number
        # The wish of the application comes before everything else, even before a running reorg.
        if fate is Fate.BANNED or self._wanted.get(batch.number, batch.hash) != batch.hash:
            return self._ban
        # During a reorg nothing is weighed, so no other row applies to blocks that are not on the chain.
        if self._reported is not None and batch.hash not in state.chain:
            return self._follow
        # A block that is known already, in memory or by its fate.
        if node is not None:
            return self._fill if node.batch is None else self._ignore
        if own_fate is Fate.FINAL:
            return self._ignore
        # From here on the block is new. A number that does not grow would break the order of heights, so it is refused
        # before the block can be kept.
        parent = state.tree.find(batch.parent)
        if parent is not None and parent.number is not None and batch.number <= parent.number:
            return self._refuse_number
        # Too deep for the threshold. A heavier block is kept all the same: a Reorg message may still come.
        if fate is not None or (final_number is not None and batch.number <= final_number):
            return self._keep_for_reorg if state.is_heavier(batch.weight) else self._bury
        # The usual cases: the block meets the chain, a fork of it, or nothing yet.
        if state.chain.head is None:
            return self._begin
        if parent is None:
            return self._wait
        if parent is state.chain.head:
            return self._extend
        return self._fork if state.path_to(parent) else self._wait

    def _ban(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._state.give_up(batch, DropReason.BANNED, events)
        # The hash is remembered, so that descendants that arrive later are banned, too.
        self._state.fates.put(batch.hash, Fate.BANNED)
        self._state.drop_below(batch.hash, DropReason.BANNED, Fate.BANNED, events)

    def _ignore(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._duplicates += 1

    def _bury(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._state.give_up(batch, DropReason.OLD, events)
        self._state.bury(batch.hash, events)

    def _keep_for_reorg(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        events.append(NeedsReorg(batch.hash, batch.number, batch.weight))
        self._state.add(batch, events)

    def _refuse_number(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._state.give_up(batch, DropReason.NUMBER, events)

    def _begin(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._state.begin_at(TreeNode(batch.parent))
        self._extend(batch, events)

    def _fill(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        """Takes the lowest block of the chain, of which only the hash was known. Its ancestors that arrived earlier
        join the chain, and the forks of all these blocks are weighed."""
        state = self._state
        lowest = state.chain.lowest
        above = next((node.number for node in state.chain if node is not lowest), None)
        below = state.tree.find(batch.parent)
        # The number must fit between those of the neighbours, which were known before this block.
        if (
            lowest.number not in (None, batch.number)
            or (above is not None and above <= batch.number)
            or (below is not None and below.number is not None and below.number >= batch.number)
        ):
            self._refuse_number(batch, events)
            return
        state.tree.fill(lowest, batch)
        bases = [lowest, *state.join_below(lowest)]
        state.sink(events)
        # Children were added while the number of their parent was unknown. Now the order of numbers can be checked.
        for base in bases:
            if base.number is not None:
                state.drop_unordered(state.tree.children(base.hash), base.number, events)
        # During a reorg nothing is weighed; the block counts as one of the reorg.
        if self._reported is None:
            state.weigh(state.branches_off(bases), events)
        else:
            self._reported.put(batch.hash, True)

    def _extend(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        head = self._state.chain.head
        assert head is not None
        node = self._state.add(batch, events)
        self._state.adopt([head, *self._state.tree.best_path(node)], events)

    def _fork(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        node = self._state.add(batch, events)
        branch = [*self._state.path_to(node), *self._state.tree.best_path(node)[1:]]
        self._state.weigh([branch], events)

    def _wait(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._state.add(batch, events)

    def _follow(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        """Takes a block of a running reorg. A child of the head joins the chain, with its known descendants."""
        state, told, head = self._state, self._reported, self._state.chain.head
        assert told is not None
        assert head is not None
        parent = state.tree.find(batch.parent)
        if parent is not None and parent.number is not None and batch.number <= parent.number:
            self._refuse_number(batch, events)
            return
        # The blocks of one channel can come in any order, so each is kept first.
        is_new = state.tree.find(batch.hash) is None
        if is_new:
            state.add(batch, events)
        told.put(batch.hash, is_new or bool(told.get(batch.hash)))
        # Then the chain takes as many as follow the head without a gap. Blocks of the normal feed are not among them.
        path = [head]
        while following := next((node for node in state.tree.children(path[-1].hash) if node.hash in told), None):
            path.append(following)
        if len(path) > 1:
            state.adopt(path, events)
