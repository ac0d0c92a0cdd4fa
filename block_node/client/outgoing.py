"""A block to be published. Its items can be read any number of times, in chunks that fit a message."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from block_node.blocks.errors import BlockFileError, BlockFormatError
from block_node.blocks.files import read_batches, read_items
from block_node.blocks.items import Item, read_header
from block_node.item_splitting import ItemBatch, split_items

CHUNK_BYTES = 512 * 1024
"""The largest chunk: far below a node's limit of unread bytes, and large compared with the rest of a message."""
HEADER_BYTES = 512
"""The bytes of a file that are read for the number of its block, more than a header has. The rest is read later."""


class OutgoingBlock:
    """A block to be published.

    size_bytes: the approximate size, which counts for the memory limit of the publisher.
    chunks: a function that produces the items of the block; every call begins with the first item.
    """

    def __init__(self, number: int, size_bytes: int, chunks: Callable[[], Iterable[ItemBatch]]) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.chunks = chunks

    @classmethod
    def from_items(cls, items: Sequence[Item]) -> OutgoingBlock:
        """Makes a block from items in memory. Raises BlockFormatError if the first item is not a header."""
        if not items:
            raise BlockFormatError("a block without items")
        number = read_header(items[0]).number
        return cls(number, sum(map(len, items)), lambda: split_items(items, CHUNK_BYTES))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> OutgoingBlock:
        """Makes a block from a `.blk`, `.blk.gz` or `.blk.zstd` file, which is read each time the block is sent. Raises
        BlockFileError if the file cannot be read or is not a block."""
        path = Path(path)
        try:
            number = read_header(next(read_items(path, batch_bytes=HEADER_BYTES))).number
        except BlockFormatError as error:
            raise BlockFileError(f"{path} does not begin with a block's header: {error}") from error
        except StopIteration:
            raise BlockFileError(f"{path} has no items") from None
        return cls(number, path.stat().st_size, lambda: read_batches(path, batch_bytes=CHUNK_BYTES))
