"""How places in a stream, times, sizes and headers are typed. It asks no node; what cannot be read is a UsageError."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_service.client.starts import StartLike
    from stream_service.extensions import Header

DURATION = re.compile(r"(\d+)([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
SIZE = re.compile(r"(\d+)\s*(?:([kKMGT])(i?)B|B)?")
POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
INDEX_MAX = 2**63 - 1
"""The highest index that a stream can have (`storage.contract`)."""
DAYS_MAX = 365_000
"""A duration beyond a thousand years is a slip of the finger, and no date can be reckoned with it."""
START_HELP = "first, last, new, an index, a time (2026-11-01T08:00Z) or an age (2h)."


class UsageError(Exception):
    """Something typed that cannot be read; the text says what it may be."""


class CommandFailed(Exception):
    """What a command could not do, from a package whose own errors are loaded with it only; the text says why."""


def parse_start(text: str, now: datetime) -> StartLike:
    """first, last, new, an index, a time or an age, as the client takes it."""
    from stream_service.client.starts import FIRST, LAST, NEW

    named: dict[str, StartLike] = {"first": FIRST, "last": LAST, "new": NEW}
    if text in named:
        return named[text]
    return parse_index_or_time(text, now, "first, last, new, ")


def parse_index_or_time(text: str, now: datetime, others: str = "") -> int | datetime:
    """An index, a time with its zone, or an age such as 2h: that long before now. others: what else it may be."""
    if text.isascii() and text.isdigit():
        if int(text) > INDEX_MAX:
            raise UsageError(f"{text} is no index: the highest is {INDEX_MAX}")
        return int(text)
    age_s = parse_duration(text) if DURATION.fullmatch(text) else None
    time = _parse_time(text, others) if age_s is None else now - timedelta(seconds=age_s)
    if time < datetime.fromtimestamp(0, UTC):
        raise UsageError(f"{text} is before 1970, when no message was published")
    return time


def _parse_time(text: str, others: str) -> datetime:
    time = _find_time(text)
    if time is None:
        raise UsageError(f"{text!r} is not {others}an index, a time (2026-11-01T08:00Z) or an age (30s, 2h, 7d)")
    if time.tzinfo is None:
        raise UsageError(f"{text} has no time zone: write {text}Z for UTC, or {time:%Y-%m-%dT%H:%M}+01:00")
    return time


def _find_time(text: str) -> datetime | None:
    """A time in ISO 8601. A date alone is its midnight, with a Z behind it too."""
    for each in (text, text.removesuffix("Z") + "T00:00Z" if text.endswith("Z") else text):
        try:
            return datetime.fromisoformat(each)
        except ValueError:
            continue
    return None


def parse_duration(text: str) -> int:
    """Seconds: 30s, 15m, 2h, 7d, 1w."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration: a number and s, m, h, d or w, such as 7d")
    seconds = int(match[1]) * SECONDS[match[2]]
    if seconds > DAYS_MAX * SECONDS["d"]:
        raise UsageError(f"{text} is too long: at most {DAYS_MAX}d")
    return seconds


def parse_size(text: str) -> int:
    """Bytes: 1000, 64kB, 64KiB, 10MB, 1GiB."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size: a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB")
    unit = 1 if match[2] is None else (1024 if match[3] else 1000) ** POWERS[match[2]]
    return int(match[1]) * unit


def parse_headers(texts: list[str]) -> list[Header]:
    """Each NAME=VALUE; names may repeat."""
    from stream_service.extensions import Header

    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is not a header: NAME=VALUE")
        headers.append(Header(name, value.encode(errors="surrogateescape")))
    return headers


def time_text(time_us: int) -> str:
    """A time in microseconds since 1970, in UTC."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


def utc_now() -> datetime:
    return datetime.now(UTC)
