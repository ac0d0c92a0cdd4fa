"""Decodes blocks of the block node from stored messages. This module does no I/O."""

from __future__ import annotations

from collections import Counter
from typing import Any

from spark_export.decode.block import find_mark, find_root_before, read_block

STREAM_PREFIX = "block_node."


def decode_part(headers: Any) -> tuple[Any, ...] | None:
    """Decodes the headers of a message; None if it is not part of a block.

    Returns the number of the block, the number of this message in it, the numbers of its messages and items, its size
    in bytes, its root hash as stored, and the right root hash of the previous block if that was stored with a wrong
    one.
    """
    mark = find_mark(headers)
    if mark is None:
        return None
    root_before = find_root_before(headers)
    return (mark.number, mark.part, mark.parts, mark.items, mark.size_bytes, mark.root, root_before)


def decode_block(data: bytes) -> tuple[Any, ...] | None:
    """Decodes the bytes of a whole block; None if they are not a block.

    Returns the version and the time (microseconds since 1970) in the header, the previous root hash in the footer, the
    number of items by kind, and the position, kind and size in bytes of each item.
    """
    from block_node.blocks.errors import BlockFormatError

    try:
        block = read_block(data)
    except BlockFormatError:
        return None
    kinds = Counter(kind for kind, _ in block.items)
    sizes = [(position, kind, len(item)) for position, (kind, item) in enumerate(block.items)]
    return (block.hapi_version, block.time_us, block.previous_root, dict(kinds), sizes)
