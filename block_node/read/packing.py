"""Compresses the items of a message to a subscriber with zstd (`PackedItems`), and decompresses them.

The compressed data is the BARE encoding of `list<data>`, as one zstd frame that states its uncompressed size.
"""

from __future__ import annotations

from typing import Final

import zstandard

import bare
from block_node.protocol_reading import PackedItems, SubscribedItems, SubscribeResponse, UnpackedResponse
from ockam.protocol import ProtocolError

LEVEL: Final = 1
"""The level of zstd. All levels compress blocks to about a sixth of their size, and level 1 takes the least time."""
UNPACKED_BYTES_MAX: Final = 4 * 1024 * 1024
"""The most unpacked bytes of one message. A node sends at most 1 MiB of items, and their lengths."""

# type Items list<data>
_encoder = bare.Encoder(list[bytes])
_decoder = bare.Decoder(list[bytes])


def packed(message: SubscribedItems) -> SubscribedItems | PackedItems:
    """Returns the message with its items compressed, or unchanged if compression does not make it smaller."""
    data = _encoder.encode(message.items)
    compressed = zstandard.ZstdCompressor(level=LEVEL).compress(data)
    if len(compressed) >= len(data):
        return message
    return PackedItems(
        message.request_id, message.sequence, message.block_number, message.verified, compressed, message.piece
    )


def unpacked(message: SubscribeResponse) -> UnpackedResponse:
    """Unpacks a `PackedItems`, and returns other messages unchanged. Raises ProtocolError for damaged or large data."""
    if not isinstance(message, PackedItems):
        return message
    try:
        size_bytes = zstandard.frame_content_size(message.packed)
        if not 0 <= size_bytes <= UNPACKED_BYTES_MAX:
            raise ProtocolError(f"packed items of {size_bytes} bytes; at most {UNPACKED_BYTES_MAX}")
        items = _decoder.decode(zstandard.ZstdDecompressor().decompress(message.packed))
    except (zstandard.ZstdError, bare.DecodeError) as error:
        raise ProtocolError(f"packed items that cannot be read: {error}") from error
    return SubscribedItems(
        message.request_id, message.sequence, message.block_number, message.verified, items, message.piece
    )
