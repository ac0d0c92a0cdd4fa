"""Goal: every message that a stream serves is one row of one table, and is found there by its name alone."""

from __future__ import annotations

import pytest

from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from stream_service.protocol import PULL, PUSH
from stream_service.workers.served import Read, Write, find_right, find_served, served_messages


def test_every_row_is_found_by_the_name_in_front_of_a_payload() -> None:
    for protocol, served in served_messages().items():
        assert find_served(protocol.tag + b"\x00") is served
        assert find_right(protocol.tag) == served.right
        # One byte has the size of the name.
        assert len(protocol.tag) == protocol.tag[0] + 1


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\xff", b"\x7f", PUSH.tag[:-1], b"\x8b\x00" + PUSH.tag[1:], b"\x05error"]
)
def test_nothing_else_is_served_and_one_right_on_the_stream_is_enough_to_be_told_so(payload: bytes) -> None:
    assert find_served(payload) is None
    assert find_right(payload) == STREAM_RIGHTS


def test_whoever_may_only_read_can_write_nothing() -> None:
    assert isinstance(served_messages()[PULL], Read)
    for served in served_messages().values():
        assert not isinstance(served, Write) or not served.right & Right.READ
