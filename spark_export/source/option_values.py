"""Parses the values of options that are JSON with offsets, JSON with times, durations, or patterns of names.

The functions raise ValueError for a wrong value, to which `spark_export.source.options` adds the option name.
"""

from __future__ import annotations

import json
import re
import warnings
from typing import Any, TypeAlias

EARLIEST, LATEST = -2, -1
"""The numbers that mean the earliest index and the latest index in JSON with offsets, as in Spark's Kafka source."""
Offsets: TypeAlias = dict[str, dict[int, int]]
"""A mapping with one number for each partition: stream name -> partition -> index or time."""
BESIDE_PARTITIONS = ("created_us", "deleted")
"""The keys in the offsets of a progress that name no partition. `startingOffsets`, a copy of these, may have them."""
UNIT_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The length in milliseconds of each unit of a duration. The unit names are those of Spark's Kafka source."""
UNIT_WORDS = {"microsecond": "us", "millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
"""The words for units in Spark's triggers (`5 minutes`), which Spark's Kafka source does not accept."""


def parse_offsets(value: str) -> int | Offsets:
    """Parses offsets. Returns EARLIEST, LATEST, or the indexes of JSON such as `{"orders":{"0":23,"1":-1}}`."""
    if value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    return _by_partition(value, 'write "earliest", "latest" or JSON such as {"orders":{"0":23,"1":-1}}', EARLIEST)


def has_mark(offsets: int | Offsets | None, mark: int) -> bool:
    """Returns whether offsets are EARLIEST or LATEST, as `mark` says, for at least one partition."""
    return any(mark in each.values() for each in offsets.values()) if isinstance(offsets, dict) else offsets == mark


def parse_assign(value: str) -> dict[str, tuple[int, ...]]:
    """Parses the partitions of each stream, such as `{"orders":[0,1]}`."""
    found = load_object(value)
    if not isinstance(found, dict) or not found:
        raise ValueError('write it as JSON, such as {"orders":[0,1]}')
    return {str(stream): tuple(sorted({parse_whole(each, 0) for each in found[stream]})) for stream in sorted(found)}


def parse_times(value: str) -> Offsets:
    """Parses JSON such as `{"orders":{"0":1700000000000}}`, in milliseconds. Returns microseconds since 1970."""
    found = _by_partition(value, 'write milliseconds since 1970 as JSON, such as {"orders":{"0":1700000000000}}', 0)
    return {stream: {number: 1000 * time_ms for number, time_ms in each.items()} for stream, each in found.items()}


def parse_duration_ms(value: str) -> int:
    """Parses a duration such as `15m`, `90s`, `5 minutes` or a number of milliseconds. Returns milliseconds."""
    found = re.fullmatch(r"([0-9]+)\s*([a-z]*)", value.lower())
    name = found[2] or "ms" if found else ""
    unit = UNIT_MS.get(UNIT_WORDS.get(name.removesuffix("s"), name))
    if found is None or unit is None:
        raise ValueError(f"write a number and one of {', '.join(UNIT_MS)}, such as 15m")
    return int(int(found[1]) * unit)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression without Python's warnings, which an export would print. Raises re.error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)


def parse_whole(value: object, least: int) -> int:
    """Returns a whole number of at least `least`, given as a number or a text, as in JSON's keys. Raises ValueError."""
    is_text = isinstance(value, str) and re.fullmatch("-?[0-9]{1,19}", value) is not None
    if isinstance(value, bool) or not (isinstance(value, int) or is_text):
        raise ValueError(f"{value!r} is not a whole number")
    number = int(str(value))
    if number < least:
        raise ValueError(f"{number} is below {least}")
    return number


def _by_partition(value: str, form: str, least: int) -> Offsets:
    """Parses JSON of the form stream -> partition -> number of at least `least`."""
    try:
        found = load_object(value)
    except json.JSONDecodeError as error:
        raise ValueError(form) from error
    if not isinstance(found, dict) or not found or not all(isinstance(each, dict) for each in found.values()):
        raise ValueError(form)
    made: Offsets = {}
    for stream in sorted(found):
        # The offsets of a progress still have the index of a partition that was deleted.
        numbers, gone = dict[int, int](), found[stream].get(BESIDE_PARTITIONS[1]) or ()
        made[stream] = numbers
        for partition, number in found[stream].items():
            if partition in BESIDE_PARTITIONS or (at := parse_whole(partition, 0)) in gone:
                continue
            if at in numbers:
                raise ValueError(f"partition {at} of {stream!r} is named twice; name it once")
            numbers[at] = parse_whole(number, least)
    return made


def load_object(text: str) -> Any:
    """Parses JSON. Raises json.JSONDecodeError, and ValueError if an object has the same name twice."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict[str, Any]()
        for name, value in pairs:
            if name in found:
                raise ValueError(f"{name!r} is named twice; name it once")
            found[name] = value
        return found

    return json.loads(text, object_pairs_hook=checked)
