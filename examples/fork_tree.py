"""Store two forks of a chain. The second fork overtakes the first, and replaces it on disk. No node is needed.

python examples/fork_tree.py
"""

import tempfile
from pathlib import Path

from rich import print
from rich.tree import Tree

from block_manager import NULL_BLOCK_ID, Block, BlockManager, open_store

PARENTS = {"a0": NULL_BLOCK_ID, "a1": "a0", "a2": "a1", "a3": "a2", "b2": "a1", "b3": "b2", "b4": "b3"}
CHAIN = [Block(name, parent, number=int(name[1:])) for name, parent in PARENTS.items()]


def draw(title: str) -> None:
    trees, stored = {NULL_BLOCK_ID: Tree(title)}, {block.block_id for block in store.iter()}
    for block, found in zip(CHAIN, manager.get(list(PARENTS)), strict=True):
        state = "[green]on disk" if block.block_id in stored else "[yellow]in memory" if found else "[red]dropped"
        trees[block.block_id] = trees[block.previous_id].add(f"{block.block_id} {state}")
    print(trees[NULL_BLOCK_ID])


with tempfile.TemporaryDirectory() as folder, open_store(Path(folder)) as store:
    manager = BlockManager()
    manager.add_store("committed", store)
    manager.put(CHAIN[:4])
    manager.persist("a3", "committed")
    manager.put(CHAIN[4:])
    draw("Fork a is committed. Fork b leaves it at a1 and overtakes it.")
    undone = [block.block_id for block in manager.branch_diff("a3", "b4")]
    applied = [block.block_id for block in manager.branch_diff("b4", "a3")]
    print(f"To undo: {', '.join(undone)}. To apply: {', '.join(reversed(applied))}.")
    manager.persist("b4", "committed")
    draw("Fork b is committed in one step. Fork a is back in memory.")
    manager.unref_block("a3")
    draw("Nobody refers to a3 any more, so fork a is dropped.")
