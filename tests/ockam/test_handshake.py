"""Goal: the framings are told apart by a peer's first bytes, and a hello is answered at once, however it comes.

Method: first bytes of real clients, captured, whole and in pieces; constructed ones; a legacy frame torn behind its
first byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ockam.actors.address import local
from ockam.errors import RemoteProtocolError
from ockam.transport.handshake import DECIDING_BYTES, FramingDetector, maybe_wire
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY

VECTORS = Path(__file__).parents[1] / "vectors" / "ockam"
WIRES: dict[str, Wire] = {"head_calls": HEAD, "head_client": HEAD, "legacy_calls": LEGACY, "legacy_client": LEGACY}


def first_frame(name: str) -> bytes:
    frame = json.loads((VECTORS / f"{name}.json").read_text())["frames"][0]
    return bytes.fromhex(frame["length_prefix"] + frame["frame"])


def feed(chunks: list[bytes]) -> tuple[FramingDetector, list[bytes]]:
    """The detector after all chunks that it needed, and what it answered to each."""
    detector, answers = FramingDetector(), list[bytes]()
    for chunk in chunks:
        if detector.wire is None:
            answers.append(detector.feed(chunk))
    return detector, answers


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("pieces", ["whole", "hello-alone", "byte-by-byte"])
def test_captured_openings_in_any_pieces(name: str, pieces: str) -> None:
    wire = WIRES[name]
    sent = wire.hello + first_frame(name)
    cut = len(sent) if pieces == "whole" else len(wire.hello) or 2
    chunks = [bytes((byte,)) for byte in sent] if pieces == "byte-by-byte" else [sent[:cut], sent[cut:]]
    detector, answers = feed(chunks)
    assert detector.wire is wire
    assert sent.startswith(detector.received)
    # Once, and to the very first piece.
    assert answers[0] == wire.hello
    assert not any(answers[1:])


def test_a_lone_hello_is_answered_and_begins_no_frame() -> None:
    detector = FramingDetector()
    assert not detector.frame_begun
    assert detector.feed(b"\x01") == b"\x01"
    assert detector.wire is None
    assert not detector.frame_begun
    assert detector.feed(b"\x00") == b""
    assert detector.frame_begun


@pytest.mark.parametrize("size", [256, 257, 300, 511])
@pytest.mark.parametrize("torn_at", [1, 2, 3, 5])
def test_a_torn_legacy_frame_is_refused_where_it_was_answered_and_else_read_as_what_it_is(
    size: int, torn_at: int
) -> None:
    """Its first byte alone looks like a hello; nothing behind it may be read as a head frame."""
    routes = LEGACY.encode_routes((local("stream"),), (local("me"),))
    body = routes + LEGACY.encode_payload(bytes(size - len(routes) - 2))
    assert len(body) == size
    frame = size.to_bytes(2, "big") + body
    chunks = [frame[:torn_at], frame[torn_at:]]
    if torn_at > 1:
        detector, answers = feed(chunks)
        assert detector.wire is LEGACY
        assert not any(answers)
        return
    for rest in (chunks[1:], [bytes((byte,)) for byte in chunks[1]]):
        with pytest.raises(RemoteProtocolError) as caught:
            feed([chunks[0], *rest])
        assert caught.value.kind == "torn_header"


def opening(name: str, number: int) -> bytes:
    frame = json.loads((VECTORS / f"{name}.json").read_text())["frames"][number]
    return bytes.fromhex(frame["length_prefix"] + frame["frame"])


@pytest.mark.parametrize("name", ["legacy_calls", "legacy_client"])
def test_captured_legacy_openings(name: str) -> None:
    assert maybe_wire(opening(name, 0)) is LEGACY


@pytest.mark.parametrize("name", ["head_calls", "head_client"])
def test_captured_head_openings(name: str) -> None:
    assert maybe_wire(HEAD.hello + opening(name, 0)) is HEAD


@pytest.mark.parametrize("payload_bytes", [0, 200, 300, 470, 70_000, 130_000, 1_000_000])
def test_every_size_of_first_frame_is_told_apart(payload_bytes: int) -> None:
    """Sizes of 256..511 bytes (legacy) and of 64 to 192 KiB (head) have the same first and third byte."""
    for wire in (HEAD, LEGACY):
        body = wire.encode_routes((local("stream"),), (local("me"),)) + wire.encode_payload(bytes(payload_bytes))
        if len(body) > wire.receive_bytes_max:
            continue
        first = wire.hello + len(body).to_bytes(wire.length_bytes, "big") + body
        assert maybe_wire(first[: max(DECIDING_BYTES, 3)]) is wire


@pytest.mark.parametrize("hop_bytes", [131, 132, 159, 160])
@pytest.mark.parametrize("size", [256, 257])
def test_a_legacy_frame_with_a_long_first_hop_is_no_head_frame(hop_bytes: int, size: int) -> None:
    """The size of such a hop can begin with the byte that begins a head message."""
    routes = LEGACY.encode_routes((local(bytes(hop_bytes)),), ())
    for payload_bytes in range(size):
        body = routes + LEGACY.encode_payload(bytes(payload_bytes))
        if len(body) == size:
            assert maybe_wire(size.to_bytes(2, "big") + body) is LEGACY
            return
    pytest.fail("no payload makes a frame of that size")


def test_needs_more_bytes_is_a_value() -> None:
    assert maybe_wire(b"") is None
    assert maybe_wire(b"\x01") is None
    assert maybe_wire(b"\x01\x00") is None


def test_once_decided_more_bytes_do_not_change_it() -> None:
    for first in (HEAD.hello + opening("head_client", 0), opening("legacy_client", 0), bytes.fromhex("01000100018401")):
        decided = None
        for size in range(len(first) + 1):
            found = maybe_wire(first[:size])
            assert decided is None or found is decided
            decided = found
        assert decided is not None
