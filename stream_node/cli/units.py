"""Parses times and sizes as people write them on the command line, in a file or in the environment."""

from __future__ import annotations

import re

DURATION = re.compile(r"(\d+)([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
SIZE = re.compile(r"(\d+)\s*(?:([kKMGT])(i?)B|B)?")
POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
DAYS_MAX = 365_000
"""The longest duration, about a thousand years. A longer one is a mistake, and dates cannot be computed with it."""


class UnitError(ValueError):
    """The error of a time or a size that cannot be parsed. The text says which forms are allowed."""


def parse_duration(text: str) -> int:
    """Parses a duration such as 30s, 15m, 2h, 7d or 1w into seconds. Raises UnitError."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is not a duration: a number and s, m, h, d or w, such as 7d")
    seconds = int(match[1]) * SECONDS[match[2]]
    if seconds > DAYS_MAX * SECONDS["d"]:
        raise UnitError(f"{text} is too long: at most {DAYS_MAX}d")
    return seconds


def parse_size(text: str) -> int:
    """Parses a size such as 1000, 64kB, 64KiB, 10MB or 1GiB into bytes. Raises UnitError."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is not a size: a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB")
    unit = 1 if match[2] is None else (1024 if match[3] else 1000) ** POWERS[match[2]]
    return int(match[1]) * unit
