"""Turns the contents of messages into columns: `decoder` makes a MessageDecoder for one kind of messages.

The row of a message depends on this message alone. A message of another kind, and a value that does not fit its
column, give nulls. This module imports no Spark, so that the exporter and readers of Arrow use it, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from spark_export.decode.converters import DECIMALS, Convert, Converters, converted_together
from spark_export.decode.ddl import parse_ddl
from spark_export.decode.options import DecodeOptions, decode_options
from spark_export.decode.values import Day, FloatText, Instant, Malformed, Unfit, scaled
from spark_export.errors import OptionError

OWN_COLUMNS = ("cardinal", "block")
"""The kinds of messages whose decoder has columns of its own."""
KINDS = ("json", "cbor", "avro", "protobuf", *OWN_COLUMNS)
NEEDS = {"cbor": ("cbor2", "export"), "avro": ("fastavro", "avro"), "protobuf": ("protobuf", "protobuf")}
"""The package that decodes a kind of messages, and the extra that contains it."""
PROBLEMS_MAX = 8
"""The largest number of problems of one message that are listed in the column for problems."""
BLANK = " \t\n\r"

Load: TypeAlias = Callable[[bytes], Mapping[Any, Any]]
"""A function that parses one message into members by name, and raises Malformed for a wrong one."""
Problems: TypeAlias = defaultdict[int, list[str]]
"""By row, the problems of its message. A message without problems has no entry."""


class MessageDecoder:
    """Adds columns with the contents of messages to batches of messages. Where it is unpickled, it needs none of the
    files that its options named.

    fields: the columns that it adds; each can be null.
    """

    needs_headers = False

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self.fields = list(fields)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch (`key`, `data` or `value`, perhaps `headers`) with `fields` as its last columns."""
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        data = given["data"] if "data" in given else given["value"]
        made = self.arrays(given["key"], data, given.get("headers"))
        schema = pa.schema([*batch.schema, *self.fields])
        return pa.RecordBatch.from_arrays([*batch.columns, *made], schema=schema)

    def arrays(self, keys: pa.Array, data: pa.Array, headers: pa.Array | None) -> list[pa.Array]:
        """Returns one array for each of `fields`, with one row for each message."""
        raise NotImplementedError


class ObjectDecoder(MessageDecoder):
    """A decoder of messages that are objects. The user chooses the members that become columns.

    open_load: makes the function that parses a message; each process calls it once, since schemas cannot be pickled.
    """

    def __init__(self, fields: Iterable[pa.Field], options: DecodeOptions, open_load: Callable[[], Load]) -> None:
        """Raises OptionError for a column that cannot be decoded, and for a wrong schema."""
        super().__init__(fields)
        self._options = options
        self._open_load = open_load
        self._converters = Converters(options.zone)
        self._types = {field.name: field.type for field in self.fields}
        self._corrupt, self._problem = options.corrupt, options.problem
        self._converts: dict[str, Convert] = {}
        for name, wanted in self._types.items():
            is_text, is_bytes = pa.types.is_string(wanted), pa.types.is_binary(wanted)
            if name == self._corrupt and not (is_text or is_bytes):
                raise OptionError(f"the column {name!r} is the message as it is: ask for STRING or BINARY")
            if name == self._problem and not is_text:
                raise OptionError(f"the column {name!r} says what is wrong with a message: ask for STRING")
            if name in (self._corrupt, self._problem):
                continue
            try:
                self._converts[name] = self._converters.find(wanted)
            except TypeError as error:
                raise OptionError(f"the column {name!r}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fields, self._options, self._open_load)

    @cached_property
    def load(self) -> Load:
        return self._open_load()

    def arrays(self, keys: pa.Array, data: pa.Array, headers: pa.Array | None) -> list[pa.Array]:
        load, messages = self.load, data.to_pylist()
        values: dict[str, list[Any]] = {name: [] for name in self._converts}
        problems: Problems = defaultdict(list)
        for at, message in enumerate(messages):
            members: Mapping[Any, Any] = {}
            try:
                # In Kafka's columns, the data of a tombstone is null. Such a message has no members.
                members = {} if message is None else load(message)
            except Malformed as error:
                problems[at].append(str(error))
            # Only the values for columns are kept, so that Python's garbage collector has few objects to examine.
            for name, column in values.items():
                column.append(members.get(name))
        made = {name: self._column(name, column, problems) for name, column in values.items()}
        for name in {self._problem, self._corrupt} & self._types.keys():
            if name == self._problem:
                found: dict[int, Any] = {at: "; ".join(texts[:PROBLEMS_MAX]) for at, texts in problems.items()}
            elif pa.types.is_binary(self._types[name]):
                found = {at: messages[at] for at in problems}
            else:
                found = {at: messages[at].decode(errors="replace") for at in problems}
            made[name] = pa.array([found.get(at) for at in range(len(messages))], self._types[name])
        return [made[field.name] for field in self.fields]

    def _column(self, name: str, values: list[Any], problems: Problems) -> pa.Array:
        together = converted_together(values, self._types[name])
        if together is not None:
            return together
        convert, made = self._converts[name], list[Any]()
        for at, value in enumerate(values):
            try:
                made.append(None if value is None else convert(value))
            except Unfit as error:
                # A value that does not fit becomes null.
                made.append(None)
                problems[at].append(f"{name}: {error}")
            if self._converters.problems:
                problems[at] += self._converters.problems
                self._converters.problems.clear()
        return pa.array(made, self._types[name])


def decoder(
    kind: str, schema: str | Sequence[pa.Field] | None = None, options: Mapping[str, str] | None = None
) -> MessageDecoder:
    """Returns a decoder of messages of one kind. Raises OptionError.

    kind: json, cbor, avro, protobuf, cardinal or block.
    schema: the columns, as in Spark: `"id INT, amount DECIMAL(10,2), _problem STRING"`; or Arrow fields. `cardinal` and
        `block` have columns of their own, of which the schema may choose some.
    options: those that docs/decoding.md explains, such as `avroSchema`, by name; others are ignored.
    """
    kind = kind.lower()
    if kind not in KINDS:
        raise OptionError(f"decode={kind!r}: it is {', '.join(KINDS)}")
    checked = decode_options(kind, options or {})
    fields = parse_ddl(schema) if isinstance(schema, str) else None if schema is None else list(schema)
    if kind in OWN_COLUMNS:
        from spark_export.decode.own_columns import OwnDecoder

        return OwnDecoder(kind, fields)
    if fields is None:
        raise OptionError(f"decode={kind}: say which columns you want by a schema, such as 'index LONG, amount INT'")
    names = frozenset(field.name for field in fields)
    made = ObjectDecoder(fields, checked, partial(_open_load, kind, checked, names))
    # A wrong schema is refused here, in the call that contains it.
    _ = made.load
    return made


def _open_load(kind: str, options: DecodeOptions, names: frozenset[str]) -> Load:
    try:
        if kind == "avro":
            from spark_export.decode.avro import avro_reader

            return avro_reader(options)
        if kind == "protobuf":
            from spark_export.decode.protobuf import protobuf_reader

            return protobuf_reader(options, names)
        return json_reader() if kind == "json" else cbor_reader()
    except ImportError as error:
        package, extra = NEEDS[kind]
        needs = f"decode={kind} needs the package {package} on the driver and on every worker"
        raise OptionError(f"{needs}; install the extra `{extra}`") from error


def json_reader() -> Load:
    """Returns a function that parses one message, and raises Malformed. A blank message has no members.

    Bytes that are not UTF-8 become U+FFFD. The last of several members with one name counts. Text after the object is
    ignored.
    """
    parser = json.JSONDecoder(parse_float=FloatText, parse_constant=FloatText)

    def read(data: bytes) -> Mapping[Any, Any]:
        text = data.decode(errors="replace").lstrip(BLANK)
        if not text:
            return {}
        if text[0] != "{":
            raise Malformed("the message is not one JSON object")
        try:
            found: dict[str, Any] = parser.raw_decode(text)[0]
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the message is not JSON: {error}") from error
        return found

    return read


def _seconds(value: Any) -> Any:
    # Only these types are converted, since a decimal can have billions of digits.
    return Instant(round(Fraction(value) * 1_000_000)) if type(value) in (int, float) else None


def _decimal(value: Any) -> Any:
    exponent, digits = value
    return scaled(digits, exponent) if type(digits) is int else None


def _binary_decimal(value: Any) -> Any:
    exponent, digits = value
    return DECIMALS.multiply(Decimal(digits), DECIMALS.power(2, exponent)) if type(digits) is int else None


TAGS: Mapping[int, Callable[[Any], Any]] = {
    **dict.fromkeys((0, 1004), lambda value: value if type(value) is str else None),
    1: _seconds,
    4: _decimal,
    5: _binary_decimal,
    37: lambda value: UUID(bytes=value),
    100: lambda value: Day(value) if type(value) is int else None,
    # No column has a type for these tags.
    **dict.fromkeys((30, 35, 36, 260, 261), lambda value: None),
    # These refer to other values of the message: with them, a few kilobytes could become billions of values.
    **dict.fromkeys((25, 29), lambda value: None),
}
"""By CBOR tag, the function that converts the tagged value, or returns None if the value is wrong for the tag. cbor2
itself would refuse the whole message for one wrong value."""


def cbor_reader() -> Load:
    """Returns a function that decodes one message, and raises Malformed. Raises ImportError without cbor2.

    Bytes after the map are ignored. A tagged value that is wrong for its tag fits no column.
    """
    import cbor2

    def tagged_value(tag: int, value: Any, immutable: bool) -> Any:
        try:
            made = TAGS[tag](value)
        except (ArithmeticError, TypeError, ValueError):
            made = None
        return cbor2.CBORTag(tag, value) if made is None else made

    tagged = {tag: partial(tagged_value, tag) for tag in TAGS}

    def read(message: bytes) -> Mapping[Any, Any]:
        try:
            found = cbor2.loads(message, semantic_decoders=tagged)
        except MemoryError:
            raise
        except Exception as error:
            # cbor2 raises errors of many types for wrong bytes.
            raise Malformed(f"the message is not CBOR: {error or type(error).__name__}") from error
        if not isinstance(found, Mapping):
            raise Malformed("the message is not one CBOR map")
        return found

    return read
