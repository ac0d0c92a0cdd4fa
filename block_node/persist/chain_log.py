"""The blocks of one chain on disk: as messages of the chain's stream, with an index and other tables. The caller
provides the session and its transaction.

A block is stored in one transaction with its index row, and its parts are consecutive messages. Blocks are deleted by
number, but messages only from the start of the stream: the space of a block that backfill stored late becomes free when
all blocks that were stored earlier are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from block_node.persist import schema as sql
from block_node.persist.mark import (
    STREAM_PREFIX,
    BlockMark,
    find_mark,
    find_other_roots,
    find_root_before,
    headers_of,
    key_of,
)
from block_node.persist.ranges import BlockRanges
from block_node.persist.schema import GET_CHAIN, BlockPlace, recount_chain
from stream_service.stored import LOST_EXTRAS
from stream_storage.checksum import checksum_full, seed_base
from stream_storage.contract import Append, Do, Operation, Session, StreamRecord
from stream_storage.errors import DatabaseCorrupt, StorageError, corrupt_text
from stream_storage.schema import messages
from stream_storage.statement import replacing
from stream_storage.statement import sql as sql_statement


class BlockNumberUnknown(StorageError):
    """Raised for a request that names a block which is not stored."""

    def __init__(self, number: int) -> None:
        super().__init__(f"block {number} is not stored here; ask for the ranges that are (`block_status`)")


class StoredBlockDiffers(StorageError):
    """Raised if a block with the same number and another root hash is already stored."""

    def __init__(self, number: int, stored: bytes, offered: bytes) -> None:
        super().__init__(
            f"block {number} is stored with root {stored.hex()[:16]}…, and one with root {offered.hex()[:16]}… was "
            "offered; find out which source is wrong"
        )


class PredecessorMissing(StorageError):
    """Raised for a block if an earlier block could not be stored."""

    def __init__(self, number: int, behind: int) -> None:
        super().__init__(f"block {number} is not stored, since block {behind} before it could not be; send both again")


class StagedPartMissing(StorageError):
    """Raised for a large block if one of its staged parts (written before the verification) is missing."""

    def __init__(self, number: int, part: int) -> None:
        super().__init__(f"part {part} of block {number} could not be kept; make room on the disk, then send it again")


REBUILD_PAGE_BYTES = 16 * 1024 * 1024
REBUILD_PAGE_MESSAGES = 1_000
TRUNCATE_MESSAGES = 1_000
APPEND_PARTS = 8
"""The number of staged parts of a block that are in memory together while the block is copied."""


_WRITE: Final = replacing(messages, "stream_id", "idx")
_READ: Final = sql_statement(
    "SELECT idx, time_us, checksum, headers FROM messages WHERE stream_id = :stream_id AND idx >= :index "
    "ORDER BY idx LIMIT :limit"
)
_TIME_BEFORE: Final = sql_statement(
    "SELECT time_us FROM messages WHERE stream_id = :stream_id AND idx < :index ORDER BY idx DESC LIMIT 1"
)


class StoredChain(msgspec.Struct, frozen=True):
    """The stored state of a chain.

    - available: the blocks that can be read. stored: these, and the blocks that retention has deleted. damaged: the
      blocks whose bytes are damaged or gone.
    - blocks, size_bytes, newest: the number, the size and the newest of the available and damaged blocks.
    - verifier_state: empty if none was stored since `block_index` was built.
    """

    available: BlockRanges
    stored: BlockRanges
    damaged: BlockRanges
    blocks: int
    size_bytes: int
    newest: BlockPlace | None
    verifier_state: bytes


class StoredBlock(NamedTuple):
    """The result of storing a block. is_new: False if the same block was stored before. mended_bytes: the size of the
    damaged block that it replaces."""

    place: BlockPlace
    is_new: bool
    stream: StreamRecord
    mended_bytes: int | None = None


class NewBlock(msgspec.Struct, frozen=True):
    """A verified block to be stored.

    - parts: the bytes of the serialized `Block`, cut into parts, without the staged ones.
    - attempt: the number under which parts are staged (written to disk before the verification). staged, staged_bytes:
      the number of the staged parts, and their size.
    - verifier_state: the state from which the verifier can continue after this block. Empty if it need not be stored.
    - other_roots: the other possible root hashes of the block. The next block shows which one is right.
    - corrected_root: the right root hash of the previous block, if that block is stored under a wrong one.
    """

    number: int
    root: bytes
    items: int
    parts: Sequence[bytes]
    attempt: int | None = None
    staged: int = 0
    staged_bytes: int = 0
    verifier_state: bytes = b""
    other_roots: tuple[bytes, ...] = ()
    corrected_root: bytes = b""

    @property
    def size_bytes(self) -> int:
        return self.staged_bytes + sum(map(len, self.parts))


def stream_name(chain: str) -> str:
    return STREAM_PREFIX + chain


class ChainLog:
    """The blocks of one chain on disk. Changes need a writing transaction of the caller. For faults of a disk or
    a file, every method raises StorageError."""

    def __init__(self, chain: str) -> None:
        self.chain = chain

    def open(self, session: Session) -> tuple[StreamRecord | None, StoredChain]:
        """Deletes the parts of incomplete blocks that an earlier process has left. Returns the stream of the blocks,
        which is None before the first block, and the state of the chain."""
        # Without a stream there is no block, and nothing else in the tables counts.
        stream = session.log.find_stream(stream_name(self.chain), 0)
        if stream is None:
            return None, StoredChain(BlockRanges(), BlockRanges(), BlockRanges(), 0, 0, None, b"")
        # Staged parts belong to blocks that an earlier process was verifying.
        session.execute(sql.CLEAR_ALL_STAGED, (self.chain,))
        # Another program may have changed the stream, or the row is damaged: the stream itself tells which blocks are
        # stored.
        known = None
        with suppress(DatabaseCorrupt):
            known = sql.find_chain(session, self.chain)
        if known is None or known[:2] != (stream.stream_id, stream.next_index):
            self._rebuild(session, stream)
        return stream, self.state(session)

    def state(self, session: Session) -> StoredChain:
        execute = session.execute
        # If no block is missing, the lowest and the highest number are the range. A search for gaps takes far longer.
        _, _, blocks, size_bytes, verifier_state, _ = execute(sql.GET_CHAIN, (self.chain,)).fetchone()
        first, last, count = execute(sql.SPAN, (self.chain,)).fetchone()
        without_hole = count and last - first + 1 == count
        available = BlockRanges([(first, last)] if without_hole else execute(sql.RANGES, (self.chain,)))
        # Damaged blocks do not count as stored, so that they are fetched again. Evicted blocks count.
        damaged = BlockRanges((row[0], row[0]) for row in execute(sql.DAMAGED, (self.chain,)) if row[0] in available)
        for each in damaged:
            available.discard(*each)
        stored = available.copy()
        for first, last in execute(sql.EVICTED, (self.chain,)):
            stored.add(first, last)
        newest = execute(sql.NEWEST_PLACES, (self.chain, 1)).fetchone()
        place = None if newest is None else BlockPlace(*newest)
        return StoredChain(available, stored, damaged, blocks, size_bytes, place, verifier_state)

    def stream(self, session: Session) -> StreamRecord:
        return session.log.get_stream(self._stream_id(session))

    def store(
        self, session: Session, block: NewBlock, time_us: int, behind: int | None = None, *, mends: bool = False
    ) -> StoredBlock:
        """Stores a block, unless the same block is already stored.

        time_us: the time of the messages, in microseconds since 1970. behind: a block that must already be stored,
        usually the previous one. mends: whether the stored bytes of the block are damaged.

        Raises StoredBlockDiffers, PredecessorMissing or StagedPartMissing.
        """
        # 1. A damaged block is written into its own place if it fits there, else it is stored like a new one.
        known = self.find(session, block.number)
        mended_bytes = None
        if mends and known is not None:
            mended_bytes = known.size_bytes
            session.execute(sql.CLEAR_DAMAGED, (self.chain, block.number))
            if self._write_again(session, block, time_us):
                return StoredBlock(known, True, self.stream(session), mended_bytes)
            self._forget(session, known)
            known = None
        # 2. A block that is stored already must be the same block.
        if known is not None:
            # The root hash of the stored block may have been corrected after the block was stored.
            if known.root != block.root and known.root not in block.other_roots:
                raise StoredBlockDiffers(block.number, known.root, block.root)
            self.unstage(session, block.attempt)
            return StoredBlock(known, False, self.stream(session))
        # 3. If the block `behind` failed, this one is not stored either, so that the end of the chain has no gap.
        if behind is not None and self.find(session, behind) is None:
            raise PredecessorMissing(block.number, behind)
        # 4. The parts become consecutive messages, each with the mark of the block, from which the index can be
        # rebuilt.
        row = self._ensure_chain(session, time_us)
        stream = session.log.get_stream(row[0])
        first_index, parts = stream.next_index, block.staged + len(block.parts)
        place = BlockPlace(block.number, first_index, parts, block.items, block.size_bytes, block.root)
        index = first_index
        for run in _runs(self._all_parts(session, block)):
            headers = [
                headers_of(_mark(place, part), block.other_roots, block.corrected_root if part == 0 else b"")
                for part in range(index - first_index, index - first_index + len(run))
            ]
            keys = [key_of(block.number)] * len(run)
            session.log.append([Append(stream.stream_id, index, time_us, run, keys, headers)])
            index += len(run)
        # 5. The index row, the totals and the verifier's state follow in the same transaction.
        sql.add_place(session, self.chain, place)
        sql.grow_chain(session, self.chain, row, index, 1, place.size_bytes, block.verifier_state)
        # 6. The footer of this block has shown that the previous one is stored under a wrong root hash.
        if block.corrected_root:
            sql.set_root(session, self.chain, block.number - 1, block.corrected_root)
        self.unstage(session, block.attempt)
        return StoredBlock(place, True, session.log.get_stream(stream.stream_id), mended_bytes)

    def _write_again(self, session: Session, block: NewBlock, time_us: int) -> bool:
        place = sql.find_sound_place(session, self.chain, block.number)
        # The block must be the one that is stored, and must fit into its messages.
        roots = (block.root, *block.other_roots)
        if place is None or place.root not in roots:
            return False
        if (place.parts, place.size_bytes, place.items) != (len(block.parts), block.size_bytes, block.items):
            return False
        other_roots = [root for root in roots if root != place.root]
        before = self.find(session, block.number - 1)
        root_before = b"" if before is None else before.root
        _write_parts(session, self._stream_id(session), place, block.parts, other_roots, root_before, time_us)
        return True

    def _forget(self, session: Session, place: BlockPlace) -> None:
        row = sql.get_chain(session, self.chain)
        session.execute(sql.DELETE_PLACE, (self.chain, place.number))
        sql.grow_chain(session, self.chain, row, row[1], -1, -place.size_bytes)

    def stage(self, session: Session, attempt: int, part: int, data: Sequence[bytes]) -> None:
        rows = [(self.chain, attempt, part + offset, each) for offset, each in enumerate(data)]
        session.execute_many(sql.ADD_STAGED, rows)

    def find(self, session: Session, number: int) -> BlockPlace | None:
        if not 0 <= number <= sql.NUMBER_MAX:
            return None
        row = session.execute(sql.FIND_PLACE, (self.chain, number)).fetchone()
        return None if row is None else BlockPlace(*row)

    def roots(self, session: Session, last: int) -> list[bytes]:
        return [row[0] for row in session.execute(sql.ROOTS, (self.chain, last))]

    def places(self, session: Session, number: int, limit: int) -> list[BlockPlace]:
        rows = session.execute(sql.PLACES_FROM, (self.chain, min(number, sql.NUMBER_MAX), limit))
        found: list[BlockPlace] = []
        for row in rows.fetchall():
            if row[0] != number + len(found):
                break
            found.append(BlockPlace(*row))
        return found

    def read(self, session: Session, place: BlockPlace, part: int, bytes_max: int) -> list[bytes]:
        """Reads consecutive parts of a block: at least one, and at most `bytes_max` bytes. Raises DatabaseCorrupt."""
        records = session.log.read(self._stream_id(session), place.first_index + part, place.parts - part, bytes_max)
        # The mark of the first message shows that the location is right; the checksums of the log cover the bytes.
        index = place.first_index + part
        if not records or records[0][0] != index or not _is_part(records[0][4], place, part):
            reason = f"index {index} does not have part {part} of block {place.number} as it was stored"
            raise DatabaseCorrupt(corrupt_text(reason))
        return [record[1] for record in records]

    def evict(self, session: Session, blocks: int) -> list[BlockPlace]:
        """Deletes the lowest blocks, at most `blocks`, but never the highest of the chain. Returns their locations."""
        execute = session.execute
        # One block more is read. If there is no such block, the last one found is the highest, which stays.
        found = [BlockPlace(*row) for row in execute(sql.PLACES_FROM, (self.chain, 0, blocks + 1))]
        gone = found[:-1] if len(found) <= blocks else found[:blocks]
        if not gone:
            return []
        execute_many = session.execute_many
        for statement in (sql.DELETE_PLACE, sql.CLEAR_DAMAGED):
            execute_many(statement, [(self.chain, place.number) for place in gone])
        # The list of deleted blocks is written anew, so that it stays one row for each range.
        evicted = BlockRanges(execute(sql.EVICTED, (self.chain,)))
        for place in gone:
            evicted.add(place.number)
        sql.set_evicted(session, self.chain, evicted)
        size_bytes = sum(place.size_bytes for place in gone)
        row = sql.get_chain(session, self.chain)
        stream = session.log.get_stream(row[0])
        sql.grow_chain(session, self.chain, row, stream.next_index, -len(gone), -size_bytes)
        # Messages go from the start of the stream only, up to the first block that is still there.
        first_index = execute(sql.FIRST_PLACE, (self.chain,)).fetchone()[0]
        session.log.truncate_before(stream.stream_id, min(first_index, stream.first_index + TRUNCATE_MESSAGES))
        return gone

    def _rebuild(self, session: Session, stream: StreamRecord) -> None:
        """Builds `block_index` again from the headers of the messages. Of blocks with one number, the first remains."""
        execute = session.execute
        execute(sql.CLEAR_PLACES, (self.chain,))
        # The verifier's state is lost with the row: the verifier continues from the root hashes.
        row = (stream.stream_id, stream.next_index, 0, 0, b"")
        sql.set_chain(session, self.chain, row)
        blocks = size_bytes = 0
        corrected: list[tuple[int, bytes]] = []
        for place, root_before in self._stored_places(session, stream):
            if root_before:
                corrected.append((place.number - 1, root_before))
            if self.find(session, place.number) is None:
                sql.add_place(session, self.chain, place)
                blocks += 1
                size_bytes += place.size_bytes
        sql.grow_chain(session, self.chain, row, stream.next_index, blocks, size_bytes)
        # The next block has the corrected root hash. It is set last, when all blocks are in the index.
        for number, root in corrected:
            sql.set_root(session, self.chain, number, root)

    def _stored_places(self, session: Session, stream: StreamRecord) -> Iterator[tuple[BlockPlace, bytes]]:
        """Yields the locations of the complete blocks, each with the corrected root hash of the block before."""
        index = stream.first_index
        begun: BlockPlace | None = None
        root_before = b""
        while index < stream.next_index:
            records = session.log.read(stream.stream_id, index, REBUILD_PAGE_MESSAGES, REBUILD_PAGE_BYTES)
            for index, _, _, _, headers in records:
                # A lost message makes its whole block unreadable.
                if headers == LOST_EXTRAS:
                    begun = None
                    continue
                mark = find_mark(headers)
                if mark is None or mark.number > sql.NUMBER_MAX:
                    reason = f"message {index} of the stream {stream.name!r} is no part of a block"
                    raise DatabaseCorrupt(corrupt_text(reason))
                # The first part of a block says how many parts follow.
                if mark.part == 0:
                    root_before = find_root_before(headers)
                    begun = BlockPlace(mark.number, index, mark.parts, mark.items, mark.size_bytes, mark.root)
                # The block is complete when its last part follows all others without a gap.
                if (
                    begun is not None
                    and mark == _mark(begun, index - begun.first_index)
                    and mark.part == mark.parts - 1
                ):
                    yield begun, root_before
                    begun = None
            index += 1

    def _ensure_chain(self, session: Session, time_us: int) -> sql.ChainRow:
        known = sql.find_chain(session, self.chain)
        if known is None:
            stream = session.log.ensure_stream(stream_name(self.chain), 0, time_us)
            known = (stream.stream_id, stream.next_index, 0, 0, b"")
            sql.set_chain(session, self.chain, known)
        return known

    def _stream_id(self, session: Session) -> int:
        stream_id: int = session.execute(sql.GET_CHAIN, (self.chain,)).fetchone()[0]
        return stream_id

    def _all_parts(self, session: Session, block: NewBlock) -> Iterator[bytes]:
        for part in range(block.staged):
            row = session.execute(sql.GET_STAGED, (self.chain, block.attempt, part)).fetchone()
            if row is None:
                raise StagedPartMissing(block.number, part)
            yield row[0]
        yield from block.parts

    def unstage(self, session: Session, attempt: int | None) -> None:
        if attempt is not None:
            session.execute(sql.CLEAR_STAGED, (self.chain, attempt))


def _is_part(headers: bytes | None, place: BlockPlace, part: int) -> bool:
    """Whether a message is this part of the block, by its headers, which name all possible root hashes."""
    mark = find_mark(headers)
    if mark is None or (mark.root != place.root and place.root not in find_other_roots(headers)):
        return False
    return msgspec.structs.replace(mark, root=place.root) == _mark(place, part)


def _mark(place: BlockPlace, part: int) -> BlockMark:
    return BlockMark(place.number, part, place.parts, place.items, place.size_bytes, place.root)


def _write_parts(
    session: Session,
    stream_id: int,
    place: BlockPlace,
    parts: Sequence[bytes],
    other_roots: Sequence[bytes],
    root_before: bytes,
    time_us: int,
) -> None:
    """Writes a block whose bytes are damaged or gone into the messages of its own place, so that a reader of the stream
    finds every message at its index. time_us: the time of the messages, if no message precedes them."""
    first, number = place.first_index, place.number
    rows = session.execute(_READ, (stream_id, first, place.parts)).fetchall()
    found = {row[0]: row[1:] for row in rows}
    before = session.execute(_TIME_BEFORE, (stream_id, first)).fetchone()
    # A message must not be newer than later messages, because messages are searched by time.
    time_us = time_us if before is None else before[0]
    written = []
    for part, data in enumerate(parts):
        index, key = first + part, key_of(number)
        # If the checksum fits the right data, the time and the headers are those that were stored.
        message_time_us, checksum, headers = found.get(index, (None, None, None))
        is_sound = checksum is not None and checksum == checksum_full(
            seed_base(stream_id, message_time_us), index, data, key, headers
        )
        if not is_sound:
            headers = headers_of(_mark(place, part), other_roots, root_before if part == 0 else b"")
            message_time_us = time_us
            checksum = checksum_full(seed_base(stream_id, time_us), index, data, key, headers)
        written.append((stream_id, index, message_time_us, checksum, key, headers, data))
    session.execute_many(_WRITE, written)


def _runs(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(parts)
    while run := list(islice(rest, APPEND_PARTS)):
        yield run


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
