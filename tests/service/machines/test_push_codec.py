"""The codec of plain pushes and confirms does what the codec made from the BARE schema does: equal bytes, equal values,
equal errors."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ockam.protocol import ProtocolError
from stream_service import push_codec
from stream_service.extensions import BATCH_MESSAGES_MAX, PUSH_BATCH, BatchAnswer, BatchFailure, Outcome, PushBatch
from stream_service.protocol import PUSH, PushConfirm, PushRequest, Status
from tests.service.machines.spoiling import outcome, spoil

EDGES = [0, 1, 127, 128, 16383, 16384, (1 << 21) - 1, 1 << 21, 1 << 28, 1 << 35, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
uints = st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1)
sizes = st.sampled_from([0, 1, 100, 113, 114, 115, 125, 126, 127, 128, 129, 16_383, 16_384]) | st.integers(0, 300)


@given(uints, sizes)
def test_a_push_is_encoded_as_the_schema_says(request_id: int, size: int) -> None:
    data = bytes(size)
    payload = push_codec.encode_push(request_id, data)
    assert payload == PUSH.encode_request(PushRequest(request_id, data))
    assert push_codec.decode_push(payload) == PushRequest(request_id, data)


@given(uints, uints)
def test_a_confirm_is_encoded_as_the_schema_says(request_id: int, index: int) -> None:
    payload = push_codec.encode_confirm(request_id, index)
    assert payload == PUSH.encode_response(PushConfirm(request_id, Status.OK, index))
    assert push_codec.decode_confirm(payload) == PushConfirm(request_id, Status.OK, index)


@given(uints, uints, st.sampled_from(Status))
def test_a_confirm_of_any_status_is_decoded_as_the_schema_says(request_id: int, index: int, status: Status) -> None:
    confirm = PushConfirm(request_id, status, index)
    assert push_codec.decode_confirm(PUSH.encode_response(confirm)) == confirm


batches = st.builds(PushBatch, uints, st.lists(sizes.map(bytes), min_size=1, max_size=5))


@given(batches)
def test_a_batch_is_encoded_as_the_schema_says(batch: PushBatch) -> None:
    payload = push_codec.encode_batch(batch.request_id, batch.messages)
    assert payload == PUSH_BATCH.encode_request(batch)
    assert push_codec.decode_batch(payload) == batch


@given(uints, uints, uints)
def test_an_answer_to_several_pushes_is_encoded_as_the_schema_says(request_id: int, count: int, index: int) -> None:
    payload = push_codec.encode_batch_stored(request_id, count, index)
    assert payload == PUSH_BATCH.encode_response(BatchAnswer(request_id, count, index, None))
    assert push_codec.decode_batch_answer(payload) == BatchAnswer(request_id, count, index, None)


@given(uints, uints, st.sampled_from(Outcome), st.text(max_size=10))
def test_a_failure_of_several_pushes_is_decoded_as_the_schema_says(
    request_id: int, count: int, outcome: Outcome, reason: str
) -> None:
    answer = BatchAnswer(request_id, count, 0, BatchFailure(outcome, reason))
    assert push_codec.decode_batch_answer(PUSH_BATCH.encode_response(answer)) == answer


@pytest.mark.parametrize("count", [0, BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX + 1])
def test_a_batch_has_some_messages_and_not_too_many(count: int) -> None:
    payload = push_codec.encode_batch(7, [b""] * count)
    if count == BATCH_MESSAGES_MAX:
        assert len(push_codec.decode_batch(payload).messages) == count
        return
    with pytest.raises(ProtocolError, match=f"a batch of {count} messages; it has 1 to 1000"):
        push_codec.decode_batch(payload)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A payload of a push or a confirm with some bytes changed, left out, put in or added."""
    payload = draw(
        st.builds(lambda number, size: PUSH.encode_request(PushRequest(number, bytes(size))), uints, sizes)
        | st.builds(lambda number, index: push_codec.encode_confirm(number, index), uints, uints)
        | batches.map(PUSH_BATCH.encode_request)
        | st.builds(lambda number, count: push_codec.encode_batch_stored(number, count, 7), uints, uints)
    )
    return spoil(draw, payload, 40)


@given(
    spoilt()
    | st.binary(max_size=40)
    | st.binary(max_size=20).map(lambda more: PUSH.tag + more)
    | st.binary(max_size=20).map(lambda more: PUSH_BATCH.tag + more)
)
@example(b"")
@example(PUSH.tag)
@example(PUSH.tag + b"\x03\x80\x00\x00")
@example(PUSH.tag + b"\x83\x00\x01\x01x")
@example(PUSH.tag + b"\x0c" + b"\xff" * 9 + b"\x02\x00")
def test_any_bytes_are_decoded_or_refused_as_the_schema_says(payload: bytes) -> None:
    """Goal: no payload is accepted or refused otherwise than by the schema's codec, and the texts are the same."""
    assert outcome(push_codec.decode_push, payload) == outcome(PUSH.decode_request, payload)
    assert outcome(push_codec.decode_confirm, payload) == outcome(PUSH.decode_response, payload)
    assert outcome(push_codec.decode_batch_answer, payload) == outcome(PUSH_BATCH.decode_response, payload)
    batch = outcome(PUSH_BATCH.decode_request, payload)
    if not isinstance(batch, PushBatch) or batch.messages:
        assert outcome(push_codec.decode_batch, payload) == batch


@pytest.mark.parametrize("size", [push_codec.USUAL_BYTES_MAX - 30, push_codec.USUAL_BYTES_MAX + 1])
def test_a_large_push_is_the_same(size: int) -> None:
    payload = push_codec.encode_push(7, bytes(size))
    assert payload == PUSH.encode_request(PushRequest(7, bytes(size)))
    assert push_codec.decode_push(payload) == PushRequest(7, bytes(size))
