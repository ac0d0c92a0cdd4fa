"""Parses and writes dates and times in text. It parses the forms that Spark's `from_json` accepts without a format.

A date has the form `2026`, `2026-01` or `2026-1-5`. After the third form, a blank or `T` and any text can follow. A
time consists of a date, a blank or `T`, hours, minutes, seconds with a fraction, and a time zone. All parts after the
year are optional. Digits after the microseconds are ignored.

This module refuses two forms that Spark accepts. The first is a time without a date, which in Spark gets the date of
the query. The second is a text with the number of days since 1970, because the text is more likely a date in another
form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
TIME = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
OFFSET = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?")
REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
TRIMMED = "".join(map(chr, (*range(0x21), 0x7F)))

SHORT_ZONES = {
    **{"EST": "-05:00", "HST": "-10:00", "MST": "-07:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney"},
    **{"AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage"},
    **{"BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns"},
    **{"CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris"},
    **{"IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia"},
    **{"NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix"},
    **{"PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal"},
    "VST": "Asia/Ho_Chi_Minh",
}
"""Maps each short zone name that Spark accepts to a time zone, as Java's class ZoneId does."""

UNIX_DAY = date(1970, 1, 1).toordinal()
CYCLE_DAYS = 146_097
DAY_US = 86_400_000_000
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def days_of(text: str) -> int | None:
    """Parses a date. Returns the days since 1970-01-01; None if the text is not a date."""
    return _first_reading(text, _days_of)


def time_reader(zone: str) -> Callable[[str], int | None]:
    """Returns a function that parses a time into microseconds since 1970 (UTC), or None. Raises ValueError.

    zone: the time zone for texts without a zone.
    """
    usual = find_zone(zone)
    zones: dict[str, ZoneInfo | int] = {}

    def read(text: str) -> int | None:
        found = TIME.fullmatch(text.strip(TRIMMED))
        local_us = None if found is None else _local_us(found)
        if found is None or local_us is None:
            return None
        name, where = found[9], usual
        if name is not None:
            name = name.strip(TRIMMED)
            if name not in zones:
                try:
                    zones[name] = find_zone(name)
                except ValueError:
                    return None
            where = zones[name]
        return _to_utc(local_us, where)

    return lambda text: _first_reading(text, read)


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


def find_zone(name: str) -> ZoneInfo | int:
    """Returns Java's time zone of this name, a region or an offset in seconds. Raises ValueError."""
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-])([0-9]{2}):([0-9])$", r"\1\2:0\3", name)
    name = SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    prefix = next((each for each in ("UTC", "GMT", "UT") if name.startswith((f"{each}+", f"{each}-"))), "")
    if name.startswith(("+", "-")) or prefix:
        return _offset_seconds(name[len(prefix) :])
    if REGION.fullmatch(name) is None or name.startswith(("right/", "posix/")):
        raise ValueError(f"{name!r} is no time zone")
    try:
        return ZoneInfo(name)
    except (OSError, KeyError) as error:
        raise ValueError(f"{name!r} is no time zone that this machine knows") from error


def _first_reading(text: str, read: Callable[[str], int | None]) -> int | None:
    """Parses a text with `read`, perhaps without its first `GMT`, as Spark does for old forms of times."""
    found = read(text)
    return read(text.replace("GMT", "", 1)) if found is None and "GMT" in text else found


def _days_of(text: str) -> int | None:
    found = DATE.fullmatch(text.strip(TRIMMED))
    days = None if found is None else _days(found)
    return days if days is not None and -INT32_MAX <= days <= INT32_MAX else None


def _days(found: re.Match[str]) -> int | None:
    year = -int(found[2]) if found[1] == "-" else int(found[2])
    # Python supports the years 1 to 9999. The calendar repeats after 400 years.
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
    if isinstance(zone, int):
        found = local_us - zone * 1_000_000
    else:
        # Python supports the years 1 to 9999. For other years, the offset is that of a year 400·n years away.
        days, us_of_day = divmod(local_us, DAY_US)
        near = days
        if not -1969 * 365 < days < 8000 * 365:
            near = days % CYCLE_DAYS + (18 if days > 0 else -4) * CYCLE_DAYS
        # Offsets change only at whole seconds. If a local time occurs twice, the first time counts, as in Java.
        local = datetime(1970, 1, 1) + timedelta(days=near, seconds=us_of_day // 1_000_000)
        offset = local.replace(tzinfo=zone).utcoffset()
        assert offset is not None, "a region has an offset at every time"
        found = local_us - round(offset.total_seconds()) * 1_000_000
    return found if -INT64_MAX <= found <= INT64_MAX else None


def _offset_seconds(text: str) -> int:
    found = OFFSET.fullmatch(text)
    if found is None or (found[3] is not None and len(found[2]) != 2):
        raise ValueError(f"{text!r} is no offset from UTC")
    hours, minutes, seconds = (int(found[part] or 0) for part in (2, 3, 4))
    total = (hours * 60 + minutes) * 60 + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        raise ValueError(f"{text!r} is no offset from UTC")
    return -total if found[1] == "-" else total
