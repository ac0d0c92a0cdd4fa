"""Parses and writes dates and times in text, as whole numbers of days and microseconds, so that every year is possible.

The forms are those of ISO 8601 that Spark's `from_json` accepts without a format. A date is `2026`, `2026-01` or
`2026-1-5`; a blank or `T` and any text can follow the third form. A time is a date, a blank or `T`, hours, minutes,
seconds with a fraction, and a time zone; all parts after the year are optional, and digits after the microseconds are
ignored. The zone is `Z`, an offset such as `+02:00` or `UTC+3`, or a region such as `Europe/Berlin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
TIME = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2})(?::?([0-9]{2}))?)?")
REGION = re.compile(r"(?!right/|posix/)[A-Za-z][A-Za-z0-9~/._+-]+")
TRIMMED = "".join(map(chr, (*range(0x21), 0x7F)))

UNIX_DAY = date(1970, 1, 1).toordinal()
CYCLE_DAYS = 146_097
"""The days of 400 years, after which the calendar repeats. Python knows the years 1 to 9999 only, so other years are
looked up a multiple of 400 years away."""
DAY_US = 86_400_000_000
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def days_of(text: str) -> int | None:
    """Parses a date. Returns the days since 1970-01-01; None if the text is not a date."""
    found = DATE.fullmatch(text.strip(TRIMMED))
    days = None if found is None else _days(found)
    return days if days is not None and -INT32_MAX <= days <= INT32_MAX else None


def time_reader(zone: str) -> Callable[[str], int | None]:
    """Returns a function that parses a time into microseconds since 1970 (UTC); None for a text that is no time.

    zone: the time zone for texts without a zone. Raises ValueError for an unknown zone.
    """
    usual = find_zone(zone)

    def read(text: str) -> int | None:
        found = TIME.fullmatch(text.strip(TRIMMED))
        local_us = None if found is None else _local_us(found)
        if found is None or local_us is None:
            return None
        try:
            return _to_utc(local_us, usual if found[9] is None else find_zone(found[9].strip(TRIMMED)))
        except ValueError:
            return None

    return read


def local_us_of(text: str) -> int | None:
    """Parses a time without a zone into microseconds since 1970-01-01 of the same local clock, or None."""
    found = TIME.fullmatch(text.strip(TRIMMED))
    return None if found is None or found[9] is not None else _local_us(found)


def day_text(days: int) -> str:
    """Returns the date `days` after 1970-01-01: `2026-01-05` or `+12026-01-05`."""
    cycles, within = divmod(days, CYCLE_DAYS)
    near = date.fromordinal(UNIX_DAY + within)
    year = near.year + 400 * cycles
    sign = "-" if year < 0 else "+" * (year > 9999)
    return f"{sign}{abs(year):04}-{near.month:02}-{near.day:02}"


def clock_text(us_of_day: int) -> str:
    """Returns a time of a day, in microseconds since midnight, in the form `10:00:00` or `10:00:00.000005`."""
    seconds, micros = divmod(us_of_day, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{micros:06}" if micros else text


@lru_cache(maxsize=1000)
def find_zone(name: str) -> ZoneInfo | int:
    """Returns the time zone of this name, a region or an offset in seconds. Raises ValueError."""
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    if found := OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(found[part] or 0) for part in (2, 3, 4))
        total = (hours * 60 + minutes) * 60 + seconds
        if minutes > 59 or seconds > 59 or total > 18 * 3600:
            raise ValueError(f"{name!r} is no offset from UTC")
        return -total if found[1] == "-" else total
    try:
        if REGION.fullmatch(name) is not None:
            return ZoneInfo(name)
    except (OSError, KeyError) as error:
        raise ValueError(f"{name!r} is no time zone that this machine knows") from error
    raise ValueError(f"{name!r} is no time zone")


def _days(found: re.Match[str]) -> int | None:
    year = -int(found[2]) if found[1] == "-" else int(found[2])
    cycles = 0 if 1 <= year <= 9999 else year // 400 - 1
    try:
        within = date(year - 400 * cycles, int(found[3] or 1), int(found[4] or 1)).toordinal()
    except ValueError:
        return None
    return within - UNIX_DAY + CYCLE_DAYS * cycles


def _local_us(found: re.Match[str]) -> int | None:
    days = _days(found)
    hour, minute, second = (int(found[part] or 0) for part in (5, 6, 7))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((found[8] or "")[:6].ljust(6, "0"))
    return days * DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros


def _to_utc(local_us: int, zone: ZoneInfo | int) -> int | None:
    if isinstance(zone, ZoneInfo):
        days, us_of_day = divmod(local_us, DAY_US)
        if not -1969 * 365 < days < 8000 * 365:
            days = days % CYCLE_DAYS + (18 if days > 0 else -4) * CYCLE_DAYS
        # Offsets change only at whole seconds. If a local time occurs twice, the first time counts, as in Java.
        local = datetime(1970, 1, 1) + timedelta(days=days, seconds=us_of_day // 1_000_000)
        offset = local.replace(tzinfo=zone).utcoffset()
        assert offset is not None, "a region has an offset at every time"
        zone = round(offset.total_seconds())
    found = local_us - zone * 1_000_000
    return found if -INT64_MAX <= found <= INT64_MAX else None
