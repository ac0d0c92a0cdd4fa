"""Where reading begins and where deleting ends, as callers like to say it."""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeAlias

from stream_client.errors import InvalidArgument
from stream_service.extensions import Before, BeforeIndex, BeforeTime, FromEnd, FromIndex, FromTime, Start

StartLike: TypeAlias = int | datetime | FromIndex | FromTime | FromEnd
"""An index, a time, or one of the wire's own forms."""
BeforeLike: TypeAlias = int | datetime | BeforeIndex | BeforeTime

FIRST: Final = FromIndex(0)
"""The earliest stored message."""
LAST: Final = FromEnd(1)
"""The latest stored message."""
NEW: Final = FromEnd(0)
"""Only what is stored from now on."""


def start_of(start: StartLike) -> Start:
    """Raises InvalidArgument where it says no place, or a time has no time zone."""
    if isinstance(start, int):
        return FromIndex(start)
    if isinstance(start, datetime):
        return FromTime(microseconds(start))
    if isinstance(start, FromIndex | FromTime | FromEnd):
        return start
    given = type(start).__name__
    raise InvalidArgument(f"reading begins at an index, a time, FIRST, LAST or NEW, not at a {given}")


def before_of(before: BeforeLike) -> Before:
    """Raises InvalidArgument where it says no place, or a time has no time zone."""
    if isinstance(before, int):
        return BeforeIndex(before)
    if isinstance(before, datetime):
        return BeforeTime(microseconds(before))
    if isinstance(before, BeforeIndex | BeforeTime):
        return before
    raise InvalidArgument(f"what to delete is before an index or a time, not before a {type(before).__name__}")


def microseconds(time: datetime) -> int:
    """Microseconds since 1970, exactly. Raises InvalidArgument where a time has no time zone."""
    if time.tzinfo is None:
        raise InvalidArgument(f"{time.isoformat()} has no time zone: say which one is meant, for example UTC")
    since = time - datetime.fromtimestamp(0, time.tzinfo)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
