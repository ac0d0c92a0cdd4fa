"""The chain order machine: it takes complete blocks in any order, and returns the heaviest chain in order, as updates
with removed and added blocks. It does not know messages or channels.

The place of a block decides what the machine does with the block:

    BANNED      another block is wanted at its number, or its ancestor was banned    dropped
    KNOWN       held, or final                                                       nothing
    BURIED      it forks below the final block, and is no heavier than the head      dropped
    TOO_DEEP    as BURIED, and heavier                                               kept, for a Reorg to use
    UNORDERED   its number is not above its parent's                                 dropped
    FIRST       nothing is known yet, and there is no block to start from            added
    FILLS       the lowest block of the chain, known by its hash until now           forks from there are weighed
    EXTENDS     its parent is the head                                               added, with what waited for it
    FORKS       its parent is connected to the chain                                 weighed
    WAITS       its parent has not arrived                                           kept
    FOLLOWS     it comes after a revert, and before the reorg is over                added, if its parent is the head

Weighing (specification, "Reorg Handling"): a branch replaces the blocks above the point where it forks off if its
heaviest block is heavier than the heaviest of them; equal weight never does. Numbers only have to grow, not to be
consecutive. With weights that differ, the chain that results does not depend on the order of arrival, as long as no
fork is buried.

Threshold. The chain holds the head and the `reorg_threshold` blocks below it. A block is final when `reorg_threshold`
blocks lie above it: a reorg may remove `reorg_threshold` blocks and no more, and never a block that was final once.
Only `revert`, which obeys a Reorg message, goes back further. After `revert` the machine does not weigh blocks; each
block must follow the one before, until `end_reorg`. The removed blocks wait like the blocks of a fork, and so do blocks
of the new chain that arrived early.

Memory. Besides the chain, at most `waiting_max` blocks with `waiting_bytes_max` bytes wait; these are forks, and blocks
whose parent is missing. When there are more, the machine drops the block that has waited longest, and returns an event.
When a block becomes final, waiting blocks with its number or a lower one are dropped; those that are heavier than the
head are kept until they are lighter than the head.

`fork_tree` explains why the tree of blocks is not the one of `block_manager`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from cardinal_streams.limits import DEFAULT_CHAIN_LIMITS, ChainLimits
from cardinal_streams.machines.chain_events import ChainEvent, ChainStatistics, DropReason, NeedsReorg, Start
from cardinal_streams.machines.chain_state import ChainState, Fate
from cardinal_streams.machines.fork_tree import Node
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.recent import RecentMap


class Place(enum.Enum):
    """The place of a block relative to the chain. The table in the module's docstring explains each value."""

    BANNED = "banned"
    KNOWN = "known"
    BURIED = "buried"
    TOO_DEEP = "too deep"
    UNORDERED = "unordered"
    FIRST = "first"
    FILLS = "fills"
    EXTENDS = "extends"
    FORKS = "forks"
    WAITS = "waits"
    FOLLOWS = "follows"


class ChainOrder:
    """The chain order machine; see the module's docstring.

    `start`: the block behind which the chain goes on; the application has this block and all below it. Without a start
    block the chain begins with the first block that arrives, and blocks below that are never added and never removed.
    `wanted` maps a number to the only hash that is accepted for it.

    Invariant: that of `ChainState`.
    """

    def __init__(
        self,
        start: Start | None,
        reorg_threshold: int,
        *,
        wanted: Mapping[int, bytes] | None = None,
        limits: ChainLimits = DEFAULT_CHAIN_LIMITS,
    ) -> None:
        if reorg_threshold < 0:
            raise ValueError(f"the reorg threshold is {reorg_threshold}")
        self.reorg_threshold = reorg_threshold
        self._wanted = dict(wanted or {})
        self._state = ChainState(reorg_threshold, limits)
        self._duplicates = self._reverts = 0
        self._has_start = start is not None
        # The blocks of the reorg that goes on. The value says whether a block arrived by this reorg's channel first.
        self._told: RecentMap[bytes, bool] | None = None
        self._given_up_weight = 0
        if start is not None:
            self._state.begin_at(Node.known_by_hash(start.hash, start.number, start.weight))

    @property
    def head(self) -> Start | None:
        """The last block of the chain."""
        head = self._state.chain.head
        return None if head is None else Start(head.hash, head.number or 0, head.weight)

    @property
    def final_number(self) -> int | None:
        """The number of the final block; None while there is none. Blocks with this number or a lower one cannot be
        added any more."""
        return self._state.chain.final_number

    def receive(self, batch: CompleteBatch) -> list[ChainEvent]:
        """Takes a complete block. Returns at most one `ChainUpdate`, and an event for each block that was dropped."""
        events: list[ChainEvent] = []
        PLACES[self._place_of(batch)](self, batch, events)
        self._state.keep_limits(events)
        return events

    def bury(self, hash_: bytes) -> list[ChainEvent]:
        """Notes a block that was given up before it was complete, because its number is at or below the final block's
        and it is no heavier than the head. Its hash is remembered, so that blocks which follow it are dropped too."""
        events: list[ChainEvent] = []
        if self._state.tree.find(hash_) is None and hash_ not in self._state.fates:
            self._state.bury(hash_, events)
        return events

    def can_revert(self, hash_: bytes, number: int) -> bool:
        """Whether `revert` can go back to this ancestor: the chain holds it, or the ancestor is lower than all held
        blocks."""
        state = self._state
        node = state.tree.find(hash_)
        if node is not None and state.is_connected(node):
            return True
        lowest = next((other.number for other in state.chain if other.number is not None), None)
        return state.chain.head is None or (lowest is not None and number < lowest)

    def revert(self, hash_: bytes, number: int) -> list[ChainEvent]:
        """Goes back to this ancestor (specification, "Reorg"). Returns a `Revert`; if the ancestor is on a fork, a
        `ChainUpdate` to that fork precedes it. From now on `receive` takes the blocks of the reorg."""
        state = self._state
        events: list[ChainEvent] = []
        state.reverted_weight = max((other.weight for other in state.chain), default=0)
        # After a reorg was given up, the blocks that it removed may not have returned yet.
        state.reverted_weight = max(state.reverted_weight, self._given_up_weight)
        node = state.tree.find(hash_)
        if node is not None and node.hash not in state.chain and state.is_connected(node):
            state.adopt(state.path_to(node), events)
        state.go_back_to(hash_, number, state.reverted_weight, events)
        self._told = RecentMap(state.limits.remembered_max)
        self._reverts += 1
        state.keep_limits(events)
        return events

    def end_reorg(self) -> list[ChainEvent]:
        """Ends the reorg: blocks that waited for its last block are added, and blocks are weighed again."""
        events: list[ChainEvent] = []
        self._told = None
        self._given_up_weight = 0
        head = self._state.chain.head
        if head is not None:
            tree = self._state.tree
            self._state.weigh([[head, *tree.best_path(child)] for child in tree.children(head.hash)], events)
        return events

    def resume_reorg(self, removed_weight: int) -> None:
        """Goes on in a reorg for which the application went back before this machine was made. The machine holds none
        of the blocks that were removed then."""
        self._told = RecentMap(self._state.limits.remembered_max)
        self._state.reverted_weight = removed_weight
        self._state.is_cut_off = True

    def abandon_reorg(self, hash_: bytes, number: int) -> tuple[list[ChainEvent], bool]:
        """Gives up the reorg to this ancestor. The reorg's blocks stay if they outweigh the blocks that it removed.
        Else they are forgotten after a `Revert`, and the removed blocks return. The second value is True when the
        removed blocks are not held any more: then the normal feed must be read again."""
        state, told, head = self._state, self._told, self._state.chain.head
        assert told is not None
        assert head is not None
        self._told = None
        events: list[ChainEvent] = []
        goes_back = head.weight <= state.reverted_weight
        self._given_up_weight = state.reverted_weight if goes_back else 0
        if goes_back and head.hash != hash_:
            was_cut_off = state.is_cut_off
            state.go_back_to(hash_, number, head.weight, events)
            state.is_cut_off = state.is_cut_off or was_cut_off
            for node in tuple(state.waiting):
                if told.find(node.hash):
                    state.drop(node, DropReason.OLD, events)
        state.weigh(state.branches_off(state.chain), events)
        return events, goes_back and state.is_cut_off

    def held(self) -> Iterator[CompleteBatch]:
        """The blocks that another machine needs to reach this machine's state."""
        return iter([node.batch for node in (*self._state.chain, *self._state.waiting) if node.batch is not None])

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
            waiting=len(state.waiting),
            waiting_bytes=state.waiting.size_bytes,
        )

    def check(self) -> None:
        """Asserts that the invariant and the limits hold."""
        self._state.check(in_reorg=self._told is not None)

    def _place_of(self, batch: CompleteBatch) -> Place:
        """The place of a block: the line of the table that applies to it."""
        state = self._state
        node = state.tree.find(batch.hash)
        own_fate = state.fates.find(batch.hash)
        fate = own_fate or state.fates.find(batch.parent)
        final_number = state.chain.final_number
        if batch.parent == batch.hash:
            return Place.UNORDERED
        if fate is Fate.BANNED or self._wanted.get(batch.number, batch.hash) != batch.hash:
            return Place.BANNED
        if self._told is not None and batch.hash not in state.chain:
            return Place.FOLLOWS
        if node is not None:
            return Place.KNOWN if node.batch is not None or state.chain.is_final else Place.FILLS
        if own_fate is Fate.FINAL:
            return Place.KNOWN
        parent = state.tree.find(batch.parent)
        if parent is not None and parent.number is not None and batch.number <= parent.number:
            return Place.UNORDERED
        if fate is not None or (final_number is not None and batch.number <= final_number):
            return Place.TOO_DEEP if state.is_heavier(batch.weight) else Place.BURIED
        if state.chain.head is None:
            return Place.FIRST
        if parent is None:
            return Place.WAITS
        if parent is state.chain.head:
            return Place.EXTENDS
        return Place.FORKS if state.is_connected(parent) else Place.WAITS

    def _ban(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        self._state.give_up(batch, DropReason.BANNED, events)
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
        self._state.begin_at(Node.known_by_hash(batch.parent))
        self._extend(batch, events)

    def _fill(self, batch: CompleteBatch, events: list[ChainEvent]) -> None:
        """Takes the lowest block, which was known by its hash only. Blocks that waited below it join the chain, and
        forks from all of these are weighed."""
        state = self._state
        lowest = state.chain.lowest
        above = next((node.number for node in state.chain if node is not lowest), None)
        below = state.tree.find(batch.parent)
        if (
            lowest.number not in (None, batch.number)
            or (above is not None and above <= batch.number)
            or (below is not None and below.number is not None and below.number >= batch.number)
        ):
            self._refuse_number(batch, events)
            return
        state.tree.fill(lowest, batch)
        lowest.is_applied = self._has_start
        bases = [lowest, *state.join_below(lowest, self._has_start)]
        state.sink(events)
        for base in bases:
            if base.number is not None:
                state.drop_unordered(state.tree.children(base.hash), base.number, events)
        if self._told is None:
            state.weigh(state.branches_off(bases), events)
        else:
            self._told.put(batch.hash, True)

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
        """Adds the block if its parent is the head, and then the earlier blocks of the reorg that follow it."""
        state, told, head = self._state, self._told, self._state.chain.head
        assert told is not None
        assert head is not None
        parent = state.tree.find(batch.parent)
        if parent is not None and parent.number is not None and batch.number <= parent.number:
            self._refuse_number(batch, events)
            return
        is_new = state.tree.find(batch.hash) is None
        if is_new:
            state.add(batch, events)
        told.put(batch.hash, is_new or bool(told.find(batch.hash)))
        path = [head]
        while following := next((node for node in state.tree.children(path[-1].hash) if node.hash in told), None):
            path.append(following)
        if len(path) > 1:
            state.adopt(path, events)


Action: TypeAlias = Callable[[ChainOrder, CompleteBatch, list[ChainEvent]], None]

PLACES: Mapping[Place, Action] = {
    Place.BANNED: ChainOrder._ban,
    Place.KNOWN: ChainOrder._ignore,
    Place.BURIED: ChainOrder._bury,
    Place.TOO_DEEP: ChainOrder._keep_for_reorg,
    Place.UNORDERED: ChainOrder._refuse_number,
    Place.FIRST: ChainOrder._begin,
    Place.FILLS: ChainOrder._fill,
    Place.EXTENDS: ChainOrder._extend,
    Place.FORKS: ChainOrder._fork,
    Place.WAITS: ChainOrder._wait,
    Place.FOLLOWS: ChainOrder._follow,
}
