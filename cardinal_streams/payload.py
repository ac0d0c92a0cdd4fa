"""Whole blocks: `Payload` is the input of a producer, and `CompleteBatch` is the output of a consumer.

`parse_payloads` and `format_payloads`: blocks as JSON, in the format of the reference WebSocket feed and its test data.
Numbers have no fixed length:

{"number": "0x1", "weight": "0x7ff", "hash": "0x…", "parent": "0x…",
 "values": {"a/k": "0x01"}, "deletes": ["a/d"], "batches": {"s/": "0x…"}}"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from cardinal_streams.errors import PayloadTextError
from cardinal_streams.limits import HASH_BYTES, U64_MAX, WEIGHT_MAX


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A block as the application gives it to a producer (specification, "Message Payloads").

    `hash`, `parent`: 32 bytes each. `number`: from 0 to 2^63 - 1. `weight`: from 0 to 2^256 - 1.
    `updates`, `deletes`: the new value of each changed key, and the deleted keys.
    `sub_batches`: by path, the ids of 32 bytes of the parts of the block that are sent separately."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    updates: Mapping[str, bytes] = {}
    deletes: Collection[str] = ()
    sub_batches: Mapping[str, bytes] = {}


class CompleteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A complete block: all entries that the consumer wants have arrived. A key can be in `values` and `deletes`.

    `offsets`: by source (`topic:partition`), the lowest offset of a message of this block.
    `resumption`: by source, where to continue reading after this block: `offsets`, and for every other source the
    highest offset that had been read when the block's Batch message arrived.
    `size_bytes`: an estimate of the block's memory."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    values: dict[str, bytes]
    deletes: frozenset[str]
    offsets: dict[str, int] = {}
    resumption: dict[str, int] = {}
    size_bytes: int = 0


_NUMBER = re.compile("0x[0-9a-f]+")


class BatchText(msgspec.Struct, forbid_unknown_fields=True):
    number: str
    weight: str
    hash: str
    parent: str
    values: dict[str, str] = {}
    deletes: list[str] = []
    batches: dict[str, str] = {}


_READER = msgspec.json.Decoder(list[BatchText])


def parse_payloads(text: bytes) -> list[Payload]:
    """Reads a JSON list of blocks. Raises `PayloadTextError`."""
    try:
        batches = _READER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PayloadTextError(f"the text is no list of batches: {error}", "$") from error
    return [_payload_of(batch, f"$[{index}]") for index, batch in enumerate(batches)]


def format_payloads(payloads: Iterable[Payload]) -> bytes:
    """Writes a JSON list of blocks, in the format that `parse_payloads` reads."""
    return msgspec.json.encode([_text_of(payload) for payload in payloads])


def _payload_of(batch: BatchText, path: str) -> Payload:
    return Payload(
        hash=_hash(batch.hash, f"{path}.hash"),
        number=_number(batch.number, U64_MAX, f"{path}.number"),
        parent=_hash(batch.parent, f"{path}.parent"),
        weight=_number(batch.weight, WEIGHT_MAX, f"{path}.weight"),
        updates={key: _bytes(value, f"{path}.values[{key!r}]") for key, value in batch.values.items()},
        deletes=frozenset(batch.deletes),
        sub_batches={key: _hash(id_, f"{path}.batches[{key!r}]") for key, id_ in batch.batches.items()},
    )


def _text_of(payload: Payload) -> BatchText:
    return BatchText(
        number=hex(payload.number),
        weight=hex(payload.weight),
        hash=_hex(payload.hash),
        parent=_hex(payload.parent),
        values={key: _hex(value) for key, value in payload.updates.items()},
        deletes=sorted(payload.deletes),
        batches={key: _hex(id_) for key, id_ in payload.sub_batches.items()},
    )


def _number(text: str, limit: int, path: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise PayloadTextError(f"{text[:80]!r} is no hexadecimal number", path)
    number = int(text, 16)
    if number > limit:
        raise PayloadTextError(f"{text[:80]} is above {limit:#x}", path)
    return number


def _hash(text: str, path: str) -> bytes:
    raw = _bytes(text, path)
    if len(raw) != HASH_BYTES:
        raise PayloadTextError(f"{len(raw)} bytes instead of {HASH_BYTES}", path)
    return raw


def _bytes(text: str, path: str) -> bytes:
    digits = text.removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError as error:
        raise PayloadTextError(f"{text[:80]!r} is not hexadecimal", path) from error
    if text == digits or len(raw) * 2 != len(digits):
        raise PayloadTextError(f"{text[:80]!r} is not hexadecimal after 0x", path)
    return raw


def _hex(raw: bytes) -> str:
    return f"0x{raw.hex()}"
