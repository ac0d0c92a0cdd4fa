"""The operations that the storage threads perform for a chain. Writing operations run in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from block_node.persist.chain_log import ChainLog, NewBlock, StoredBlock, StoredChain
from block_node.persist.errors import BlockNumberUnknown
from block_node.persist.schema import GET_CHAIN, BlockPlace, recount_chain
from stream_storage.contract import Do, Operation, Session
from stream_storage.errors import DatabaseCorrupt

PLACES_PER_READ = 256


class StoredParts(msgspec.Struct, frozen=True):
    place: BlockPlace
    first_part: int
    parts: Sequence[bytes]

    @property
    def next_part(self) -> int:
        return self.first_part + len(self.parts)

    @property
    def is_last(self) -> bool:
        return self.next_part == self.place.parts


def read_chain(session: Session, log: ChainLog) -> StoredChain | None:
    """Returns the present state of a chain; None if no block of the chain was ever stored."""
    known = session.execute(GET_CHAIN, (log.chain,)).fetchone()
    return None if known is None else log.state(session)


def recount(session: Session, log: ChainLog) -> StoredChain | None:
    recount_chain(session, log.chain)
    return read_chain(session, log)


class StoreBlock(Do[StoredBlock]):
    __slots__ = ("block",)

    def __init__(
        self, block: NewBlock, work: Callable[[Session], StoredBlock], on_done: Callable[[StoreBlock], None]
    ) -> None:
        super().__init__(work, on_done)
        self.block = block

    def row_count(self) -> int:
        return self.block.staged + len(self.block.parts)


class StageParts(Do[None]):
    __slots__ = ("_rows",)

    def __init__(self, rows: int, work: Callable[[Session], None], on_done: Callable[[StageParts], None]) -> None:
        super().__init__(work, on_done)
        self._rows = rows

    def row_count(self) -> int:
        return self._rows


class ReadBlocks(Operation):
    """Reads at most `blocks` consecutive blocks, from part number `part` of block `number` on, up to the first missing
    one: at least one part, but none if `part` is beyond the end of the first block. Fails if the first block is missing
    or unreadable. A later unreadable block only ends the read."""

    __slots__ = ("blocks", "bytes_max", "found", "log", "number", "part")

    def __init__(
        self,
        log: ChainLog,
        number: int,
        part: int,
        bytes_max: int,
        on_done: Callable[[ReadBlocks], None],
        *,
        blocks: int,
    ) -> None:
        super().__init__(on_done)
        self.log = log
        self.number = number
        self.part = part
        self.bytes_max = bytes_max
        self.blocks = blocks
        self.found: list[StoredParts] = []

    def apply(self, session: Session) -> None:
        self.found = []
        room_bytes, part = self.bytes_max, self.part
        # A block that does not fit is left to the next read, which begins with it.
        for place in self._places(session):
            if part >= place.parts:
                self.found.append(StoredParts(place, part, ()))
                return
            if self.found and place.size_bytes > room_bytes:
                return
            try:
                parts = self.log.read(session, place, part, room_bytes)
            except DatabaseCorrupt:
                if not self.found:
                    raise
                return
            self.found.append(StoredParts(place, part, parts))
            # The rest of this block comes first in the next read.
            if not self.found[-1].is_last:
                return
            room_bytes -= sum(map(len, parts))
            part = 0
        if not self.found:
            raise BlockNumberUnknown(self.number)

    def _places(self, session: Session) -> Iterator[BlockPlace]:
        first = self.log.places(session, self.number, 1)
        yield from first
        # The other places are read only if there is room: a part of a large first block fills the read alone.
        if first and self.blocks > 1:
            yield from self.log.places(session, self.number + 1, self.blocks - 1)
