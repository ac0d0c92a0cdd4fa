"""Pages as JSON: a page of usual messages is made by few calls, and each message reads as if it were made alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_node.doors.http.data.records import MESSAGES_MAX, Form, joined, pieces_of, split_lines
from stream_node.doors.http.paging import PART_BYTES
from stream_node.doors.http.problems import Problem
from stream_service.page_codec import decode_packed_page, encode_packed_page

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).map(msgspec.json.encode)
SPACED = st.builds(
    lambda value, before, behind: before + msgspec.json.format(value, indent=2) + behind,
    VALUES,
    st.sampled_from([b"", b" ", b"\r\n"]),
    st.sampled_from([b"", b"\t", b"\n"]),
)
DATA = VALUES | SPACED | st.binary(max_size=20) | st.sampled_from([b"1,2", b"1 2", b"{", b"}", b'"', b'"\xff"', b""])
TIMES = st.sampled_from([0, 1, 1_764_410_400_000_000, 2**63 - 1])


def page_of(data: Sequence[bytes], times_us: Sequence[int]) -> bytes:
    records = [
        (5 + at, each, time_us, None, None) for at, (each, time_us) in enumerate(zip(data, times_us, strict=True))
    ]
    return encode_packed_page(0, 0, 99, 99, 0, records, more=False)


@given(st.lists(st.tuples(DATA, TIMES), max_size=8), st.sampled_from(["auto", "text", "base64"]), st.booleans())
def test_a_page_is_its_messages_one_by_one(messages: list[tuple[bytes, int]], form: Form, has_same: bool) -> None:
    """Claim: a page has the same bytes as its messages made alone, whatever they are: JSON with spaces, with broken
    UTF-8, and bytes that are JSON only together with their neighbours."""
    times_us = [messages[0][1] if has_same else time_us for _, time_us in messages]
    payload = page_of([data for data, _ in messages], times_us)
    alone = [b"".join(pieces_of(each, form)) for each in decode_packed_page(payload).messages]
    for between in (b",", b"\n"):
        assert b"".join(joined(decode_packed_page(payload).messages, form, between)) == between.join(alone)


def test_a_long_page_comes_in_parts() -> None:
    """Claim: no piece of a long page is much larger than a part of an answer, and no message is lost between parts."""
    data = [b'{"at":%d,"text":"%s"}' % (number, b"x" * 900) for number in range(1_000)]
    pieces = list(joined(decode_packed_page(page_of(data, range(1_000))).messages, "auto", b","))
    assert max(map(len, pieces)) < 2 * PART_BYTES
    found = msgspec.json.decode(b"[" + b"".join(pieces) + b"]")
    assert [(each["index"], each["data"]["at"]) for each in found] == [(5 + number, number) for number in range(1_000)]


@given(st.lists(DATA | st.just(b" \t"), max_size=8), st.booleans())
def test_lines_are_judged_as_one_by_one(lines: list[bytes], ends: bool) -> None:
    """Claim: a body of lines is taken if each line, alone, is one value of JSON, and its messages are the lines.

    Method: msgspec decodes each line, and Python its text."""
    lines = [each.replace(b"\n", b" ") for each in lines]
    wanted = [stripped for each in lines if (stripped := each.strip(b" \t\r"))]
    body = b"\n".join(lines) + (b"\n" if ends else b"")
    if wanted and all(map(is_json, wanted)):
        assert split_lines(body) == wanted
    else:
        with pytest.raises(Problem) as raised:
            split_lines(body)
        assert raised.value.name == ("not-json" if wanted else "no-message")


def is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def test_too_many_lines_are_refused_before_they_are_kept() -> None:
    """Claim: empty lines do not count, and one message too many is refused."""
    assert len(split_lines(b"\n\n1\n" * MESSAGES_MAX)) == MESSAGES_MAX
    with pytest.raises(Problem) as raised:
        split_lines(b"1\n" * MESSAGES_MAX + b"2")
    assert raised.value.name == "too-many-messages"
