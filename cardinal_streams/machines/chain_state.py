"""The blocks that a `ChainOrder` keeps, and the changes that `chain_order_machine` makes to them: add, adopt, drop."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator

from cardinal_streams.limits import ChainLimits, RecentMap
from cardinal_streams.machines.chain_parts import ChainTree, HeldChain, TreeNode
from cardinal_streams.machines.events import ChainEvent, ChainUpdate, Dropped, DropReason, NeedsReorg, Revert
from cardinal_streams.payload import CompleteBatch


class Fate(enum.Enum):
    """The reason why a block is not in memory any more."""

    FINAL = "final"  # it became final and left the kept part of the chain
    BURIED = "buried"  # it forks off before the final block
    BANNED = "banned"  # the application wants another block with its number, or it descends from a banned block


class ChainBlocks:
    """All blocks that a `ChainOrder` has: the newest part of the chain, and the waiting blocks, which are on forks or
    lack their parent. It also has the fates of dropped and final blocks. `first_number`: the application has the blocks
    of the chain from this number on, and none below. `waiting_count`, `waiting_bytes`: the number and the size of the
    waiting blocks.

    Invariant: no waiting block is due before `_due_first`. No waiting branch that descends from the chain outweighs the
    blocks that it would replace, except from the beginning of a reorg until the head is as heavy as before."""

    def __init__(self, reorg_threshold: int, limits: ChainLimits) -> None:
        self.limits = limits
        self.tree = ChainTree()
        self.chain = HeldChain(reorg_threshold)
        self.waiting_count = self.waiting_bytes = 0
        self._due_first = math.inf
        self.fates: RecentMap[bytes, Fate] = RecentMap(limits.remembered_max)
        self.updates = self.updates_with_removals = self.added = self.removed = self.depth_max = 0
        self.dropped = dict.fromkeys(DropReason, 0)
        self.reverted_weight = 0
        self.first_number = math.inf

    def begin_at(self, node: TreeNode) -> None:
        self.tree.add(node)
        self.chain.restart(node, is_final=False)

    def waiting(self) -> list[TreeNode]:
        return self.chain.others(self.tree)

    def waiting_children(self, hash_: bytes) -> list[TreeNode]:
        return self.chain.others(self.tree.children(hash_))

    def path_to(self, node: TreeNode) -> list[TreeNode]:
        """Returns the path from the block of the chain at which this node forks off, up to the node; an empty list if
        an ancestor is missing."""
        path = [node]
        # The path is collected from the node to the chain, then reversed.
        while path[-1].hash not in self.chain:
            parent = path[-1].parent
            above = None if parent is None else self.tree.find(parent)
            if above is None:
                return []
            path.append(above)
        path.reverse()
        return path

    def add(self, batch: CompleteBatch, events: list[ChainEvent]) -> TreeNode:
        """Adds a block to the waiting blocks. Drops its waiting children whose number is not higher than its own."""
        node = TreeNode(batch.hash, batch.number, batch.parent, batch.weight, batch)
        self.drop_unordered(self.tree.children(batch.hash), batch.number, events)
        self.tree.add(node)
        self._begin_to_wait(node)
        return node

    def adopt(self, path: list[TreeNode], events: list[ChainEvent]) -> None:
        """Replaces the blocks of the chain after `path[0]`, which is on the chain, by the waiting branch `path[1:]`."""
        # The replaced blocks become a fork: they win again if their branch grows.
        replaced = self.chain.cut_above(path[0])
        for node in replaced:
            self._begin_to_wait(node)
        # Each new head can push the lowest block out of the part that reorgs can remove.
        final: list[TreeNode] = []
        for node in path[1:]:
            self._end_waiting(node)
            lowest = self.chain.push(node)
            if lowest is not None:
                final.append(lowest)
        # The update goes out before the consequences of finality, whose events refer to the new chain.
        self.updates += 1
        self.updates_with_removals += bool(replaced)
        self.added += len(path) - 1
        self.removed += len(replaced)
        self.depth_max = max(self.depth_max, len(replaced))
        removed = self._applied(replaced)
        self.first_number = min(self.first_number, path[1].number or 0)
        events.append(ChainUpdate(removed, self._applied(path[1:])))
        # Final blocks leave the memory, and forks that begin at them can never win.
        for node in final:
            self.tree.remove(node)
        for node in final:
            self.fates.put(node.hash, Fate.FINAL)
            self.drop_below(node.hash, DropReason.OLD, Fate.BURIED, events)
        self.sink(events)

    def weigh(self, branches: list[list[TreeNode]], events: list[ChainEvent]) -> None:
        """Adopts the heaviest of these branches if it outweighs the blocks that it would replace. Each branch is a path
        from a block of the chain."""
        best: list[TreeNode] | None = None
        best_weight = 0
        for branch in branches:
            # A branch is as heavy as its heaviest block (specification), which need not be its last one.
            weight = max(node.weight for node in branch[1:])
            replaced = max((node.weight for node in self.chain.above(branch[0])), default=-1)
            # Equal weight never replaces: otherwise two consumers could disagree by their order of arrival.
            if weight > replaced and (best is None or weight > best_weight):
                best, best_weight = branch, weight
        if best is not None:
            self.adopt(best, events)

    def branches_off(self, bases: Iterable[TreeNode]) -> list[list[TreeNode]]:
        # The child that is on the chain itself is no branch.
        off_chain = ((base, node) for base in bases for node in self.waiting_children(base.hash))
        return [[base, *self.tree.best_path(node)] for base, node in off_chain]

    def join_below(self, lowest: TreeNode) -> Iterator[TreeNode]:
        """Adds the known ancestors of `lowest` to the low end of the chain, then a node for the first missing one,
        until the lowest is final. Yields each node that joins."""
        node = lowest
        while node.parent is not None and not self.chain.is_final:
            below = self.tree.find(node.parent)
            if below is None:
                # The first missing ancestor joins by its hash alone: branches can leave the chain at it.
                below = TreeNode(node.parent)
                self.tree.add(below)
            else:
                self._end_waiting(below)
            self.chain.push_below(below)
            yield below
            node = below

    def sink(self, events: list[ChainEvent]) -> None:
        """Drops the waiting blocks that are not heavier than the head and whose number is not above the final
        block's."""
        number = self.chain.final_number
        # Mostly no block is due, which needs no search.
        if number is None or number < self._due_first:
            return
        waiting = self.waiting()
        self._due_first = min((node.due for node in waiting if node.due > number), default=math.inf)
        for node in (node for node in waiting if node.due <= number):
            # The node is checked again when the chain has grown by the reorg threshold plus 1, and not at each block.
            if self.is_heavier(node.weight):
                node.due = number + 1 + self.chain.removable_max
                self._due_first = min(self._due_first, node.due)
            else:
                self.drop(node, DropReason.OLD, events)
                self.fates.put(node.hash, Fate.BURIED)

    def drop_below(self, hash_: bytes, reason: DropReason, fate: Fate | None, events: list[ChainEvent]) -> None:
        """Drops all waiting blocks that descend from this block, and remembers `fate` for them unless it is None."""
        for child in self.tree.children(hash_):
            if child.hash not in self.chain:
                for node in self.tree.subtree(child):
                    self.drop(node, reason, events)
                    if fate is not None:
                        self.fates.put(node.hash, fate)

    def drop_unordered(self, nodes: Iterable[TreeNode], number: int, events: list[ChainEvent]) -> None:
        """Drops the waiting blocks among `nodes` whose number is not above `number`, the number of their parent."""
        for node in nodes:
            if node.number is not None and node.number <= number and node.hash not in self.chain:
                self.drop(node, DropReason.NUMBER, events)

    def keep_limits(self, events: list[ChainEvent]) -> None:
        limits = self.limits
        while self.waiting_count > limits.waiting_max or self.waiting_bytes > limits.waiting_bytes_max:
            self.drop(self._needed_last(), DropReason.MEMORY, events)

    def _needed_last(self) -> TreeNode:
        """Returns the waiting block that the chain needs last. The choice depends on the blocks alone: each time
        that dropped blocks come again, those with lower numbers stay, so that the chain reaches them all in the end."""
        # First the lightest end of a fork, which only a heavier child can bring to the chain.
        tree = self.tree
        forks = [child for node in self.chain for child in self.waiting_children(node.hash)]
        ends = [node for fork in forks for node in tree.subtree(fork) if not tree.children(node.hash)]
        if ends:
            return min(ends, key=lambda node: (node.weight, node.hash))
        # Then a block that only a Reorg message can bring to the chain, and at last the block with the highest number.
        final_number, waiting = self.chain.final_number, self.waiting()
        deep = [node for node in waiting if final_number is not None and (node.number or 0) <= final_number]
        return max(deep or waiting, key=lambda node: (node.number or 0, node.hash))

    def drop(self, node: TreeNode, reason: DropReason, events: list[ChainEvent]) -> None:
        assert node.batch is not None
        self._end_waiting(node)
        self.tree.remove(node)
        self.give_up(node.batch, reason, events)

    def give_up(self, batch: CompleteBatch, reason: DropReason, events: list[ChainEvent]) -> None:
        self.dropped[reason] += 1
        if reason is not DropReason.OLD:
            events.append(Dropped(batch.hash, batch.number, batch.weight, reason, batch.offsets))

    @property
    def weight_of_head(self) -> int:
        """The weight of the head; 0 if the chain is empty or the weight is not known."""
        head = self.chain.head
        return 0 if head is None else head.weight

    def is_heavier(self, weight: int) -> bool:
        """Whether a block of this weight is heavier than the head; False while the head's weight is unknown."""
        head = self.chain.head
        # After a revert to a block that is not in memory, its weight is unknown, and nothing counts as heavier.
        return head is not None and weight > head.weight and (head.batch is not None or head.weight > 0)

    def bury(self, hash_: bytes, events: list[ChainEvent]) -> None:
        """Notes that this block, which is not in memory, forks off before the final block. Drops the waiting
        descendants of the block, but keeps each descendant that is heavier than the head, with all after it, for a
        Reorg message."""
        # The list grows while it is read: dropped children have descendants, too.
        buried = [hash_]
        for each in buried:
            self.fates.put(each, Fate.BURIED)
            for child in self.waiting_children(each):
                if self.is_heavier(child.weight):
                    events.append(NeedsReorg(child.hash, child.number or 0, child.weight))
                else:
                    self.drop(child, DropReason.OLD, events)
                    buried.append(child.hash)

    def go_back_to(self, hash_: bytes, number: int, removed_weight: int, events: list[ChainEvent]) -> None:
        """Removes all blocks after this block from the chain. If this block is not on the chain, all blocks are
        removed, and the chain consists of this block alone. The removed blocks become waiting blocks."""
        node = self.tree.find(hash_)
        if node is not None and hash_ in self.chain:
            cut = self.chain.cut_above(node)
        else:
            # A node that has only a hash cannot wait.
            cut = [other for other in self.chain if other.batch is not None]
            for other in self.chain:
                if other.batch is None:
                    self.tree.remove(other)
            if node is None:
                node = TreeNode(hash_, number)
                self.tree.add(node)
            else:
                self._end_waiting(node)
            self.chain.restart(node, is_final=True)
        for other in cut:
            self._begin_to_wait(other)
        # Blocks that were final or buried can be part of the new chain. Only the application's own ban lasts.
        for other_hash, fate in list(self.fates.items()):
            if fate is not Fate.BANNED:
                del self.fates[other_hash]
        # The application has nothing to undo for blocks up to the ancestor's number.
        removed = self._applied(other for other in cut if other.number is not None and other.number > number)
        self.first_number = min(self.first_number, number + 1)
        self.removed += len(removed)
        events.append(Revert(hash_, number, self.weight_of_head, removed, removed_weight))

    def check(self, *, in_reorg: bool) -> None:
        """Raises AssertionError if a limit or the invariant of the class is broken. in_reorg: a reorg is under way, so
        waiting branches may outweigh the chain."""
        self.tree.check()
        self.chain.check()
        final_number, waiting = self.chain.final_number, self.waiting()
        assert all(self.tree.find(node.hash) is node for node in self.chain)
        assert self.waiting_count == len(waiting) <= self.limits.waiting_max
        assert self.waiting_bytes <= self.limits.waiting_bytes_max
        assert self.waiting_bytes == sum(node.batch.size_bytes for node in waiting if node.batch is not None)
        for node in waiting:
            assert node.batch is not None
            assert node.due >= self._due_first
            low = final_number is not None and node.number is not None and node.number <= final_number
            head = self.chain.head
            is_weighed = not in_reorg and head is not None and head.weight >= self.reverted_weight
            if is_weighed and (path := self.path_to(node)):
                assert not low
                heaviest = max(other.weight for other in path[1:])
                assert heaviest <= max(other.weight for other in self.chain.above(path[0]))

    def _begin_to_wait(self, node: TreeNode) -> None:
        assert node.batch is not None
        self.waiting_count += 1
        self.waiting_bytes += node.batch.size_bytes
        node.due = node.batch.number
        self._due_first = min(self._due_first, node.due)

    def _end_waiting(self, node: TreeNode) -> None:
        assert node.batch is not None
        self.waiting_count -= 1
        self.waiting_bytes -= node.batch.size_bytes

    def _applied(self, nodes: Iterable[TreeNode]) -> tuple[CompleteBatch, ...]:
        """Returns the blocks of these nodes of the chain, but only blocks that the application has."""
        batches = (node.batch for node in nodes)
        return tuple(batch for batch in batches if batch is not None and batch.number >= self.first_number)
