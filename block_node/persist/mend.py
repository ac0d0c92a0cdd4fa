"""Writes a stored block again whose bytes are damaged or gone, in its own place, in the caller's transaction.

Afterwards a reader of the chain's stream finds every message at its index, and the index of blocks can be rebuilt. A
block can come back with other bytes, because its proofs can differ. Then it does not fit into its place, and the caller
appends it like a new block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Integer, bindparam, literal_column, select

from block_node.persist.mark import BlockMark, headers_of, key_of
from block_node.persist.schema import BlockPlace
from stream_storage.checksum import checksum_full, seed_base
from stream_storage.contract import Session
from stream_storage.log_statements import page
from stream_storage.schema import messages
from stream_storage.statement import compiled, replacing

_WRITE: Final = replacing(messages, "stream_id", "idx")
_READ: Final = compiled(
    page(messages.c.idx, messages.c.time_us, messages.c.checksum, messages.c.headers), *("stream_id", "index", "limit")
)
_TIME_BEFORE: Final = compiled(
    select(messages.c.time_us)
    .where(messages.c.stream_id == bindparam("stream_id"), messages.c.idx < bindparam("index"))
    .order_by(messages.c.idx.desc())
    .limit(bindparam("limit", type_=Integer))
    .offset(literal_column("0")),
    *("stream_id", "index", "limit"),
)


def fits(place: BlockPlace, parts: Sequence[bytes], items: int) -> bool:
    """Whether a block can be written into this place: it has the same size, parts and number of items."""
    return (place.parts, place.size_bytes, place.items) == (len(parts), sum(map(len, parts)), items)


def write_again(
    session: Session,
    stream_id: int,
    place: BlockPlace,
    parts: Sequence[bytes],
    other_roots: Sequence[bytes],
    root_before: bytes,
    time_us: int,
) -> None:
    """Writes the parts of a block into the messages of its place. time_us: their time, if no message precedes them."""
    first, number = place.first_index, place.number
    rows = session.execute(_READ, (stream_id, first, place.parts)).fetchall()
    found = {row[0]: row[1:] for row in rows}
    before = session.execute(_TIME_BEFORE, (stream_id, first, 1)).fetchone()
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
            mark = BlockMark(number, part, place.parts, place.items, place.size_bytes, place.root)
            message_time_us, headers = time_us, headers_of(mark, other_roots, root_before if part == 0 else b"")
            checksum = checksum_full(seed_base(stream_id, time_us), index, data, key, headers)
        written.append((stream_id, index, message_time_us, checksum, key, headers, data))
    session.execute_many(_WRITE, written)
