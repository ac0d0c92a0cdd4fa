"""What may be typed for a place in a stream, a time, a size or a header."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_client import FIRST, LAST, NEW, Header
from stream_node.cli.values import (
    INDEX_MAX,
    UsageError,
    parse_duration,
    parse_headers,
    parse_index_or_time,
    parse_size,
    parse_start,
    time_text,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("first", FIRST),
        ("last", LAST),
        ("new", NEW),
        ("0", 0),
        (str(INDEX_MAX), INDEX_MAX),
        ("2h", NOW - timedelta(hours=2)),
        ("1w", NOW - timedelta(days=7)),
        ("2026-11-01T08:00Z", datetime(2026, 11, 1, 8, tzinfo=UTC)),
        ("2026-11-01T08:00:00.5+01:00", datetime(2026, 11, 1, 7, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_where_to_begin(text: str, start: object) -> None:
    assert parse_start(text, NOW) == start


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (str(INDEX_MAX + 1), "is no index"),
        ("-1", "is not first, last, new, an index"),
        ("²", "is not first"),
        ("yesterday", "is not first"),
        ("", "is not first"),
        ("2026-11-01", "has no time zone"),
        ("2026-11-01T08:00", "has no time zone"),
        ("1969-11-01T08:00Z", "before 1970"),
        ("999999999w", "too long"),
        ("5000w", "before 1970"),
    ],
)
def test_what_is_no_beginning_is_told(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_start(text, NOW)


def test_a_name_is_no_index_or_time() -> None:
    with pytest.raises(UsageError, match="'first' is not an index"):
        parse_index_or_time("first", NOW)


@given(st.text())
def test_any_text_is_a_beginning_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        parse_start(text, NOW)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0),
        ("1000", 1000),
        ("7B", 7),
        ("64kB", 64_000),
        ("10 MB", 10**7),
        ("4KiB", 4096),
        ("1GiB", 2**30),
        ("2TiB", 2**41),
    ],
)
def test_sizes(text: str, bytes_: int) -> None:
    assert parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["", "-1", "1.5GB", "1G", "MB", "1XB"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7y", "1h30m", "-1d"])
def test_what_is_no_duration_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


def test_headers_are_names_and_values() -> None:
    assert parse_headers(["a=1", "a=", "b==x=y"]) == [Header("a", b"1"), Header("a", b""), Header("b", b"=x=y")]
    for text in ("a", "=1"):
        with pytest.raises(UsageError, match="is not a header"):
            parse_headers([text])


def test_a_time_is_printed_as_it_can_be_typed() -> None:
    assert time_text(0) == "1970-01-01T00:00:00Z"
    time_us = 1_800_000_000_000_001
    assert parse_start(time_text(time_us), NOW) == datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
