"""Goal: the workers' own few codecs say what the project's say. Method: bytes of one read and compared by the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import local
from ockam.actors.message import Origin
from ockam.protocol import error_payload
from ockam.transport.frames import FrameReader
from ockam.transport.wire_head import HEAD
from spark_export.errors import BadAnswer, NodeRefused
from spark_export.source import node_wire
from stream_service import bulk, names
from stream_service.extensions import (
    INFO,
    RICH_PULL,
    RICH_PUSH,
    Header,
    InfoResponse,
    Retention,
    RichMessage,
    RichPage,
    RichPush,
    StreamInfo,
)
from stream_service.stored import Extras, encode_extras

NEEDS_SPARK = "the extra `spark` is not installed"
UINT = st.integers(0, 2**64 - 1)
HEADERS = st.lists(st.builds(Header, st.text(max_size=20), st.binary(max_size=20)), max_size=4)


@given(st.binary(max_size=100), st.binary(min_size=1, max_size=40), st.binary(max_size=70_000))
def test_a_frame_is_read_by_the_node(address: bytes, back: bytes, payload: bytes) -> None:
    """Goal: every size of address and payload gets its right CBOR head. Method: the node's own reader."""
    reader = FrameReader(HEAD, Origin("tcp"), ())
    (message,) = reader.feed(node_wire.frame(address, back, payload))
    assert [hop.value for hop in message.onward_route] == [address]
    assert [hop.value for hop in message.return_route] == [back]
    assert message.payload == payload


@given(st.binary(min_size=1, max_size=300), st.text(min_size=1, max_size=30), st.binary(max_size=70_000))
def test_the_nodes_frames_are_read(address: bytes, protocol: str, body: bytes) -> None:
    """Goal: answers of any size are found. Method: routes and payload as the node writes them."""
    payload = node_wire.payload(protocol, body)
    routes = HEAD.encode_routes((local(address.hex()),), (local("ST_S_1"), local("x")))
    answer = node_wire.read_frame(memoryview(routes + HEAD.encode_payload(payload)))
    assert answer is not None
    assert (answer.return_address, answer.protocol, bytes(answer.body)) == (address.hex().encode(), protocol, body)


def test_a_heartbeat_is_no_answer() -> None:
    """Goal: what keeps a connection alive is passed over. Method: the framing's own heartbeat, its length taken off."""
    assert node_wire.read_frame(memoryview(HEAD.heartbeat[4:])) is None


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_cut_frame_is_a_typed_error(cut: int) -> None:
    """Goal: no cut is taken for an answer. Method: a frame cut at each of its bytes."""
    frame = node_wire.frame(b"spark-1", b"ST_S_1", node_wire.payload("stream_push", b"abcdefg"))[4:]
    with pytest.raises(BadAnswer):
        node_wire.read_frame(memoryview(frame[:cut]))


@given(UINT, st.binary(max_size=300), st.none() | st.binary(max_size=200), HEADERS)
def test_pushes_are_those_of_the_protocol(number: int, data: bytes, key: bytes | None, headers: list[Header]) -> None:
    """Goal: a push from a worker is a rich push. Method: the node's decoder."""
    pytest.importorskip("pyarrow", reason=NEEDS_SPARK)
    from spark_export.source.node_client import push_body

    body = push_body(number, data, key, [(header.name, header.value) for header in headers]) + b"\x00"
    assert RICH_PUSH.decode_request(node_wire.payload(RICH_PUSH.name, body)) == RichPush(
        number, data, key, headers, None
    )


@given(st.lists(st.builds(RichMessage, UINT, UINT, st.none() | st.binary(max_size=9), HEADERS, st.binary(max_size=99))))
def test_pages_are_read(messages: list[RichMessage]) -> None:
    """Goal: all of a pulled page arrives. Method: pages as the node encodes them."""
    payload = RICH_PULL.encode_response(RichPage(1, 2, 3, 4, messages))
    page = node_wire.read_page(memoryview(RICH_PULL.body(payload)))
    assert (page.first_index, page.next_index, page.resume_index) == (2, 3, 4)
    assert [(each.index, each.time_us, each.key, each.headers, each.data) for each in page.messages] == [
        (each.index, each.time_us, each.key, [(h.name, h.value) for h in each.headers], each.data) for each in messages
    ]


@given(
    st.builds(
        StreamInfo,
        *(st.text(max_size=20), UINT, UINT, UINT, UINT, UINT, st.none() | UINT, st.none() | UINT),
        st.none() | st.builds(Retention, st.none() | UINT, st.none() | UINT, st.none() | UINT),
    )
)
def test_stream_infos_are_read_to_their_end(info: StreamInfo) -> None:
    """Goal: a listing stays in step whatever a stream has. Method: every optional there and not."""
    body = memoryview(INFO.body(INFO.encode_response(InfoResponse(1, info))))
    reader = node_wire.BareReader(body)
    reader.uint()
    ends = node_wire.read_stream_info(reader)
    assert reader.rest == 0
    assert (ends.stream, ends.partition, ends.next_index) == (info.stream_name, info.partition, info.next_index)
    assert (ends.first_index, ends.size_bytes, ends.created_us) == (info.first_index, info.size_bytes, info.created_us)


@given(HEADERS)
def test_stored_headers_are_read(headers: list[Header]) -> None:
    """Goal: what a bulk page has beside a message is understood. Method: the stored form, with a sequence behind."""
    found = node_wire.read_headers(node_wire.BareReader(memoryview(encode_extras(Extras(headers, None)))))
    assert found == [(header.name, header.value) for header in headers]


def test_names_are_the_nodes() -> None:
    """Goal: workers find the same stream and partition. Method: both functions, side by side."""
    assert node_wire.stream_address("orders", 3) == names.stream_address("orders", 3).value
    assert [node_wire.partition_of(bytes([k]), 7) for k in range(50)] == [
        names.partition_of(bytes([k]), 7) for k in range(50)
    ]


def test_an_error_is_the_nodes_reason() -> None:
    """Goal: a refusal says why. Method: the payload of an `error`."""
    pytest.importorskip("pyarrow", reason=NEEDS_SPARK)
    from spark_export.source.node_client import body_of

    frame = HEAD.encode_routes((local("spark-1"),), (local("x"),)) + HEAD.encode_payload(error_payload("no"))
    answer = node_wire.read_frame(memoryview(frame))
    assert answer is not None
    with pytest.raises(NodeRefused, match="Invalid request: no"):
        body_of(answer, "stream_push")


@given(UINT, UINT, UINT, UINT, UINT, UINT, st.binary(max_size=70_000))
def test_a_bulk_page_is_the_protocols(
    number: int, stream_id: int, first: int, end: int, start: int, rows: int, arrow: bytes
) -> None:
    """Goal: the payload that is put together around its megabytes is the one that the protocol describes.

    Method: the general encoder, beside it.
    """
    page = bulk.BulkPage(number, stream_id, 7, first, end, start, rows, b"")
    whole = bulk.BulkPage(number, stream_id, 7, first, end, start, rows, arrow)
    assert bulk.page_payload(page, arrow) == bulk.BULK.encode_response(whole)
