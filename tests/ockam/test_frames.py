"""Goal: the reader, with all its shortcuts, reads exactly the messages that decoding each frame by itself gives.

Method: frames of many routes, cut at any places, compared with decoding each frame by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import Address, Route, local
from ockam.actors.message import HERE, Message
from ockam.errors import FrameTooLarge
from ockam.transport.frames import KNOWN_HEADER_BYTES_MAX, BadFrame, FrameReader, FrameWriter
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY

US = local("us")
few_routes = st.sampled_from([(local("stream"),), (local("stream2"), local("x")), (Address(1, b"h:1"),), ()])
messages = st.lists(st.tuples(few_routes, few_routes, st.binary(max_size=200)), max_size=30)


def framed(wire: Wire, onward_route: Route, return_route: Route, payload: bytes) -> bytes:
    body = wire.encode_routes(onward_route, return_route) + wire.encode_payload(payload)
    return len(body).to_bytes(wire.length_bytes, "big") + body


def plain(messages: list[tuple[Route, Route, bytes]]) -> list[tuple[Route, Route, bytes]]:
    return [(onward, (US, *back), payload) for onward, back, payload in messages if onward]


def read(reader: FrameReader, chunks: list[bytes]) -> list[tuple[Route, Route, bytes]]:
    found = [message for chunk in chunks for message in reader.feed(chunk)]
    return [(message.onward_route, message.return_route, message.payload) for message in found]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True) if end > start]


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(messages=messages, places=st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cuts_give_the_same_messages(
    wire: Wire, messages: list[tuple[Route, Route, bytes]], places: list[int]
) -> None:
    data = b"".join(framed(wire, *message) for message in messages)
    reader = FrameReader(wire, HERE, (US,))
    assert read(reader, cut(data, places)) == plain(messages)
    assert reader.waiting_bytes == 0


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
def test_byte_by_byte_whole_and_with_bytes_behind(wire: Wire) -> None:
    frame = framed(wire, (local("stream"),), (local("me"),), b"payload")
    for chunks in ([frame], [bytes((byte,)) for byte in frame], [frame + frame[:3], frame[3:]]):
        reader = FrameReader(wire, HERE)
        assert {payload for _, _, payload in read(reader, chunks)} == {b"payload"}


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(data=st.binary(max_size=300), places=st.lists(st.integers(0, 300), max_size=4))
def test_garbage_gives_the_same_messages_and_error_however_it_is_cut(
    wire: Wire, data: bytes, places: list[int]
) -> None:
    """The shortcut of remembered headers must not change what any bytes mean."""
    seen = framed(wire, (local("stream"),), (local("me"),), b"x")

    def outcome(chunks: list[bytes]) -> tuple[list[bytes], str]:
        reader, found = FrameReader(wire, HERE), []
        try:
            for chunk in chunks:
                found += [message.payload for message in reader.feed(chunk)]
        except BadFrame as error:
            return [*found, *(message.payload for message in error.messages)], error.kind
        return found, ""

    stream = seen + data
    assert outcome([stream]) == outcome(cut(stream, places)) == outcome([bytes((byte,)) for byte in stream])


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(
    payload_bytes=st.sampled_from([0, 1, 22, 23, 24, 127, 128, 254, 255, 256]),
    changes=st.lists(st.lists(st.tuples(st.integers(-12, 40), st.integers(0, 255)), max_size=2), max_size=8),
)
def test_frames_as_long_as_the_one_before_mean_what_they_mean_alone(
    wire: Wire, payload_bytes: int, changes: list[list[tuple[int, int]]]
) -> None:
    """Goal: the shortcut for frames of one size changes nothing. Method: a frame again and again, with some of its
    bytes changed at either end; read at once, and each by a reader of its own."""
    frame = framed(wire, (local("stream"),), (local("me"),), bytes(payload_bytes))
    frames = [frame, frame]
    for places in changes:
        changed = bytearray(frame)
        for place, byte in places:
            if wire.length_bytes <= place < len(frame) or -len(frame) + wire.length_bytes <= place < 0:
                changed[place] = byte
        frames.append(bytes(changed))

    def outcome(chunks: list[bytes], readers: list[FrameReader]) -> tuple[list[tuple[Route, Route, bytes]], str]:
        found: list[tuple[Route, Route, bytes]] = []
        try:
            for chunk, reader in zip(chunks, readers, strict=True):
                found += read(reader, [chunk])
        except BadFrame as error:
            found += [(each.onward_route, each.return_route, each.payload) for each in error.messages]
            return found, error.kind
        return found, ""

    alone = outcome(frames, [FrameReader(wire, HERE) for _ in frames])
    assert outcome([b"".join(frames)], [FrameReader(wire, HERE)]) == alone


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(
    payload_bytes=st.sampled_from([40_000, 60_000, 65_530, 65_534, 65_535, 65_536, 65_541, 100_000]),
    places=st.lists(st.integers(0, 210_000), min_size=1, max_size=4),
    change=st.none() | st.tuples(st.integers(-3, 60), st.integers(0, 255)),
)
def test_a_large_frame_in_parts_means_what_it_means_at_once(
    wire: Wire, payload_bytes: int, places: list[int], change: tuple[int, int] | None
) -> None:
    """Goal: a payload that is joined without its frame is that of the frame, and no other frame passes for a usual
    one. Method: two frames, of which the first has a byte changed at either end, cut anywhere, and not cut at all."""
    if wire is LEGACY:
        payload_bytes = min(payload_bytes, 60_000)
    frame = bytearray(framed(wire, (local("stream"),), (local("me"),), bytes(payload_bytes)))
    if change is not None:
        frame[change[0] if change[0] < 0 else wire.length_bytes + change[0]] = change[1]
    data = bytes(frame) + framed(wire, (local("stream"),), (local("me"),), b"x")

    def outcome(chunks: list[bytes]) -> tuple[list[tuple[Route, Route, bytes]], str]:
        reader = FrameReader(wire, HERE)
        found: list[tuple[Route, Route, bytes]] = []
        try:
            for chunk in chunks:
                found += read(reader, [chunk])
        except BadFrame as error:
            return [
                *found,
                *((each.onward_route, each.return_route, each.payload) for each in error.messages),
            ], error.kind
        return found, ""

    assert outcome(cut(data, places)) == outcome([data])


BEHIND = {
    "head": (b"\xf6", b"\xf6\xff", b"\x60", b"\x61t\xff", b""),
    "legacy": (b"", b"\x00", b"\x01\x00", b"\x01\x01t"),
}
"""What may stand behind a payload: nothing, a tracing context in one of its forms, the end of an array."""
KINDS = {"head": (0x84, 0x9F), "legacy": (1, 2, 3)}
"""First bytes of a body, each of which has another end; 3 is no version."""


class Shape(NamedTuple):
    """Of a frame. wide: the size of the payload in a longer form than need be. changed: which of the bytes at the
    edges of its parts is another one, and by how much."""

    onward_route: Route
    return_route: Route
    kind: int
    payload: bytes
    wide: bool
    behind: bytes
    changed: tuple[int, int] | None

    def frame(self, wire: Wire) -> bytes:
        routes = wire.encode_routes(self.onward_route, self.return_route)
        size = len(self.payload)
        head = wire.around_payload(size)[0]
        if self.wide:
            head = b"\x59" + size.to_bytes(2, "big") if wire is HEAD else bytes((size & 127 | 128, size >> 7))
        body = bytearray(bytes((self.kind,)) + routes[1:] + head + self.payload + self.behind)
        if self.changed is not None:
            edge, by = self.changed
            places = 0, 1, len(routes) - 1, len(routes), len(routes) + len(head) - 1, len(body) - 2, len(body) - 1
            place = places[edge] % len(body)
            body[place] = (body[place] + by) % 256
        return len(body).to_bytes(wire.length_bytes, "big") + bytes(body)


@st.composite
def nearly_equal_frames(draw: st.DrawFn, wire: Wire) -> list[bytes]:
    """Frames of one shape, twice or more, among some that differ from it in one or two ways."""
    ways: dict[str, st.SearchStrategy[Any]] = {
        "onward_route": st.sampled_from([(local("stream"),), (local("stretch"),), (local("a"), local("b")), ()]),
        "return_route": st.sampled_from([(local("me"),), (local("mf"),), (local("longer"),)]),
        "kind": st.sampled_from(KINDS[wire.name]),
        "payload": st.builds(
            lambda byte, count: bytes([byte]) * count,
            st.sampled_from([0, 0xF6, 0xFF]),
            st.sampled_from([0, 1, 2, 3, 23, 24, 100]),
        ),
        "wide": st.booleans(),
        "behind": st.sampled_from(BEHIND[wire.name]),
        "changed": st.tuples(st.integers(0, 6), st.sampled_from([1, 255]) | st.integers(1, 255)),
    }
    usual = Shape(**{**{name: draw(way) for name, way in ways.items()}, "changed": None, "wide": False})
    if draw(st.integers(0, 3)):
        usual = usual._replace(kind=KINDS[wire.name][0], behind=BEHIND[wire.name][0])
    frames = [usual, usual._replace(return_route=(local("mf"),)), usual, usual]
    for _ in range(draw(st.integers(1, 6))):
        names = draw(st.lists(st.sampled_from([*sorted(ways), "changed", "changed", "return_route"]), max_size=2))
        frames.append(usual._replace(**{name: draw(ways[name]) for name in names}))
    return [shape.frame(wire) for shape in frames]


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(data=st.data())
def test_frames_of_several_kinds_and_routes_mean_what_they_mean_alone(wire: Wire, data: st.DataObject) -> None:
    """Goal: no frame is read as the one before it was where anything but its payload differs: its first byte, its
    routes, its size, what stands around its payload. Method: frames of one shape, which teach the reader every
    shortcut, then some that are nearly like them; read at once, and each by a reader of its own."""
    frames = data.draw(nearly_equal_frames(wire))

    def alone(frame: bytes) -> list[tuple[Route, Route, bytes]]:
        return read(FrameReader(wire, HERE, (US,)), [frame])

    expected: list[tuple[Route, Route, bytes]] = []
    kind = ""
    for frame in frames:
        try:
            expected += alone(frame)
        except BadFrame as error:
            kind = error.kind
            break
    found: list[tuple[Route, Route, bytes]] = []
    found_kind = ""
    try:
        found = read(FrameReader(wire, HERE, (US,)), [b"".join(frames)])
    except BadFrame as error:
        found = [(each.onward_route, each.return_route, each.payload) for each in error.messages]
        found_kind = error.kind
    assert (found, found_kind) == (expected, kind)


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(payload=st.binary(max_size=70_000))
def test_what_stands_around_a_payload_depends_on_its_size_alone(wire: Wire, payload: bytes) -> None:
    head, tail = wire.around_payload(len(payload))
    assert head + payload + tail == wire.encode_payload(payload)


def test_more_headers_than_it_remembers_still_read_right() -> None:
    reader = FrameReader(LEGACY, HERE, (US,))
    sent: list[tuple[Route, Route, bytes]] = [
        ((local(f"stream{number}" + "x" * (number % 20)),), (local("me"),), b"p") for number in range(9_000)
    ]
    data = b"".join(framed(LEGACY, *message) for message in sent)
    assert read(reader, [data]) == plain(sent)
    assert read(reader, [data]) == plain(sent)


def test_heartbeats_and_empty_frames_are_passed_over() -> None:
    for wire in (HEAD, LEGACY):
        reader = FrameReader(wire, HERE)
        assert reader.feed(wire.heartbeat + bytes(wire.length_bytes) + wire.heartbeat) == []


def test_an_oversized_frame_is_refused_by_its_length_alone() -> None:
    reader = FrameReader(HEAD, HERE)
    with pytest.raises(BadFrame) as caught:
        reader.feed((HEAD.receive_bytes_max + 1).to_bytes(4, "big"))
    assert caught.value.kind == "oversized"


def test_the_good_messages_before_a_bad_frame_are_told() -> None:
    good = framed(HEAD, (local("stream"),), (), b"good")
    with pytest.raises(BadFrame) as caught:
        FrameReader(HEAD, HERE).feed(good + b"\x00\x00\x00\x01\x00")
    assert [message.payload for message in caught.value.messages] == [b"good"]


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(messages=messages)
def test_what_the_writer_writes_the_reader_reads(wire: Wire, messages: list[tuple[Route, Route, bytes]]) -> None:
    writer = FrameWriter(wire)
    outgoing = [Message((US, *onward), back, payload) for onward, back, payload in messages]
    count, frames = writer.encode(outgoing, lambda error: pytest.fail(str(error)))
    assert read(FrameReader(wire, HERE, (US,)), [frames]) == plain(messages)
    assert count == len(messages)


def test_a_message_too_large_for_the_framing_is_left_out_and_told() -> None:
    refused: list[FrameTooLarge] = []
    large, small = Message((US, local("a")), (), bytes(65_000)), Message((US, local("a")), (), b"small")
    count, frames = FrameWriter(LEGACY).encode([large, small], refused.append)
    assert count == len(refused) == 1
    assert frames.endswith(b"small")
    assert refused[0].bytes_max == 65_000


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
def test_headers_are_remembered_up_to_a_size_so_that_no_peer_can_fill_memory_with_them(wire: Wire) -> None:
    reader, writer = FrameReader(wire, HERE, (US,)), FrameWriter(wire)
    long = Address(0, bytes(KNOWN_HEADER_BYTES_MAX))
    sent: list[tuple[Route, Route, bytes]] = [
        ((local("stream"), local(f"{number}")), (long, local(f"{number}")), b"p") for number in range(20)
    ]
    sent.insert(10, ((local("stream"),), (local("me"),), b"p"))
    for _ in range(2):
        assert read(reader, [framed(wire, *message) for message in sent]) == plain(sent)
    writer.encode(
        [Message((US, *onward), back, b"p") for onward, back, _ in sent], lambda error: pytest.fail(str(error))
    )
    for kept in (reader, writer):
        assert 0 < kept.known_bytes < 10 * KNOWN_HEADER_BYTES_MAX


def test_a_first_frame_of_ff_bytes_is_no_message() -> None:
    """Before the first frame there is no header that a frame could begin with."""
    body = b"\xff" * 8 + HEAD.encode_payload(b"x")
    with pytest.raises(BadFrame):
        FrameReader(HEAD, HERE).feed(len(body).to_bytes(4, "big") + body)
