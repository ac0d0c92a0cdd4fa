"""Reads and writes the messages of the block services. Block items stay bytes, and are found by their lengths.

A message is a dictionary from the names in `proto/block_node.proto` to values: a number, bytes, a text, another
dictionary, or a list. A field with its default value is absent, unless it is in a `oneof`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import BLOCK_ITEM_TAG
from block_node.blocks.protobuf import BYTES, VARINT, bytes_field, number_field, read_fields, read_varint, varint
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.schema import SCALARS, Declaration, ProtoFile, WireField, load_proto
from block_node.persist.schema import NUMBER_MAX
from block_node.protocol import Piece

BLOCK_NODE: Final = load_proto("block_node.proto")
HEALTH: Final = load_proto("health.proto")
REFLECTION: Final = load_proto("reflection.proto")
REFLECTION_ALPHA: Final = load_proto("reflection.proto", "grpc.reflection.v1alpha")

NO_BLOCK: Final = 2**64 - 1
"""The number that stands for "no block", "any block" or "no end"; the message decides which."""

WireMessage: TypeAlias = dict[str, Any]


class MessageFormatError(CallRefused):
    """The error of bytes that are not the expected message. A handler that raises it refuses its call."""

    def __init__(self, text: str) -> None:
        super().__init__(GrpcStatus.INVALID_ARGUMENT, text)

    def __str__(self) -> str:
        return self.text


def read_message(name: str, data: bytes | memoryview, file: ProtoFile = BLOCK_NODE) -> WireMessage:
    """Returns the known fields of a message. Raises MessageFormatError."""
    found: WireMessage = {}
    owner = file.message(name)
    fields = owner.fields
    try:
        for number, wire, value in read_fields(data):
            field = fields.get(number)
            # A field that is not known may come from a newer peer.
            if field is None:
                continue
            read = _read_value(file, owner, field, wire, value)
            if field.is_repeated:
                found.setdefault(field.name, []).append(read)
                continue
            if field.oneof is not None:
                # Of the fields of one `oneof`, only the last one counts.
                for other in fields.values():
                    if other.oneof == field.oneof:
                        found.pop(other.name, None)
            found[field.name] = read
    except BlockFormatError as error:
        raise MessageFormatError(f"{name}: {error}") from error
    return found


def _read_value(file: ProtoFile, owner: Declaration, field: WireField, wire: int, value: int | memoryview) -> Any:
    is_long = field.kind in ("string", "bytes") or (
        field.kind not in SCALARS and file.find_type(owner, field.kind).what == "message"
    )
    if wire != (BYTES if is_long else VARINT):
        raise MessageFormatError(f"{owner.name}: {field.name} has the wire type {wire}")
    if isinstance(value, int):
        return bool(value) if field.kind == "bool" else value
    if field.kind == "bytes":
        return bytes(value)
    if field.kind == "string":
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise MessageFormatError(f"{owner.name}: {field.name} is not UTF-8") from error
    return read_message(field.kind, value, file)


def write_message(name: str, message: Mapping[str, Any], file: ProtoFile = BLOCK_NODE) -> bytes:
    owner = file.message(name)
    parts = []
    known = {field.name for field in owner.fields.values()}
    assert message.keys() <= known, f"{name} has no {message.keys() - known}"
    for field in owner.fields.values():
        value = message.get(field.name)
        if value is None:
            continue
        if field.is_repeated:
            parts += [_write_value(file, field, each) for each in value]
        elif value or field.oneof is not None or isinstance(value, dict):
            parts.append(_write_value(file, field, value))
    return b"".join(parts)


def _write_value(file: ProtoFile, field: WireField, value: Any) -> bytes:
    if isinstance(value, int):
        return number_field(field.number, value) or varint(field.number << 3) + b"\0"
    if isinstance(value, str):
        return bytes_field(field.number, value.encode())
    if isinstance(value, bytes):
        return bytes_field(field.number, value)
    return bytes_field(field.number, write_message(field.kind, value, file))


# Publishing.


PUBLISHED_SET, SUBSCRIBED_SET = 0x0A, 0x12
"""The first byte of a `PublishStreamRequest`, and of a `SubscribeStreamResponse`, that begins with a set of items."""


def find_set(message: bytes, tag: int) -> ItemSet | None:
    """Returns the items of a message that has only a set of items; None for any other message. tag: PUBLISHED_SET or
    SUBSCRIBED_SET. Raises MessageFormatError."""
    if not message or message[0] != tag:
        return None
    try:
        size_bytes, start = read_varint(message, 1)
    except BlockFormatError as error:
        raise MessageFormatError(f"a set of items: {error}") from error
    return ItemSet(message, start) if start + size_bytes == len(message) else None


class ItemSet:
    """The items of a serialized `BlockItemSet` or `Block`, which is `data` from `start` on. There can be a million
    items, or one item of 100 MB, so they are taken a part at a time.

    Invariant: while an item is taken in pieces, `_item_end` is the end of this item; else None."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data = data
        self._start = self._at = start
        self._item_end: int | None = None

    @property
    def left_bytes(self) -> int:
        return len(self.data) - self._at

    @property
    def is_begun(self) -> bool:
        return self._at > self._start

    def take(self, items_max: int, bytes_max: int) -> tuple[list[bytes], Piece]:
        """Returns the next items, and whether they are whole. There are at most `items_max` items, and no further item
        follows when all together have `bytes_max` bytes. An item above `bytes_max` comes alone, one piece of
        `bytes_max` bytes in each call. Raises MessageFormatError.

        Each item is a copy: a view would keep the whole message in memory for the sake of one small item."""
        if self._item_end is not None:
            return self._take_piece(self._item_end, bytes_max)
        items: list[bytes] = []
        data, at, end = self.data, self._at, len(self.data)
        stop = min(end, at + bytes_max)
        add = items.append
        try:
            while at < stop and len(items) < items_max:
                # An item has at least two bytes, so the items up to `pass_end` cannot be too many.
                pass_end = min(stop, at + 2 * (items_max - len(items)))
                while at < pass_end:
                    if data[at] != BLOCK_ITEM_TAG:
                        raise MessageFormatError(f"a set of items has something else than an item at byte {at}")
                    # Nearly all lengths have one or two bytes.
                    size_bytes, begins = data[at + 1], at + 2
                    if size_bytes > 0x7F:
                        second = data[begins]
                        if second < 0x80:
                            size_bytes += (second << 7) - 0x80
                            begins += 1
                        else:
                            size_bytes, begins = read_varint(data, at + 1)
                        if bytes_max < size_bytes <= end - begins:
                            if items:
                                stop = at
                                break
                            self._at = begins
                            return self._take_piece(begins + size_bytes, bytes_max)
                    at = begins + size_bytes
                    add(data[begins:at])
        except (IndexError, BlockFormatError) as error:
            raise MessageFormatError("a set of items is cut short") from error
        if at > end:
            raise MessageFormatError("a set of items is cut short")
        self._at = at
        return items, Piece.WHOLE

    def _take_piece(self, item_end: int, bytes_max: int) -> tuple[list[bytes], Piece]:
        at, begins = self._at, self._item_end is None
        self._at = min(item_end, at + bytes_max)
        is_last = self._at == item_end
        self._item_end = None if is_last else item_end
        return [self.data[at : self._at]], Piece.FIRST if begins else Piece.LAST if is_last else Piece.MIDDLE


def known_block(number: int) -> int | None:
    """Returns the block that a received number names; None if it names no block, or a block that cannot exist."""
    return number if number <= NUMBER_MAX else None


def block_or_none(number: int | None) -> int:
    return NO_BLOCK if number is None else number


# Readers.


def items_prefix(size_bytes: int) -> bytes:
    """Returns the bytes before `size_bytes` bytes of items in a `SubscribeStreamResponse`."""
    return bytes((SUBSCRIBED_SET,)) + varint(size_bytes)


def block_prefix(status: int, size_bytes: int) -> bytes:
    """Returns the bytes before the `size_bytes` bytes of a block in a `BlockResponse`."""
    return number_field(1, status) + b"\x12" + varint(size_bytes)
