"""Checks the names and values of the options for reading and writing, and suggests a name for an unknown option.

This module needs neither a node nor Spark, so a wrong option fails in the call that contains the option. The functions
that parse a value raise ValueError for a wrong one, to which the name of the option is added.
"""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from spark_export.decode.options import DECODE_OPTIONS, decode_options
from spark_export.errors import OptionError
from spark_export.source.kafka_options import OTHER_NAMES, without_kafkas_names
from spark_export.source.node import REQUEST_TIMEOUT_MS, TLS_OPTIONS, TOKEN_OPTION, Way, tls_of, token_of
from spark_export.source.plan import BESIDE_PARTITIONS, DELETED, EARLIEST, LATEST, Offsets

P = TypeVar("P")
D = TypeVar("D")

SPARKS_OWN = ("checkpointlocation", "queryname")
"""Options, in lower case, that Spark passes to every source and that the format `stream_node` ignores."""
RECORDS_PER_PARTITION = 2_000_000
"""The default of `maxRecordsPerPartition`. A task costs about 0.15 s of a core, so it should read a million rows."""
UNIT_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The length in milliseconds of each unit of a duration. The unit names are those of Spark's Kafka source."""
UNIT_WORDS = {"microsecond": "us", "millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
"""The words for units in Spark's triggers (`5 minutes`), which Spark's Kafka source does not accept."""


def _option(name: str, parse: Callable[[str], Any] = str, default: Any = None) -> Any:
    """Returns a field for the option `name`. parse: converts its text, and raises ValueError for a wrong text."""
    return field(default=default, metadata={"name": name, "parse": parse})


def _at_least(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        with suppress(ValueError):
            if (number := int(value)) >= least:
                return number
        raise ValueError(f"it is a whole number of at least {least}")

    return parse


def _choice(**meanings: Any) -> Callable[[str], Any]:
    """Returns a function that converts each of these words, in upper or lower case, to its meaning."""

    def parse(value: str) -> Any:
        if value.lower() not in meanings:
            raise ValueError(f"it is {' or '.join(meanings)}")
        return meanings[value.lower()]

    return parse


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


_FLAG = _choice(true=True, false=False)


def parse_offsets(value: str) -> int | Offsets:
    """Parses offsets. Returns EARLIEST, LATEST, or the indexes of JSON such as `{"orders":{"0":23,"1":-1}}`."""
    if value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    return _by_partition(value, 'write "earliest", "latest" or JSON such as {"orders":{"0":23,"1":-1}}', EARLIEST)


def has_mark(offsets: int | Offsets | None, mark: int) -> bool:
    """Returns whether offsets are `mark` (EARLIEST or LATEST) for at least one partition."""
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
        numbers, gone = dict[int, int](), found[stream].get(DELETED) or ()
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


@dataclass(frozen=True)
class ReadOptions(Way):
    """The checked options of a read. docs/spark.md explains each option.

    starting, ending: EARLIEST, LATEST, or an index for each partition; `starting` is None if the option is absent.
    starting_time_us, ending_time_us: microseconds since 1970, for all partitions or for each; None without the option.
    decode, decode_options: the kind of messages and the options of `spark_export.decode.decoding.decoder`.
    marks: whether to look for messages that stand for null data; `PlannedReader` sets this.
    """

    path: str | None = _option("path")
    subscribe: tuple[str, ...] = _option("subscribe", _names, ())
    pattern: str | None = _option("subscribePattern", lambda text: compile_pattern(text).pattern)
    assign: dict[str, tuple[int, ...]] | None = _option("assign", parse_assign)
    starting: int | Offsets | None = _option("startingOffsets", parse_offsets)
    ending: int | Offsets = _option("endingOffsets", parse_offsets, LATEST)
    starting_time_us: int | Offsets | None = None
    ending_time_us: int | Offsets | None = None
    late_start_is_error: bool = _option(
        "startingOffsetsByTimestampStrategy", _choice(error=True, latest=False), default=True
    )
    max_offsets_per_trigger: int | None = _option("maxOffsetsPerTrigger", _at_least(1))
    min_offsets_per_trigger: int | None = _option("minOffsetsPerTrigger", _at_least(1))
    max_trigger_delay_s: float = _option("maxTriggerDelay", lambda text: parse_duration_ms(text) / 1000, 15 * 60.0)
    kafka_columns: bool = _option("columns", _choice(kafka=True, stream=False), default=True)
    min_partitions: int | None = _option("minPartitions", _at_least(1))
    max_records_per_partition: int = _option("maxRecordsPerPartition", _at_least(1), RECORDS_PER_PARTITION)
    fail_on_data_loss: bool = _option("failOnDataLoss", _FLAG, default=True)
    include_headers: bool = _option("includeHeaders", _FLAG, default=False)
    include_data: bool = _option("includeData", _FLAG, default=True)
    decode: str | None = _option("decode")
    decode_options: Mapping[str, str] = field(default_factory=dict)
    fetch_bytes: int = _option("fetchBytes", _at_least(4096), 4 * 1024 * 1024)
    verify_checksums: bool = _option("verifyChecksums", _FLAG, default=False)
    marks: bool = False


@dataclass(frozen=True)
class WriteOptions(Way):
    """The checked options of a write. docs/spark.md explains each option.

    is_for_all: whether the option `stream` decides for all rows, even if they have a column `stream`, as in Kafka's
    sink.
    exactly_once: whether a streaming query stores each row once.
    inserts: whether the rows come from an INSERT INTO a table of Spark's SQL.
    """

    stream: str | None = _option("stream")
    is_for_all: bool = False
    partitions: int | None = _option("partitions", _at_least(1))
    window: int = _option("window", _at_least(1), 1_000)
    nulls: str = _option("nulls", _choice(error="error", empty="empty", skip="skip", mark="mark"), "error")
    if_exists: str = _option("ifExists", _choice(append="append", ignore="ignore", error="error"), "append")
    write_id: str | None = _option("writeId")
    write_version: int = _option("writeVersion", _at_least(0), 0)
    exactly_once: bool = _option("delivery", _choice(exactlyonce=True, atleastonce=False), default=True)
    inserts: bool = False


def _names_of(kind: type[Way]) -> Iterator[str]:
    return (each.metadata["name"] for each in fields(kind) if each.metadata)


WAY_OPTIONS = ("endpoint", "requestTimeoutMs", *TLS_OPTIONS, TOKEN_OPTION)
TIME_OPTIONS = (
    *("startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingTimestamp", "endingOffsetsByTimestamp"),
)
READ_OPTIONS = (*WAY_OPTIONS, *_names_of(ReadOptions), *TIME_OPTIONS, *DECODE_OPTIONS)
WRITE_OPTIONS = (*WAY_OPTIONS, *_names_of(WriteOptions), "topic")


def own_names(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options under our names, see `without_kafkas_names`. Raises OptionError for an unknown option.

    Names may be in upper or lower case, since Spark sends some in lower case.
    """
    known = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    own: dict[str, str] = {}
    for name, value in without_kafkas_names(given).items():
        lower = name.lower()
        if lower in known:
            own[known[lower]] = value
        elif lower not in SPARKS_OWN:
            near = difflib.get_close_matches(lower, known, 1, 0.5)
            meant = OTHER_NAMES.get(lower) or (known[near[0]] if near else None)
            hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(sorted(known.values()))}"
            raise OptionError(f"there is no option {name!r}; {hint}")
    return own


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Checks the options of a read, given as text. Raises OptionError."""
    taken = _taken(own_names(given), READ_OPTIONS, "reading")
    starting_time_us = _time_us(taken, *TIME_OPTIONS[:2])
    if starting_time_us is not None:
        # As with Kafka, a time has precedence over an index.
        taken.pop("startingOffsets", None)
    options = ReadOptions(
        **_values(taken, ReadOptions),
        starting_time_us=starting_time_us,
        ending_time_us=_time_us(taken, *TIME_OPTIONS[2:]),
        decode_options={name: taken[name] for name in DECODE_OPTIONS if name in taken},
    )
    chosen = [bool(options.subscribe), options.pattern is not None, options.assign is not None]
    if sum(chosen) != 1:
        raise OptionError("say which streams to read by exactly one of subscribe, subscribePattern and assign")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    if has_mark(options.ending, EARLIEST):
        raise OptionError("endingOffsets cannot be earliest (-2): nothing would be read")
    if not options.include_data and options.verify_checksums:
        raise OptionError("verifyChecksums needs the data that includeData=false leaves out")
    decode_options((options.decode or "").lower(), options.decode_options)
    if not options.include_data and options.decode is not None:
        raise OptionError(f"decode={options.decode} needs the data that includeData=false leaves out")
    return options


def write_options(given: Mapping[str, str], streaming: bool = False) -> WriteOptions:
    """Checks the options of a write, given as text. Raises OptionError."""
    # A DataFrame's column `headers` is always written.
    own = {name: value for name, value in own_names(given).items() if name != "includeHeaders"}
    taken = _taken(own, WRITE_OPTIONS, "writing")
    # Spark passes the argument of `save` and of `start` as the option `path`.
    if "path" in taken:
        raise OptionError(
            f"path={taken['path']!r}: path names a data directory to read; rows are written to a node, so call "
            "save() or start() without a path, and give the node's address by the option endpoint"
        )
    where = "df.write, not for a streaming query" if streaming else "a streaming query; for df.write give writeId"
    for name in filter(taken.get, ("ifExists", "writeId", "writeVersion") if streaming else ("delivery",)):
        raise OptionError(f"the option {name} is for {where}")
    options = WriteOptions(**_values(taken, WriteOptions))
    if "topic" in taken:
        options = replace(options, stream=taken["topic"], is_for_all=True)
    if options.write_id is None and "writeVersion" in taken:
        raise OptionError("writeVersion counts the writes of a writeId; give writeId too")
    if options.if_exists != "append" and options.stream is None:
        raise OptionError("ifExists looks at the stream of the option stream; give this option")
    if options.if_exists != "append" and options.write_id is not None:
        raise OptionError("a write with a writeId may be repeated, so ifExists cannot be given with it")
    return options


def _taken(own: Mapping[str, str], allowed: tuple[str, ...], doing: str) -> dict[str, str]:
    """Returns the options that are not blank. Raises OptionError for one that is not among `allowed`."""
    for name in own:
        if name not in (*allowed, "path"):
            raise OptionError(f"the option {name!r} has no meaning when {doing}; leave it out")
    return {name: text for name, value in own.items() if (text := str(value or "").strip())}


def _values(taken: Mapping[str, str], kind: type[Way]) -> dict[str, Any]:
    """Returns the values for the fields of `Way` and of `kind`."""
    found: dict[str, Any] = {
        "endpoint": taken.get("endpoint", Way.endpoint),
        "tls": tls_of(taken),
        "token": token_of(taken),
        "request_timeout_s": _parsed(taken, "requestTimeoutMs", _at_least(1), REQUEST_TIMEOUT_MS) / 1000,
    }
    for each in fields(kind):
        if each.metadata:
            found[each.name] = _parsed(taken, each.metadata["name"], each.metadata["parse"], each.default)
    return found


def _time_us(taken: Mapping[str, str], for_all: str, for_each: str) -> int | Offsets | None:
    """Returns the option `for_all`, else `for_each`, else None. The times are converted to microseconds."""
    if for_all in taken:
        return _parsed(taken, for_all, _at_least(0), 0) * 1000
    return _parsed(taken, for_each, parse_times, None)


def _parsed(taken: Mapping[str, str], name: str, parse: Callable[[str], P], default: D) -> P | D:
    if name not in taken:
        return default
    try:
        return parse(taken[name])
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise OptionError(f"{name}={taken[name]!r}: {error}") from error
