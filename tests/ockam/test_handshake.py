"""Goal: a hello is answered at once, however it comes, and nothing else is answered or taken for one.

Method: captured openings of real clients, whole and in pieces; a legacy frame torn behind its first byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ockam.address import local
from ockam.errors import RemoteProtocolError
from ockam.handshake import Opening
from ockam.wire import Wire
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY

VECTORS = Path(__file__).parents[1] / "vectors" / "ockam"
WIRES: dict[str, Wire] = {"head_calls": HEAD, "head_client": HEAD, "legacy_calls": LEGACY, "legacy_client": LEGACY}


def first_frame(name: str) -> bytes:
    frame = json.loads((VECTORS / f"{name}.json").read_text())["frames"][0]
    return bytes.fromhex(frame["length_prefix"] + frame["frame"])


def feed(chunks: list[bytes]) -> tuple[Opening, list[bytes]]:
    """The opening after all chunks that it needed, and what it answered to each."""
    opening, answers = Opening(), list[bytes]()
    for chunk in chunks:
        if opening.wire is None:
            answers.append(opening.feed(chunk))
    return opening, answers


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("pieces", ["whole", "hello-alone", "byte-by-byte"])
def test_captured_openings_in_any_pieces(name: str, pieces: str) -> None:
    wire = WIRES[name]
    sent = wire.hello + first_frame(name)
    cut = len(sent) if pieces == "whole" else len(wire.hello) or 2
    chunks = [bytes((byte,)) for byte in sent] if pieces == "byte-by-byte" else [sent[:cut], sent[cut:]]
    opening, answers = feed(chunks)
    assert opening.wire is wire
    assert sent.startswith(opening.first)
    # Once, and to the very first piece.
    assert answers[0] == wire.hello
    assert not any(answers[1:])


def test_a_lone_hello_is_answered_and_begins_no_frame() -> None:
    opening = Opening()
    assert not opening.frame_begun
    assert opening.feed(b"\x01") == b"\x01"
    assert opening.wire is None
    assert not opening.frame_begun
    assert opening.feed(b"\x00") == b""
    assert opening.frame_begun


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
        opening, answers = feed(chunks)
        assert opening.wire is LEGACY
        assert not any(answers)
        return
    for rest in (chunks[1:], [bytes((byte,)) for byte in chunks[1]]):
        with pytest.raises(RemoteProtocolError) as caught:
            feed([chunks[0], *rest])
        assert caught.value.kind == "torn_header"
