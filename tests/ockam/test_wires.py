"""Goal: both framings byte for byte as the real peers write and read them. Method: frames captured from real ones."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import LOCAL, TCP, Address, Route, local
from ockam.errors import RemoteProtocolError
from ockam.identity.channel.messages import PLAINTEXT
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import ADDRESS_BYTES_MAX, LEGACY, ROUTE_BYTES_MAX
from stream_service.names import NAME_BYTES_MAX

VECTORS = Path(__file__).parents[1] / "vectors" / "ockam"
WIRES = {"head": HEAD, "legacy": LEGACY}
FILES = ("head_calls", "head_client", "legacy_calls", "legacy_client")


def captured() -> list[Any]:
    """Every frame that real clients and services exchanged, with its framing."""
    found = []
    for name in FILES:
        frames = json.loads((VECTORS / f"{name}.json").read_text())["frames"]
        for number, frame in enumerate(frames):
            found.append(pytest.param(WIRES[name.partition("_")[0]], frame, id=f"{name}-{number}"))
    return found


def decode(wire: Wire, body: bytes) -> tuple[Route, Route, bytes]:
    onward_route, return_route, at = wire.decode_routes(body, 0, len(body))
    return onward_route, return_route, wire.decode_payload(body, 0, at, len(body))


def encode(wire: Wire, onward_route: Route, return_route: Route, payload: bytes) -> bytes:
    return wire.encode_routes(onward_route, return_route) + wire.encode_payload(payload)


@pytest.mark.parametrize(("wire", "frame"), captured())
def test_a_captured_frame_reads_and_writes_back_the_same(wire: Wire, frame: dict[str, Any]) -> None:
    body = bytes.fromhex(frame["frame"])
    if not body:
        pytest.skip("a zero-length frame has no message")
    onward_route, return_route, payload = decode(wire, body)
    assert payload.hex() == frame["payload"]
    assert encode(wire, onward_route, return_route, payload) == body
    assert len(body).to_bytes(wire.length_bytes, "big").hex() == frame["length_prefix"]


def test_the_worked_frames_of_the_facts() -> None:
    payload = bytes.fromhex("1973747265616d5f6372656174655f706172746974696f6e65640701046361703101")
    routes = ((local("stream"),), (local("publisher"),))
    assert encode(HEAD, *routes, payload).hex() == (
        "848182004673747265616d818200497075626c69736865725822" + payload.hex() + "f6"
    )
    assert encode(LEGACY, *routes, payload).hex() == ("0101000673747265616d0100097075626c697368657222" + payload.hex())


def test_the_exact_bytes_of_the_upstream_legacy_test() -> None:
    """wire versions_test: onward [1#127.0.0.1:4000, printer], return [1#127.0.0.1:3000], payload hello."""
    onward_route = (Address(TCP, b"127.0.0.1:4000"), local("printer"))
    return_route = (Address(TCP, b"127.0.0.1:3000"),)
    expected = b"\x01\x02\x01\x0e127.0.0.1:4000\x00\x07printer\x01\x01\x0e127.0.0.1:3000\x05hello"
    assert encode(LEGACY, onward_route, return_route, b"hello") == expected
    assert encode(LEGACY, (), (), b"") == b"\x01\x00\x00\x00"


addresses = st.builds(Address, st.integers(0, 255), st.binary(max_size=300))
routes = st.lists(addresses, max_size=5).map(tuple)


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(onward_route=routes, return_route=routes, payload=st.binary(max_size=400))
def test_any_message_round_trips(wire: Wire, onward_route: Route, return_route: Route, payload: bytes) -> None:
    assert decode(wire, encode(wire, onward_route, return_route, payload)) == (onward_route, return_route, payload)


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
@given(st.data())
def test_a_damaged_message_raises_only_the_typed_error(wire: Wire, data: st.DataObject) -> None:
    body = bytearray(encode(wire, (local("stream"),), (local("me"), Address(TCP, b"h:1")), data.draw(st.binary())))
    body = body[: data.draw(st.integers(0, len(body)))]
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RemoteProtocolError):
        decode(wire, bytes(body))


@pytest.mark.parametrize(
    ("wire", "body", "kind"),
    [
        pytest.param(HEAD, "83808040", "undecodable", id="head-array-of-three"),
        pytest.param(HEAD, "84808060f6", "undecodable", id="head-text-payload"),
        pytest.param(HEAD, "84808040f600", "undecodable", id="head-trailing-byte"),
        pytest.param(HEAD, "848182006161804 0f6".replace(" ", ""), "undecodable", id="head-text-address"),
        pytest.param(HEAD, "84808058", "undecodable", id="head-cut"),
        pytest.param(LEGACY, "03000000", "version", id="legacy-version-3"),
        pytest.param(LEGACY, "0100000000", "undecodable", id="legacy-trailing-byte"),
        pytest.param(LEGACY, "02000000", "undecodable", id="legacy-version-2-without-its-tail"),
        pytest.param(LEGACY, "01000005aa", "undecodable", id="legacy-cut"),
    ],
)
def test_what_the_real_node_refuses_we_refuse(wire: Wire, body: str, kind: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(wire, bytes.fromhex(body))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        pytest.param(HEAD, "9f808041aaf6ff", id="head-indefinite-outer-array"),
        pytest.param(HEAD, "84808041aa6568656c6c6f", id="head-tracing-context"),
        pytest.param(LEGACY, "02000001aa010568656c6c6f", id="legacy-version-2-tracing-context"),
        pytest.param(LEGACY, "02000001aa00", id="legacy-version-2-no-context"),
    ],
)
def test_what_the_real_node_accepts_beyond_the_usual_we_accept(wire: Wire, body: str) -> None:
    assert decode(wire, bytes.fromhex(body)) == ((), (), b"\xaa")


def test_addresses_that_are_not_text_come_back_untouched() -> None:
    odd = Address(LOCAL, b"\xff\x00\xfe")
    for wire in (HEAD, LEGACY):
        assert decode(wire, encode(wire, (), (odd,), b""))[1] == (odd,)


@pytest.mark.parametrize("wire", [HEAD, LEGACY, PLAINTEXT], ids=lambda wire: wire.name)
def test_the_sizes_of_addresses_and_routes_are_bounded(wire: Wire) -> None:
    """The longest name of a stream fits into an address, with a prefix before it. One byte too many is refused, in both
    routes, also if the bytes come to a channel."""
    assert NAME_BYTES_MAX < ADDRESS_BYTES_MAX
    largest = local(bytes(ADDRESS_BYTES_MAX))
    none: Route = ()
    whole = (local(bytes(1_024)),) * (ROUTE_BYTES_MAX // 1_024)
    for route in ((largest,), whole):
        assert decode(wire, encode(wire, route, route, b"x")) == (route, route, b"x")
    for route in ((local(bytes(ADDRESS_BYTES_MAX + 1)),), (*whole, local(b"x")), (largest,) * 8):
        for onward, back in ((route, none), (none, route)):
            with pytest.raises(RemoteProtocolError, match="bytes; at most") as caught:
                decode(wire, encode(wire, onward, back, b"x"))
            assert caught.value.kind == "undecodable"
