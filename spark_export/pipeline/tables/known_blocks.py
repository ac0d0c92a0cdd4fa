"""Keeps the complete blocks of Cardinal Streams in memory, and computes the canonical chains after new blocks.

A run usually reads only a part of the table silver/batches. The state of a version names a settled block for each
chain: a canonical block whose number is at least `WINDOW` less than the number of the newest block. While every new
block descends from the settled block, the branch of the settled block only gets heavier. Blocks that do not descend
from the settled block then keep their state, so the run does not read them, except the reorged blocks for gold/reorgs.

If a new block does not descend from the settled block, the run reads all blocks. A chain has no settled block while a
block waits for missing blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_export.pipeline.canon import CANONICAL, LOST, WAITING, BlockLink, CanonState, mark_chain
from spark_export.pipeline.tables.message_tables import rows_of, table_of
from spark_export.pipeline.versions import STATE, Version

BATCHES: Final = "silver/batches"
SETTLED: Final = f"{STATE}/settled"
WINDOW: Final = 4096
"""The settled block (see the module) is at least this many block numbers below the newest canonical block."""
SETTLED_SCHEMA = pa.schema([("chain", pa.string()), ("number", pa.int64()), ("hash", pa.binary())])
COLUMNS: Final = (
    *("chain", "hash", "number", "parent", "weight", "timestamp", "state", "fork_number", "updates", "deletes"),
    "missing",
)
Block: TypeAlias = tuple[str, bytes]
"""The name of a chain and the hash of a block."""


@dataclass(slots=True)
class Complete:
    """A complete block. `mark` is its state in silver/batches, and `file` the file with its row."""

    link: BlockLink
    mark: CanonState
    updates: int
    deletes: int
    file: str


class StoredBlocks:
    """The complete blocks of one version of the tables.

    changed: the blocks that were added, or whose storage time changed, since the version began.
    on_chain: the chains that have a canonical block, after `finish`.
    """

    def __init__(self, version: Version, starts: Mapping[str, bytes]) -> None:
        self._version = version
        self._starts = starts
        self._settled: dict[str, tuple[int, bytes]] = {}
        self.blocks: dict[Block, Complete] = {}
        self.changed: set[Block] = set()
        self.on_chain: frozenset[str] = frozenset()

    def load(self, state: Path | None) -> None:
        """Reads the blocks that a run needs at first: all reorged ones, and each chain from its settled block."""
        if state is not None:
            for chain, number, hash_ in rows_of(pq.read_table(state / SETTLED)):
                self._settled[chain] = (number, hash_)
        wanted = pc.field("reorged")
        for chain, (number, _) in self._settled.items():
            wanted = wanted | ((pc.field("chain") == chain) & (pc.field("number") >= number))
        others = ~pc.field("chain").isin(pa.array(list(self._settled), pa.string()))
        for path in self._version.files(BATCHES, "part"):
            self._read(path, (wanted | others) if self._settled else None)

    def load_file(self, name: str) -> None:
        if self._settled:
            self._read(self._version.folder / BATCHES / name, None)

    def find_settled(self, places: list[Block]) -> None:
        """Reads all blocks of silver/batches if the table has one of `places`, and `load` has left that block out,
        because it is older than the settled block of its chain."""
        unknown = [hash_ for chain, hash_ in places if chain in self._settled]
        if not unknown:
            return
        wanted = pc.field("hash").isin(pa.array(unknown, pa.binary()))
        for path in self._version.files(BATCHES, "part"):
            found = pq.read_table(path, columns=["chain", "hash"], filters=wanted)
            if any(place not in self.blocks for place in rows_of(found)):
                self._load_all()
                return

    def find_changes(self) -> dict[str, dict[Block, CanonState]]:
        """Computes the canonical chains. Returns the changed blocks with their new state, by file of silver/batches."""
        if not all(self._above_settled(chain) for chain in list(self._settled)):
            self._load_all()
        chains: dict[str, list[BlockLink]] = defaultdict(list)
        for (chain, _), block in self.blocks.items():
            chains[chain].append(block.link)
        found: dict[str, dict[Block, CanonState]] = defaultdict(dict)
        for chain, links in chains.items():
            start = self._starts.get(chain)
            if chain in self._settled:
                start = self._settled[chain][1]
                links = self._descendants(chain)
            for hash_, mark in mark_chain(links, start).items():
                known = self.blocks[chain, hash_]
                if known.mark != mark:
                    found[known.file][chain, hash_] = mark
        return found

    def finish(self) -> None:
        """Chooses the settled block of each chain, and writes the settled blocks into the state."""
        heads: dict[str, int] = {}
        waiting: set[str] = set()
        for (chain, _), block in self.blocks.items():
            if block.mark.state == CANONICAL:
                heads[chain] = max(block.link.number, heads.get(chain, 0))
            elif block.mark.state == WAITING:
                waiting.add(chain)
        self.on_chain = frozenset(heads)
        settled: dict[str, tuple[int, bytes]] = {}
        for (chain, hash_), block in self.blocks.items():
            number = block.link.number
            if block.mark.state == CANONICAL and chain not in waiting and number <= heads[chain] - WINDOW:
                settled[chain] = max((number, hash_), settled.get(chain, (0, b"")))
        rows = [(chain, *place) for chain, place in sorted(settled.items())]
        self._version.write(SETTLED, table_of(SETTLED_SCHEMA, rows))

    def _read(self, path: Path, wanted: pc.Expression | None) -> None:
        for row in rows_of(pq.read_table(path, columns=list(COLUMNS), filters=wanted)):
            chain, hash_, number, parent, weight, stored_us, state, fork, updates, deletes, missing = row
            if missing is None and (chain, hash_) not in self.blocks:
                link = BlockLink(hash_, parent, number, int(weight), stored_us)
                self.blocks[chain, hash_] = Complete(link, CanonState(state, fork), updates, deletes, path.name)

    def _load_all(self) -> None:
        for path in self._version.files(BATCHES, "part"):
            self._read(path, None)
        self._settled = {}

    def _above_settled(self, chain: str) -> bool:
        """Returns whether the settled block and its descendants are enough to compute the states of a chain.

        All changed blocks must descend from the settled block, with rising numbers. No reorged block without a
        connection to the chain has a number above that of the chain's last block.
        """
        links = self._descendants(chain)
        hashes = {link.hash for link in links}
        if any(hash_ not in hashes for name, hash_ in self.changed if name == chain):
            return False
        # A block whose number is not greater than its parent's is cut off from the chain, with its descendants. Their
        # states depend on the whole chain.
        marks = mark_chain(links, self._settled[chain][1])
        if any(mark.state == WAITING or mark == LOST for mark in marks.values()):
            return False
        # A block without a connection to the chain is reorged only while the chain reaches its number. A branch that
        # wins may be shorter than the branch before it.
        head = max(link.number for link in links if marks[link.hash].state == CANONICAL)
        others = (block for (name, hash_), block in self.blocks.items() if name == chain and hash_ not in hashes)
        return all(block.mark != LOST or block.link.number <= head for block in others)

    def _descendants(self, chain: str) -> list[BlockLink]:
        """Returns the settled block of a chain, and all blocks that descend from it."""
        children: dict[bytes, list[BlockLink]] = defaultdict(list)
        for (name, _), block in self.blocks.items():
            if name == chain:
                children[block.link.parent].append(block.link)
        found = [self.blocks[chain, self._settled[chain][1]].link]
        for link in found:
            found.extend(children.get(link.hash, ()))
        return found
