"""Goal: a large request of a publisher, cut in any way while it arrives, means what it means whole.

Method: items of many sizes as one request, by `MessageReader` with a `RequestCutter`, in pieces of any size; the items
of the requests that come out are those that went in. Requests that are damaged, or that are no set of items.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.protobuf import varint
from block_node.grpc.http2.message_reader import CUT_BYTES, MessageBudget, MessageReader, prefix_of_message
from block_node.grpc.messages import MessageFormatError, read_items, write_message
from block_node.grpc.request_cutter import RequestCutter

SIZES = st.lists(st.sampled_from([0, 1, 127, 128, 20_000, 700_000, CUT_BYTES, 3_000_000]), min_size=1, max_size=12)
STEPS = st.lists(st.integers(20_000, 2_000_000), min_size=1, max_size=6)


def messages_of(request: bytes, steps: list[int], budget: MessageBudget | None = None) -> list[bytes]:
    """What a reader makes of the request and of a small one behind it."""
    budget = budget or MessageBudget(1 << 30)
    reader = MessageReader("identity", budget)
    reader.bytes_max, reader.cutter = 1 << 27, RequestCutter()
    data = prefix_of_message(len(request)) + request + prefix_of_message(4) + b"last"
    found, at, place = [], 0, 0
    while at < len(data):
        step = steps[place % len(steps)]
        reader.feed(data[at : at + step])
        at, place = at + step, place + 1
        while (message := reader.next()) is not None:
            found.append(message)
        # What is gathered of one large item is all that counts.
        assert budget.held_bytes <= max(3_000_100, len(request) if request[0] != 0x0A else 0)
    assert reader.is_between
    assert reader.take_absorbed() == len(data)
    assert budget.held_bytes == 0
    assert found.pop() == b"last"
    return found


def request_of(items: list[bytes]) -> bytes:
    return write_message("PublishStreamRequest", {"block_items": {"block_items": items}})


@given(SIZES, STEPS)
def test_the_items_are_those_of_the_whole_request(sizes: list[int], steps: list[int]) -> None:
    items = [bytes([place]) * size for place, size in enumerate(sizes)]
    found = messages_of(request_of(items), steps)
    assert [item for each in found for item in read_items(each) or ()] == items
    # No request is much larger than a mebibyte, unless it has one item.
    assert all(len(each) < CUT_BYTES + 20 or len(read_items(each) or ()) == 1 for each in found)


@given(STEPS)
def test_a_large_request_that_is_no_set_comes_whole(steps: list[int]) -> None:
    request = b"\x7a" + bytes(3_000_000)
    assert messages_of(request, steps) == [request]
    # A set with something behind it is none either.
    request = request_of([bytes(3_000_000)]) + b"\x7a\x00"
    assert messages_of(request, steps, MessageBudget(1 << 30))[0] == request


@pytest.mark.parametrize("behind", [b"\x0b\x00", b"\x0a\x05abc"])
def test_a_damaged_set_is_refused_behind_its_good_items(behind: bytes) -> None:
    items = request_of([bytes(1_000)] * 2_000)[4:] + behind
    found = messages_of(b"\x0a" + varint(len(items)) + items, [100_000])
    assert sum(len(read_items(each) or ()) for each in found[:-1]) > 900
    with pytest.raises(MessageFormatError):
        read_items(found[-1])
