"""Parses values as people write them in options, files and variables: starts in a stream, times, sizes and headers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_client.arguments import StartLike
    from stream_service.extensions import Header

INDEX_MAX = 2**63 - 1
START_HELP = "first, last, new, an index, a time (2026-11-01T08:00Z) or an age (2h)."
DURATION = re.compile(r"(\d+)([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
SIZE = re.compile(r"(\d+)\s*(?:([kKMGT])(i?)B|B)?")
POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
DAYS_MAX = 365_000
"""The longest duration, about a thousand years. A longer one is a mistake, and dates cannot be computed with it."""


class UsageError(Exception):
    """A value on the command line is invalid. The text says which values are allowed."""


class CommandFailed(Exception):
    """A command failed, and the text says why. Stands for errors of packages that are imported only when needed."""


def parse_start(text: str, now: datetime) -> StartLike:
    """Parses the start of a reading: "first", "last", "new", an index, a time or an age. Raises UsageError."""
    from stream_client import FIRST, LAST, NEW

    named: dict[str, StartLike] = {"first": FIRST, "last": LAST, "new": NEW}
    return named[text] if text in named else parse_index_or_time(text, now, "first, last, new, ")


def parse_index_or_time(text: str, now: datetime, others: str = "") -> int | datetime:
    """Parses an index, a time with its time zone, or an age before `now`. Raises UsageError.
    others: the words that the caller also accepts, for the error message."""
    if text.isascii() and text.isdigit():
        if int(text) > INDEX_MAX:
            raise UsageError(f"{text} is no index: the highest is {INDEX_MAX}")
        return int(text)
    if DURATION.fullmatch(text):
        time = now - timedelta(seconds=parse_duration(text))
    elif (found := _find_time(text)) is not None:
        time = _in_zone(text, found)
    else:
        raise UsageError(f"{text!r} is not {others}an index, a time (2026-11-01T08:00Z) or an age (30s, 2h, 7d)")
    if time < datetime.fromtimestamp(0, UTC):
        raise UsageError(f"{text} is before 1970, when no message was published")
    return time


def parse_end(text: str, now: datetime) -> datetime:
    """Parses a time in the future: a duration from `now` on (90d), or a time with its time zone. Raises UsageError."""
    if DURATION.fullmatch(text):
        return now + timedelta(seconds=parse_duration(text))
    time = _find_time(text)
    if time is None:
        raise UsageError(f"{text!r} is no time to come: write a duration (90d) or a time (2027-01-01T00:00Z)")
    if _in_zone(text, time) <= now:
        raise UsageError(f"{text} is over: it is {now:%Y-%m-%dT%H:%M}Z now")
    return time


def _in_zone(text: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise UsageError(f"{text} has no time zone: write {text}Z for UTC, or {time:%Y-%m-%dT%H:%M}+01:00")
    return time


def _find_time(text: str) -> datetime | None:
    """Parses a time in ISO 8601; None for any other text. A date alone, with or without a Z, means its midnight."""
    for each in (text, text.removesuffix("Z") + "T00:00Z" if text.endswith("Z") else text):
        try:
            return datetime.fromisoformat(each)
        except ValueError:
            continue
    return None


def parse_duration(text: str) -> int:
    """Parses a duration such as 30s, 15m, 2h, 7d or 1w into seconds. Raises UsageError."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration: a number and s, m, h, d or w, such as 7d")
    seconds = int(match[1]) * SECONDS[match[2]]
    if seconds > DAYS_MAX * SECONDS["d"]:
        raise UsageError(f"{text} is too long: at most {DAYS_MAX}d")
    return seconds


def parse_size(text: str) -> int:
    """Parses a size such as 1000, 64kB, 64KiB, 10MB or 1GiB into bytes. Raises UsageError."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size: a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB")
    unit = 1 if match[2] is None else (1024 if match[3] else 1000) ** POWERS[match[2]]
    return int(match[1]) * unit


def parse_headers(texts: list[str]) -> list[Header]:
    """Parses texts of the form NAME=VALUE into headers. A name may occur more than once. Raises UsageError."""
    from stream_service.extensions import Header

    pairs = (split_pair(text, "a header") for text in texts)
    return [Header(name, value.encode(errors="surrogateescape")) for name, value in pairs]


def split_pair(text: str, what: str) -> tuple[str, str]:
    """Splits a text of the form NAME=VALUE. Raises UsageError. what: for the error message."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not {what}: NAME=VALUE")
    return name, value


def time_text(time_us: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


def utc_now() -> datetime:
    return datetime.now(UTC)


def printable(text: str) -> str:
    """Returns the text as one line that a terminal shows but does not interpret.
    Names and reasons come from peers. A line end in them would add a row to a table, and an escape code could rename
    the window or hide text. So every character that is not printable is replaced by its Python escape sequence."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_bytes(data: bytes) -> bytes:
    """Does for bytes what `printable` does for text. Bytes that are not UTF-8 become Python escape sequences."""
    return printable(data.decode(errors="backslashreplace")).encode()
