"""Goal: the codec of `node/stream_mirror/1` makes and reads what docs/wire.md §5 says.

Method: its bytes are compared with those of the codec made from the BARE schema, and read by a decoder of forty lines
that is written from docs/wire.md alone; spoilt bytes are refused by both codecs, or read alike.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.protocol import ProtocolError
from stream_service.mirroring import (
    MIRROR,
    DamagedCopy,
    MirrorPage,
    MirrorStatus,
    SourceRole,
    StoredMessage,
    WireEntry,
    decode_mirror_page,
    encode_mirror_page,
    has_parted,
    message_crc,
    read_history,
)
from stream_storage.contract import Record
from stream_storage.history import HistoryEntry
from tests.service.machines.spoiling import spoil

times = st.sampled_from([0, 1, (1 << 63) - 1]) | st.integers(0, (1 << 63) - 1)
indexes = st.sampled_from([0, 1, 127, 128, 16_384, 1 << 62]) | st.integers(0, 1 << 62)
parts = st.none() | st.sampled_from([b"", b"k", bytes(128)]) | st.binary(max_size=40)
sizes = st.sampled_from([0, 1, 127, 128, 16_384]) | st.integers(0, 300)


@st.composite
def pages(
    draw: st.DrawFn,
) -> tuple[int, MirrorStatus, SourceRole, tuple[HistoryEntry, ...], int, int, int, list[Record]]:
    start, time_us = draw(indexes), draw(times)
    records: list[Record] = []
    for index in range(start, start + draw(st.sampled_from([0, 1, 2, 9]))):
        records.append((index, bytes(draw(sizes)), time_us, draw(parts), draw(parts)))
        time_us = draw(st.sampled_from([time_us] * 3 + [0, 7]))
    firsts = sorted(draw(st.lists(indexes, max_size=4)))
    history = tuple(HistoryEntry(draw(st.integers(1, (1 << 63) - 1)), first) for first in firsts)
    status = draw(st.sampled_from(MirrorStatus))
    return (
        draw(st.integers(0, 1 << 40)),
        status,
        draw(st.sampled_from(SourceRole)),
        history,
        draw(indexes),
        draw(indexes),
        start,
        records,
    )


def wire_history(history: Sequence[HistoryEntry]) -> list[WireEntry]:
    return [WireEntry(entry.entry_id, entry.first_index) for entry in history]


@given(pages())
def test_a_page_is_encoded_as_the_schema_says(page: Any) -> None:
    request_id, status, role, history, first_index, next_index, start, records = page
    payload = encode_mirror_page(*page)
    messages = [
        StoredMessage(time_us, message_crc(time_us, key, beside, data), key, beside, data)
        for _, data, time_us, key, beside in records
    ]
    numbers = (first_index, next_index, start)
    expected = MirrorPage(request_id, status, role, wire_history(history), *numbers, messages)
    assert payload == MIRROR.encode_response(expected)
    assert decode_mirror_page(payload) == (status, role, history, *numbers, records)


class Plain:
    """Reads BARE by the words of docs/wire.md: a number has seven bits in a byte, least significant first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def uint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def fixed(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> bytes:
        return self.take(self.uint())

    def maybe(self) -> bytes | None:
        return self.text() if self.take(1) == b"\1" else None


@given(pages())
def test_a_reader_made_from_the_document_finds_the_same(page: Any) -> None:
    request_id, status, role, history, first_index, next_index, start, records = page
    reader = Plain(encode_mirror_page(*page))
    assert reader.text() == b"node/stream_mirror/1"
    assert reader.uint() == len(reader.data) - reader.at
    assert [reader.uint(), reader.uint(), reader.uint()] == [request_id, status, role]
    found = [(reader.fixed("<Q"), reader.uint()) for _ in range(reader.uint())]
    assert found == [(entry.entry_id, entry.first_index) for entry in history]
    assert [reader.uint(), reader.uint(), reader.uint(), reader.uint()] == [
        first_index,
        next_index,
        start,
        len(records),
    ]
    for _, data, time_us, key, beside in records:
        assert reader.fixed("<Q") == time_us
        crc = reader.fixed("<I")
        assert [reader.maybe(), reader.maybe(), reader.text()] == [key, beside, data]
        whole = time_us.to_bytes(8, "little")
        for part in (key, beside):
            whole += b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "little") + part
        assert crc == crc32(whole + data)
    assert reader.at == len(reader.data)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    return spoil(draw, encode_mirror_page(*draw(pages())), 120)


@given(spoilt())
def test_spoilt_pages_are_refused_or_read_as_the_schema_says(payload: bytes) -> None:
    try:
        found = decode_mirror_page(payload)
    except ProtocolError:
        return
    expected = MIRROR.decode_response(payload)
    assert found.history == read_history(expected.history)
    assert (found.status, found.role, found.first_index, found.next_index, found.start) == (
        *(expected.status, expected.role, expected.first_index, expected.next_index, expected.start),
    )
    for record, message in zip(found.records, expected.messages, strict=True):
        assert record[1:] == (message.data, message.time_us, message.key, message.beside)
        assert message.crc == message_crc(message.time_us, message.key, message.beside, message.data)


@pytest.mark.parametrize("at", range(-40, 0))
def test_no_changed_bit_of_a_message_passes(at: int) -> None:
    records: list[Record] = [(7, b"data" * 5, 1_700_000_000_000_000, b"key", b"beside")]
    payload = bytearray(
        encode_mirror_page(1, MirrorStatus.OK, SourceRole.PRIMARY, (HistoryEntry(1, 0),), 7, 8, 7, records)
    )
    for bit in range(8):
        payload[at] ^= 1 << bit
        with pytest.raises(ProtocolError):
            decode_mirror_page(bytes(payload))
        payload[at] ^= 1 << bit
    assert decode_mirror_page(bytes(payload)).records == records


def test_a_changed_message_is_named() -> None:
    records: list[Record] = [(7, b"a", 1, None, None), (8, b"b", 1, None, None)]
    payload = encode_mirror_page(1, MirrorStatus.OK, SourceRole.PRIMARY, (), 7, 9, 7, records)
    with pytest.raises(DamagedCopy, match="index 8"):
        decode_mirror_page(payload[:-1] + b"c")


A, B = HistoryEntry(1, 0), HistoryEntry(2, 10)


@pytest.mark.parametrize(
    ("next_index", "is_mirror", "entry_id", "start", "parted"),
    [
        (20, False, 0, 0, False),
        (20, False, 1, 10, False),
        (20, False, 1, 11, True),
        (20, False, 2, 15, False),
        (20, False, 2, 20, False),
        (20, False, 2, 21, True),
        (20, True, 2, 21, False),
        (20, False, 3, 5, True),
        (20, True, 3, 0, True),
    ],
)
def test_a_source_knows_a_mirror_that_has_other_messages(
    next_index: int, is_mirror: bool, entry_id: int, start: int, parted: bool
) -> None:
    assert has_parted((A, B), next_index, is_mirror, entry_id, start) is parted


@pytest.mark.parametrize("entries", [[(0, 0)], [(1 << 63, 0)], [(1, 5), (2, 4)], [(1, (1 << 62) + 1)]])
def test_what_is_no_history_is_refused(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ProtocolError):
        read_history(wire_history([HistoryEntry(*entry) for entry in entries]))
