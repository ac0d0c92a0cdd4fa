"""The codecs of pages do what the codecs made from the BARE schemas do: equal bytes, equal values, equal errors."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ockam.protocol import ProtocolError
from ockam.transport.forwarding import has_more
from stream_service import page_codec
from stream_service.extensions import PACKED_PULL, RICH_PULL, Header, PackedPage, RichMessage, RichPage, encode_beside
from stream_service.page_codec import Record, decode_packed_page, encode_packed_page
from stream_service.protocol import PULL, PullResponse, StreamMessage
from tests.service.machines.spoiling import outcome, spoil
from tests.support.rich import messages_of

EDGES = [0, 1, 126, 127, 128, 255, 256, 16383, 16384, (1 << 21) - 1, 1 << 28, (1 << 63) - 2, (1 << 64) - 1]
uints = st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1)
sizes = st.sampled_from([0, 1, 100, 127, 128, 129, 16_383, 16_384]) | st.integers(0, 300)


@st.composite
def pages(draw: st.DrawFn) -> list[Record]:
    """Records whose indexes mostly follow each other, and whose times mostly stay."""
    index, time_us = draw(uints), draw(uints)
    records: list[Record] = []
    for _ in range(draw(st.sampled_from([0, 1, 2, 5, 140]))):
        records.append((index, bytes(draw(sizes)), time_us, None, None))
        index = draw(st.sampled_from([index + 1] * 9 + [0])) if index < (1 << 64) - 1 else 7
        time_us = draw(st.sampled_from([time_us] * 5 + [0, (1 << 64) - 1]))
    return records


@given(uints, pages())
def test_a_plain_page_is_encoded_as_the_schema_says(request_id: int, records: list[Record]) -> None:
    page = PullResponse(request_id, [StreamMessage(record[0], record[1]) for record in records])
    payload = page_codec.encode_page(request_id, records)
    assert payload == PULL.encode_response(page)
    assert page_codec.decode_page(payload) == page


@given(uints, uints, uints, uints, pages())
def test_a_page_with_times_is_encoded_as_the_schema_says(
    request_id: int, first: int, following: int, resume: int, records: list[Record]
) -> None:
    messages = [RichMessage(index, time_us, None, [], data) for index, data, time_us, _, _ in records]
    page = RichPage(request_id, first, following, resume, messages)
    payload = page_codec.encode_rich_page(request_id, first, following, resume, records)
    assert payload == RICH_PULL.encode_response(page)
    assert page_codec.decode_rich_page(payload) == page


def test_a_page_with_a_key_or_headers_is_left_to_the_other_codec() -> None:
    plain: Record = (1, b"x", 2, None, None)
    assert page_codec.encode_rich_page(1, 0, 3, 3, [plain, (2, b"x", 2, b"", None)]) is None
    assert page_codec.encode_rich_page(1, 0, 3, 3, [plain, (2, b"x", 2, None, b"\0\0")]) is None
    rich = RichPage(
        1, 0, 3, 3, [RichMessage(1, 2, None, [], b"x"), RichMessage(2, 2, b"key", [Header("name", b"value")], b"x")]
    )
    assert page_codec.decode_rich_page(RICH_PULL.encode_response(rich)) == rich


def test_messages_of_a_page_share_no_list_of_headers() -> None:
    payload = page_codec.encode_rich_page(1, 0, 3, 3, [(1, b"x", 2, None, None), (2, b"x", 2, None, None)])
    assert payload is not None
    first, second = page_codec.decode_rich_page(payload).messages
    assert first.headers is not second.headers


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """The payload of a page with some bytes changed, left out, put in or added."""
    records, request_id = draw(pages()), draw(uints)
    if draw(st.booleans()):
        payload = page_codec.encode_page(request_id, records)
    else:
        payload = page_codec.encode_rich_page(request_id, 1, 2, 3, records) or b""
    return spoil(draw, payload, 80)


@given(
    spoilt()
    | st.binary(max_size=40)
    | st.binary(max_size=30).map(lambda more: PULL.tag + more)
    | st.binary(max_size=30).map(lambda more: RICH_PULL.tag + more)
)
@example(b"")
@example(PULL.tag)
# An index in more bytes than it needs, and the index after the greatest one.
@example(PULL.tag + b"\x06\x00\x01\x80\x00\x01x")
@example(PULL.tag + b"\x18\x00\x02" + b"\xff" * 9 + b"\x01\x00" + b"\x80" * 9 + b"\x02\x00")
def test_any_bytes_are_decoded_or_refused_as_the_schema_says(payload: bytes) -> None:
    """Goal: no payload is accepted or refused otherwise than by the schema's codec, and the texts are the same."""
    assert outcome(page_codec.decode_page, payload) == outcome(PULL.decode_response, payload)
    assert outcome(page_codec.decode_rich_page, payload) == outcome(RICH_PULL.decode_response, payload)


@st.composite
def packed(draw: st.DrawFn) -> tuple[bytes, list[RichMessage]]:
    """The payload of a packed page, and its messages, of which few or none have a key or headers."""
    times = st.sampled_from([5, 5, 5, (1 << 63) - 1])
    start, count = draw(st.integers(0, 1 << 62)), draw(st.sampled_from([0, 1, 2, 5, 140]))
    keys = draw(st.sampled_from([st.none(), st.sampled_from([None, None, None, b"", b"key"])]))
    all_headers = draw(st.sampled_from([st.just([]), st.sampled_from([[], [], [Header("name", b"value")]])]))
    messages = [
        RichMessage(start + at, draw(times), draw(keys), draw(all_headers), bytes(draw(sizes))) for at in range(count)
    ]
    records: list[Record] = [
        (each.index, each.data, each.time_us, each.key, encode_beside(each.headers)) for each in messages
    ]
    payload = encode_packed_page(
        draw(uints), 1, draw(uints), draw(uints), draw(uints), records, more=draw(st.booleans())
    )
    return payload, messages


def unpacked(payload: bytes) -> list[RichMessage] | None:
    """The slow way: the page as the schema decodes it, cut message by message; None for columns that do not fit."""
    return messages_of(PACKED_PULL.decode_response(payload))


@given(packed())
def test_a_packed_page_is_encoded_as_the_schema_says(made: tuple[bytes, list[RichMessage]]) -> None:
    """Goal: the columns are those of the schema, and the messages that are made of them are those that went in."""
    payload, messages = made
    page: PackedPage = PACKED_PULL.decode_response(payload)
    assert PACKED_PULL.encode_response(page) == payload
    found = decode_packed_page(payload)
    assert (len(found.messages), found.messages[:]) == (len(messages), messages)
    bounds = (page.request_id, page.first_index, page.next_index, page.resume_index, page.created_us)
    assert bounds == (found.request_id, found.first_index, found.next_index, found.resume_index, found.created_us)
    assert has_more(payload) == page.more


@st.composite
def spoilt_packed(draw: st.DrawFn) -> bytes:
    return spoil(draw, draw(packed())[0], 80)


@given(spoilt_packed())
def test_a_spoilt_packed_page_is_refused_before_its_messages_are_made(payload: bytes) -> None:
    """Goal: a payload is accepted exactly when the slow way accepts it, with the same messages; making the messages of
    an accepted page never fails."""
    try:
        expected = unpacked(payload)
    except ProtocolError:
        expected = None
    try:
        found = decode_packed_page(payload)
    except ProtocolError:
        assert expected is None
    else:
        assert found.messages[:] == expected


def test_messages_of_a_packed_page_share_no_list_of_headers() -> None:
    payload = encode_packed_page(1, 0, 3, 3, 9, [(1, b"x", 2, None, None), (2, b"x", 2, None, None)], more=False)
    first, second = decode_packed_page(payload).messages
    assert first.headers is not second.headers
