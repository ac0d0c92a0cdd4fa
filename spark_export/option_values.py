"""Parses the values of options that are more than a word or a number: JSON of offsets and of times, and durations.

The functions raise ValueError for a wrong value. `spark_export.options` adds the name of the option to the error.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

EARLIEST, LATEST = -2, -1
"""The numbers for the earliest index and the latest index in the JSON of offsets, as in Spark's Kafka source."""

Offsets: TypeAlias = dict[str, dict[int, int]]
"""A number for each partition, as a mapping: stream name -> partition -> an index, or a time."""

BESIDE_PARTITIONS = ("created_us", "deleted")
"""The keys in the JSON of the offsets of a stream that are no numbers of partitions.

The offsets in a query's progress contain these keys. They may be used as starting offsets.
"""

UNIT_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The milliseconds of each unit of a duration, with the names that Spark uses. Without a unit, milliseconds are meant.
"""


def parse_offsets(value: str) -> int | Offsets:
    """Returns EARLIEST, LATEST, or the indexes in JSON such as `{"orders":{"0":23,"1":-1}}`."""
    if value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    return _by_partition(value, 'write "earliest", "latest" or JSON such as {"orders":{"0":23,"1":-1}}', EARLIEST)


def parse_times(value: str) -> Offsets:
    """Returns the times in JSON such as `{"orders":{"0":1700000000000}}`, in microseconds since 1970.

    The JSON has milliseconds since 1970.
    """
    found = _by_partition(value, 'write milliseconds since 1970 as JSON, such as {"orders":{"0":1700000000000}}', 0)
    return {stream: {number: 1000 * time_ms for number, time_ms in each.items()} for stream, each in found.items()}


def parse_duration_ms(value: str) -> int:
    """Returns the milliseconds of a duration such as `15m`, `90s` or `500`."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.lower())
    unit = UNIT_MS.get(found[2] or "ms") if found else None
    if found is None or unit is None:
        raise ValueError(f"write a number and one of {', '.join(UNIT_MS)}, such as 15m")
    return int(int(found[1]) * unit)


def parse_whole(value: object, least: int) -> int:
    """Returns a whole number, given as a number or as text, since keys of JSON objects are text.

    Raises ValueError if the number is less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a whole number")
    number = int(value)
    if number < least:
        raise ValueError(f"{number} is below {least}")
    return number


def _by_partition(value: str, form: str, least: int) -> Offsets:
    """Returns the numbers of a JSON object of objects. form: the text of the error for other JSON. least: the smallest
    number that is allowed.
    """
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ValueError(form) from error
    if not isinstance(found, dict) or not found or not all(isinstance(each, dict) for each in found.values()):
        raise ValueError(form)
    return {
        str(stream): {
            parse_whole(partition, 0): parse_whole(number, least)
            for partition, number in found[stream].items()
            if partition not in BESIDE_PARTITIONS
        }
        for stream in sorted(found)
    }
