"""Reads places in a stream, times, sizes and headers as people type them. It asks no node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from stream_node import units

if TYPE_CHECKING:
    from stream_client.arguments import StartLike
    from stream_service.extensions import Header

INDEX_MAX = 2**63 - 1
"""The highest index that a stream can have (`storage.contract`)."""
START_HELP = "first, last, new, an index, a time (2026-11-01T08:00Z) or an age (2h)."


class UsageError(Exception):
    """A value on the command line cannot be read. The text says what it may be."""


class CommandFailed(Exception):
    """A command failed, in a package whose own errors are loaded only with the package. The text says why."""


def parse_start(text: str, now: datetime) -> StartLike:
    """Parses first, last, new, an index, a time or an age into the client's form."""
    from stream_client import FIRST, LAST, NEW

    named: dict[str, StartLike] = {"first": FIRST, "last": LAST, "new": NEW}
    if text in named:
        return named[text]
    return parse_index_or_time(text, now, "first, last, new, ")


def parse_index_or_time(text: str, now: datetime, others: str = "") -> int | datetime:
    """An index, a time with its zone, or an age such as 2h, which means that long before now. others: further words for
    the error."""
    if text.isascii() and text.isdigit():
        if int(text) > INDEX_MAX:
            raise UsageError(f"{text} is no index: the highest is {INDEX_MAX}")
        return int(text)
    age_s = parse_duration(text) if units.DURATION.fullmatch(text) else None
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
    """A time in ISO 8601. A date alone means its midnight, also with a Z behind it."""
    for each in (text, text.removesuffix("Z") + "T00:00Z" if text.endswith("Z") else text):
        try:
            return datetime.fromisoformat(each)
        except ValueError:
            continue
    return None


def parse_duration(text: str) -> int:
    """The seconds of 30s, 15m, 2h, 7d or 1w (`stream_node.units`). Raises UsageError."""
    try:
        return units.parse_duration(text)
    except units.UnitError as error:
        raise UsageError(str(error)) from error


def parse_size(text: str) -> int:
    """The bytes of 1000, 64kB, 64KiB, 10MB or 1GiB (`stream_node.units`). Raises UsageError."""
    try:
        return units.parse_size(text)
    except units.UnitError as error:
        raise UsageError(str(error)) from error


def parse_headers(texts: list[str]) -> list[Header]:
    """The headers of texts NAME=VALUE. Names may repeat. Raises UsageError."""
    from stream_service.extensions import Header

    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is not a header: NAME=VALUE")
        headers.append(Header(name, value.encode(errors="surrogateescape")))
    return headers


def time_text(time_us: int) -> str:
    """The text of a time in microseconds since 1970, in UTC."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


def utc_now() -> datetime:
    return datetime.now(UTC)
