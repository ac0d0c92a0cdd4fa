"""Goal: the block protocols' messages are what docs/wire.md says, both ways.

Method: every message through its codec and back; a few spelt out byte by byte.
"""

from __future__ import annotations

from typing import Any

import pytest

from block_node import protocol as p
from block_node import protocol_reading as r
from ockam.protocol import Protocol, ProtocolError

REQUESTS: list[tuple[Protocol[Any, Any], Any]] = [
    (p.PUBLISH, p.OpenSession(b"token")),
    (p.PUBLISH, p.OpenRootSession(b"token")),
    (p.PUBLISH, p.BlockItems(0, [b"header", b""])),
    (p.PUBLISH, p.BlockItems(1, [b"beginning of an item"], p.Piece.FIRST)),
    (p.PUBLISH, p.EndOfBlock(2, 2**64 - 1)),
    (p.PUBLISH, p.EndStream(3, p.PublisherEndCode.TOO_FAR_BEHIND, 5, 9)),
    (p.PUBLISH, p.EndStream(3, p.PublisherEndCode.RESET)),
    (r.SUBSCRIBE, r.Subscribe(1, None, 7, False, 1 << 20)),
    (r.SUBSCRIBE, r.SubscribePacked(r.Subscribe(1, None, 7, False, 1 << 20))),
    (r.SUBSCRIBE, r.Received(1, 100)),
    (r.SUBSCRIBE, r.Unsubscribe(1)),
    (r.GET, r.GetBlock(1, 5, False, 0)),
    (r.GET, r.GetBlock(1, None, True, 0)),
    (r.STATUS, r.StatusRequest(1, True)),
]
RESPONSES: list[tuple[Protocol[Any, Any], Any]] = [
    (p.PUBLISH, p.SessionOpened(b"token", None, 0)),
    (p.PUBLISH, p.Acknowledgement(0)),
    (p.PUBLISH, p.RootAcknowledgement(7, [p.DurableBlock(7, bytes(48), True)])),
    (p.PUBLISH, p.DuplicateBlock(3, 7)),
    (p.PUBLISH, p.Behind(9, None, 0)),
    (p.PUBLISH, p.SkipBlock(9)),
    (p.PUBLISH, p.ResendBlock(9)),
    (p.PUBLISH, p.StreamEnded(p.PublishStatus.BAD_BLOCK_PROOF, 3, 4, "no")),
    (r.SUBSCRIBE, r.Subscribed(1, None)),
    (r.SUBSCRIBE, r.Subscribed(1, 7)),
    (r.SUBSCRIBE, r.SubscribedItems(1, 0, 7, True, [b"item"], p.Piece.LAST)),
    (r.SUBSCRIBE, r.PackedItems(1, 0, 7, True, b"frame", p.Piece.LAST)),
    (r.SUBSCRIBE, r.SubscribedBlockEnd(1, 1, 7, bytes(48))),
    (r.SUBSCRIBE, r.SubscribedBlockWithdrawn(1, 2, 8)),
    (r.SUBSCRIBE, r.SubscriptionEnded(1, 3, r.SubscribeStatus.SOURCE_ERROR, "gone")),
    (r.GET, r.BlockPart(1, r.GetStatus.SUCCESS, 5, 3, 0, bytes(48), b"abc")),
    (r.STATUS, r.StatusResponse(1, None, None, True, 0, None)),
    (
        r.STATUS,
        r.StatusResponse(
            1, 0, 9, True, 10, r.StatusDetail("0.1", [r.PluginVersion("p", "1")], [r.BlockRange(0, 9)], [], b"book")
        ),
    ),
]


@pytest.mark.parametrize(("protocol", "message"), REQUESTS)
def test_requests_come_back_as_they_were(protocol: Protocol[Any, Any], message: Any) -> None:
    assert protocol.decode_request(protocol.encode_request(message)) == message


@pytest.mark.parametrize(("protocol", "message"), RESPONSES)
def test_responses_come_back_as_they_were(protocol: Protocol[Any, Any], message: Any) -> None:
    assert protocol.decode_response(protocol.encode_response(message)) == message


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (p.PUBLISH.encode_request(p.OpenSession(b"ab")), b"\x04\x00\x02ab"),
        (p.PUBLISH.encode_request(p.BlockItems(3, [b"\x0a\x00"])), b"\x07\x01\x03\x01\x02\x0a\x00\x00"),
        (p.PUBLISH.encode_request(p.EndOfBlock(4, 5)), b"\x0a\x02\x04\x05" + bytes(7)),
        (p.PUBLISH.encode_request(p.EndStream(5, p.PublisherEndCode.RESET)), b"\x05\x03\x05\x01\x00\x00"),
        (p.PUBLISH.encode_request(p.OpenRootSession(b"ab")), b"\x04\x04\x02ab"),
        (
            p.PUBLISH.encode_response(p.RootAcknowledgement(5, [p.DurableBlock(5, b"r", True)])),
            b"\x15\x07\x05" + bytes(7) + b"\x01\x05" + bytes(7) + b"\x01r\x01",
        ),
        (p.PUBLISH.encode_response(p.Acknowledgement(5)), b"\x09\x01\x05" + bytes(7)),
        (
            p.PUBLISH.encode_response(p.StreamEnded(p.PublishStatus.TIMEOUT, None, 2, "")),
            b"\x0d\x06\x04\x00\x01\x02" + bytes(7) + b"\x00",
        ),
    ],
)
def test_bytes_on_the_wire(payload: bytes, body: bytes) -> None:
    assert payload == b"\x0dblock_publish" + body


@pytest.mark.parametrize("body", [b"", b"\x04", b"\x01\x00", b"\x03\x00\x05\x00\x00", b"\x02\x00\x00"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    """An unknown member, an unknown code, and messages that end too early."""
    with pytest.raises(ProtocolError):
        p.PUBLISH.decode_request(p.PUBLISH.tag + bytes((len(body),)) + body)
