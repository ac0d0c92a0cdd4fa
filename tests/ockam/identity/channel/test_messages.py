"""Goal: plaintexts carry any routes and payloads, and one that cannot be decoded costs only itself.

Method: random messages there and back; the bytes compared with the head framing, which has the same parts.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import Address, Route, local
from ockam.actors.message import HERE, Message
from ockam.identity.channel.messages import (
    AROUND_BYTES_MAX,
    CLOSE,
    PAYLOAD_HEAD,
    PLAINTEXT,
    PlaintextReader,
    PlaintextWriter,
)
from ockam.identity.channel.transport import OVERHEAD_BYTES
from ockam.transport.wire_head import HEAD

OUTER = local("outer")
ADDRESSES = st.builds(Address, st.integers(0, 255), st.binary(max_size=300))
ROUTES = st.lists(ADDRESSES, max_size=4).map(tuple)


def written(*messages: tuple[Route, Route, bytes]) -> list[bytes]:
    through = [Message((OUTER, *onward), returning, payload) for onward, returning, payload in messages]
    found, too_large = PlaintextWriter().write(through)
    assert not too_large
    return found


@given(st.lists(st.tuples(ROUTES, ROUTES, st.binary(max_size=300)), max_size=6))
def test_there_and_back(messages: list[tuple[Route, Route, bytes]]) -> None:
    plaintexts = written(*messages)
    for plaintext, (onward, returning, payload) in zip(plaintexts, messages, strict=True):
        # The same parts as a frame of the head framing, between another beginning and another end.
        frame = HEAD.encode_routes(onward, returning) + HEAD.encode_payload(payload)
        assert plaintext == PAYLOAD_HEAD + frame[1:-1] + b"\x40"
    read, bad, _ = PlaintextReader(HERE, OUTER).read(plaintexts)
    assert bad == 0
    # A message without an onward route has no receiver.
    assert [(each.onward_route, each.return_route, each.payload) for each in read] == [
        (onward, (OUTER, *returning), payload) for onward, returning, payload in messages if onward
    ]


@pytest.mark.parametrize("padding", [b"\x41\x00", b"\x58\x20" + bytes(32), b"\x40"])
def test_padding_is_accepted(padding: bytes) -> None:
    (plaintext,) = written(((local("a"),), (), b"payload"))
    (message,), bad, _ = PlaintextReader(HERE, OUTER).read([plaintext[:-1] + padding])
    assert (message.payload, bad) == (b"payload", 0)


@pytest.mark.parametrize("tail", [b"", b"\x41", b"\x40\x00", b"\xf6", b"\x60"])
def test_a_wrong_end_costs_only_its_message(tail: bytes) -> None:
    """Three messages before and after are read, also while the reader has learned how such messages look."""
    good = written(*[((local("a"),), (local("b"),), b"payload %d" % number) for number in range(6)])
    reader = PlaintextReader(HERE, OUTER)
    read, bad, _ = reader.read([*good[:3], good[0][:-1] + tail, *good[3:]])
    assert ([each.payload for each in read], bad) == ([b"payload %d" % number for number in range(6)], 1)
    assert len(reader.read(good)[0]) == 6


def test_a_plaintext_cannot_reach_into_the_next() -> None:
    """A length that points behind the end of its own plaintext is a fault, also if another plaintext follows."""
    short, long = written(((local("a"),), (), b"x"), ((local("a"),), (), b"y" * 200))
    cut = long[:20]
    read, bad, _ = PlaintextReader(HERE, None).read([cut, short, short])
    assert ([each.payload for each in read], bad) == ([b"x", b"x"], 1)


def test_the_largest_message_fits_its_frame() -> None:
    payload = bytes(PLAINTEXT.send_bytes_max - 40)
    (plaintext,) = written(((local("a"),), (local("b"),), payload))
    sealed_bytes = len(plaintext) + OVERHEAD_BYTES
    header = HEAD.encode_routes((local("inner address 16"),), ())
    assert len(header) + sum(map(len, HEAD.around_payload(sealed_bytes))) + sealed_bytes <= HEAD.send_bytes_max
    assert AROUND_BYTES_MAX > OVERHEAD_BYTES
    too_large = Message((OUTER, local("a")), (), bytes(PLAINTEXT.send_bytes_max))
    # It costs only itself.
    small = Message((OUTER, local("a")), (), b"small")
    found, count = PlaintextWriter().write([small, too_large, small])
    assert (found, count) == (written(((local("a"),), (), b"small")) * 2, 1)


SHAPES = written(
    ((local("a"),), (local("b"),), b"12345678"),
    ((local("a"),), (local("b"),), b"abcdefgh"),
    ((local("a"),), (local("b"),), b"1234567"),
    ((local("c"),), (local("b"),), b"12345678"),
    ((local("a"),), (), b"12345678"),
    ((), (local("b"),), b"12345678"),
)
LOOK_ALIKES = [
    # A payload that is one byte shorter, with one byte of padding: as long as the first shape.
    SHAPES[2][:-1] + b"\x41\x00",
    # The same size and beginning as the first shape, with another last byte, or another size of the payload.
    SHAPES[0][:-1] + b"\x41",
    SHAPES[0].replace(b"\x4812345678", b"\x4912345678"),
    SHAPES[0].replace(b"\x4812345678", b"\x4712345678"),
    PAYLOAD_HEAD,
]


@given(st.lists(st.lists(st.sampled_from(SHAPES + LOOK_ALIKES), max_size=12), max_size=4))
def test_runs_are_read_as_single_plaintexts(runs: list[list[bytes]]) -> None:
    """A reader that remembers earlier plaintexts reads the same messages as a new reader for each plaintext."""
    reader = PlaintextReader(HERE, OUTER)
    for run in runs:
        singly = [PlaintextReader(HERE, OUTER).read([plaintext]) for plaintext in run]
        messages, bad, end = reader.read(run)
        assert [(each.onward_route, each.return_route, each.payload) for each in messages] == [
            (each.onward_route, each.return_route, each.payload) for found, _, _ in singly for each in found
        ]
        assert (bad, end) == (sum(wrong for _, wrong, _ in singly), len(run))


def test_reading_stops_at_what_is_no_payload() -> None:
    """The position after the Payloads is returned, and reading continues behind it."""
    first, second = SHAPES[:2]
    run = [first, first, CLOSE, CLOSE, second, b"", second]
    reader = PlaintextReader(HERE, OUTER)
    for _ in range(2):
        ends = [reader.read(run, at)[2] for at in (0, 2, 3, 4, 5, 6, 7)]
        assert ends == [2, 2, 3, 5, 5, 7, 7]
        assert [each.payload for each in reader.read(run, 4)[0]] == [b"abcdefgh"]


def test_what_a_reader_remembers_is_counted_and_can_be_forgotten() -> None:
    reader = PlaintextReader(HERE, OUTER)
    reader.read(SHAPES[:2])
    remembered = reader.known_bytes
    assert remembered > len(SHAPES[0])
    reader.forget()
    assert reader.known_bytes == 0
    assert [each.payload for each in reader.read(SHAPES[:2])[0]] == [b"12345678", b"abcdefgh"]
    assert reader.known_bytes == remembered
    # Long routes are not remembered.
    (long,) = written(((local(bytes(1_000)),), (), b"x"))
    fresh = PlaintextReader(HERE, OUTER)
    fresh.read([long, long])
    assert fresh.known_bytes == 0
