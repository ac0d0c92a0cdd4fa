"""Checks the names and values of the options for reading and writing, and suggests a name for an unknown option. This
module needs neither a node nor Spark, so a wrong option fails in the call that contains the option.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from spark_export.decode.time_texts import find_zone
from spark_export.errors import OptionError
from spark_export.patterns import compile_pattern

P = TypeVar("P")
D = TypeVar("D")

EARLIEST, LATEST = -2, -1
"""The numbers for the earliest index and the latest index in the JSON of offsets, as in Spark's Kafka source."""

Offsets: TypeAlias = dict[str, dict[int, int]]
"""Offsets as a mapping: stream name -> partition -> index."""

READ_OPTIONS = (
    *("endpoint", "path", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets"),
    *("startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "includeData", "decode"),
    *("fetchBytes", "fetchRetries", "requestTimeoutMs", "verifyChecksums"),
    *("columnNameOfCorruptRecord", "columnNameOfProblem", "timeZone"),
)
WRITE_OPTIONS = ("endpoint", "stream", "partitions", "window", "fetchRetries", "requestTimeoutMs")

SPARKS_OWN = ("checkpointlocation",)
"""Options, in lower case, that Spark passes to every source. The format `stream_node` ignores these options."""

KAFKA_NAMES = {
    "kafka.bootstrap.servers": "endpoint",
    "bootstrap.servers": "endpoint",
    "topic": "stream",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "kafkaconsumer.polltimeoutms": "requestTimeoutMs",
    "fetchoffset.numretries": "fetchRetries",
}
"""The names of options of Spark's Kafka source, in lower case, and the names of the same options in this module."""

RECORDS_PER_PARTITION = 2_000_000
"""The default of `maxRecordsPerPartition`.

A task costs about 0.15 s of one core even if it reads little, so a task should read a million rows or more.
"""
FETCH_BYTES = 4 * 1024 * 1024
REQUEST_TIMEOUT_MS = 120_000
FETCH_RETRIES = 3
WINDOW = 1_000


@dataclass(frozen=True)
class ReadOptions:
    """The checked options of a read. `spark_export.source.StreamNodeSource` explains each option.

    starting, ending: EARLIEST, LATEST, or an index for each partition; starting is None if the option is absent.
    starting_time_us, ending_time_us: microseconds since 1970; None if the option is absent. late_start_is_error:
    whether a partition without a message at starting_time_us or later raises an error. corrupt_column, problem_column,
    time_zone: see `spark_export.decode.rows.RowRules`.
    """

    endpoint: str = "127.0.0.1:4000"
    path: str | None = None
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None
    starting: int | Offsets | None = None
    ending: int | Offsets = LATEST
    starting_time_us: int | None = None
    ending_time_us: int | None = None
    late_start_is_error: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int = RECORDS_PER_PARTITION
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_data: bool = True
    decode: str | None = None
    fetch_bytes: int = FETCH_BYTES
    fetch_retries: int = FETCH_RETRIES
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000
    verify_checksums: bool = False
    corrupt_column: str = "_corrupt_record"
    problem_column: str = "_problem"
    time_zone: str = "UTC"


@dataclass(frozen=True)
class WriteOptions:
    """The checked options of a write. stream: the stream for rows without a value in the column `stream`. partitions:
    the number of partitions that `stream` gets. window: the largest number of unconfirmed pushes.
    """

    endpoint: str = "127.0.0.1:4000"
    stream: str | None = None
    partitions: int | None = None
    window: int = WINDOW
    fetch_retries: int = FETCH_RETRIES
    request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000


def check_names(given: Mapping[str, str]) -> None:
    """Raises OptionError for an unknown option. The error suggests an option with a similar name, if there is one."""
    known = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    for name in given:
        lower = name.lower()
        if lower in known or lower in SPARKS_OWN:
            continue
        near = difflib.get_close_matches(lower, known, 1, 0.5)
        meant = KAFKA_NAMES.get(lower) or (known[near[0]] if near else None)
        hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(sorted(known.values()))}"
        raise OptionError(f"there is no option {name!r}; {hint}")


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Checks the options of a read, given as text. Raises OptionError."""
    check_names(given)
    taken = _Taken(given, READ_OPTIONS, "reading")
    start_s, end_s = taken.find("startingTimestamp"), taken.find("endingTimestamp")
    options = ReadOptions(
        endpoint=taken.find("endpoint") or ReadOptions.endpoint,
        path=taken.find("path"),
        subscribe=_names(taken.find("subscribe")),
        pattern=taken.parsed("subscribePattern", _pattern, None),
        assign=taken.parsed("assign", _assign, None),
        starting=taken.parsed("startingOffsets", _offsets, None),
        ending=taken.parsed("endingOffsets", _offsets, LATEST),
        starting_time_us=None if start_s is None else taken.number("startingTimestamp", 0, 0) * 1000,
        ending_time_us=None if end_s is None else taken.number("endingTimestamp", 0, 0) * 1000,
        late_start_is_error=taken.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "error",
        max_offsets_per_trigger=taken.optional_number("maxOffsetsPerTrigger", 1),
        min_partitions=taken.optional_number("minPartitions", 1),
        max_records_per_partition=taken.number("maxRecordsPerPartition", 1, RECORDS_PER_PARTITION),
        fail_on_data_loss=taken.flag("failOnDataLoss", True),
        include_headers=taken.flag("includeHeaders", False),
        include_data=taken.flag("includeData", True),
        decode=taken.find("decode"),
        fetch_bytes=taken.number("fetchBytes", 4096, FETCH_BYTES),
        fetch_retries=taken.number("fetchRetries", 0, FETCH_RETRIES),
        request_timeout_s=taken.number("requestTimeoutMs", 1, REQUEST_TIMEOUT_MS) / 1000,
        verify_checksums=taken.flag("verifyChecksums", False),
        corrupt_column=taken.find("columnNameOfCorruptRecord") or ReadOptions.corrupt_column,
        problem_column=taken.find("columnNameOfProblem") or ReadOptions.problem_column,
        time_zone=taken.parsed("timeZone", _zone, ReadOptions.time_zone),
    )
    _check_together(options)
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Checks the options of a write, given as text. Raises OptionError."""
    check_names(given)
    taken = _Taken(given, WRITE_OPTIONS, "writing")
    return WriteOptions(
        endpoint=taken.find("endpoint") or WriteOptions.endpoint,
        stream=taken.find("stream"),
        partitions=taken.optional_number("partitions", 1),
        window=taken.number("window", 1, WINDOW),
        fetch_retries=taken.number("fetchRetries", 0, FETCH_RETRIES),
        request_timeout_s=taken.number("requestTimeoutMs", 1, REQUEST_TIMEOUT_MS) / 1000,
    )


def _check_together(options: ReadOptions) -> None:
    """Raises OptionError for contradictory options, and unless exactly one option names the streams to read."""
    chosen = [bool(options.subscribe), options.pattern is not None, options.assign is not None]
    if sum(chosen) != 1:
        raise OptionError("say which streams to read by exactly one of subscribe, subscribePattern and assign")
    if options.starting_time_us is not None and options.starting is not None:
        raise OptionError("startingTimestamp and startingOffsets both say where to start; give one of them")
    if options.ending_time_us is not None and options.ending != LATEST:
        raise OptionError("endingTimestamp and endingOffsets both say where to end; give one of them")
    if options.ending == EARLIEST or _has(options.ending, EARLIEST):
        raise OptionError("endingOffsets cannot be earliest (-2): nothing would be read")
    if not options.include_data and options.verify_checksums:
        raise OptionError("verifyChecksums needs the data that includeData=false leaves out")
    if not options.include_data and options.decode is not None:
        raise OptionError(f"decode={options.decode} needs the data that includeData=false leaves out")


def _has(offsets: int | Offsets | None, mark: int) -> bool:
    return isinstance(offsets, dict) and any(mark in each.values() for each in offsets.values())


class _Taken:
    """A reader of the given options, which converts their values. Upper and lower case in names do not matter."""

    def __init__(self, given: Mapping[str, str], allowed: tuple[str, ...], doing: str) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        allowed_lower = {name.lower() for name in (*allowed, *SPARKS_OWN, "path")}
        for name in given:
            if name.lower() not in allowed_lower:
                raise OptionError(f"the option {name!r} has no meaning when {doing}; leave it out")

    def find(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return None if value is None or not str(value).strip() else str(value).strip()

    def parsed(self, name: str, parse: Callable[[str], P], default: D) -> P | D:
        value = self.find(name)
        if value is None:
            return default
        try:
            return parse(value)
        except (ValueError, TypeError, AttributeError, re.error) as error:
            raise OptionError(f"{name}={value!r}: {error}") from error

    def number(self, name: str, least: int, default: int) -> int:
        value = self.find(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise OptionError(f"{name}={value!r}: it is a whole number of at least {least}")
        return number

    def optional_number(self, name: str, least: int) -> int | None:
        return None if self.find(name) is None else self.number(name, least, least)

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = (self.find(name) or default).lower()
        if value not in allowed:
            raise OptionError(f"{name}={value!r}: it is {' or '.join(allowed)}")
        return value


def _names(value: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (value or "").split(",") if name.strip()))


def _pattern(value: str) -> str:
    compile_pattern(value)
    return value


def _zone(value: str) -> str:
    find_zone(value)
    return value


def _assign(value: str) -> dict[str, tuple[int, ...]]:
    found = json.loads(value)
    if not isinstance(found, dict) or not found:
        raise ValueError('write it as JSON, such as {"orders":[0,1]}')
    return {str(stream): tuple(sorted({_whole(each, 0) for each in found[stream]})) for stream in sorted(found)}


def _offsets(value: str) -> int | Offsets:
    if value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    found = json.loads(value)
    if not isinstance(found, dict) or not found:
        raise ValueError('write "earliest", "latest" or JSON such as {"orders":{"0":23,"1":-1}}')
    return {
        str(stream): {
            _whole(partition, 0): _whole(index, EARLIEST)
            for partition, index in found[stream].items()
            # The offsets in a query's progress contain these keys. They may be used as starting offsets.
            if partition not in ("created_us", "deleted")
        }
        for stream in sorted(found)
    }


def _whole(value: object, least: int) -> int:
    """Returns a whole number, given as a number or as text, since keys of JSON objects are text.

    Raises ValueError if the number is less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a whole number")
    number = int(value)
    if number < least:
        raise ValueError(f"{number} is below {least}")
    return number
