"""Converts the values of messages to the types of columns, as Spark's `from_json` does in its mode PERMISSIVE.

A member of an object that does not fit its type becomes null, and the other members keep their values. If an element of
an array or map does not fit, the whole array or map becomes null. A number that overflows its type, such as 128 in
TINYINT, becomes null; `from_json` returns a wrong number.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_export.decode.times import INT32_MAX, INT64_MAX, days_of, local_us_of, time_reader
from spark_export.decode.values import (
    DECIMAL_DIGITS_MAX,
    Day,
    Float32,
    FloatText,
    Instant,
    LocalTime,
    Unfit,
    members_of,
    text_of,
    unfit,
)

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value of a message, except null, to a value for Arrow. Raises Unfit."""

DECIMALS = Context(prec=80, rounding=ROUND_HALF_UP, Emin=-(10**9), Emax=10**9)
DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
BASE64 = re.compile(r"(?:[\0- ]*[A-Za-z0-9+/]{4})*(?:[\0- ]*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))?[\0- ]*")
NOT_FINITE = {"NaN": "nan", "+INF": "inf", "+Infinity": "inf", "Infinity": "inf", "-INF": "-inf", "-Infinity": "-inf"}
ZONED = r"^[0-9]{4}-[0-9-]{5}[T ][0-9:]{8}(\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
"""Matches texts of times that Arrow converts to the same values as Spark, or refuses."""
INTEGERS = {pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT"}


class Converters(threading.local):
    """Makes the functions that convert values to column types. zone: the time zone of times whose text has none.

    problems: one text for each member of a STRUCT that did not fit. The caller empties the list after each value. Each
        thread has its own list, since the threads of an export share one decoder.
    """

    def __init__(self, zone: str) -> None:
        self.problems: list[str] = []
        self._read_time = time_reader(zone)

    def find(self, wanted: pa.DataType) -> Convert:
        """Returns the function that converts values to a type. Raises TypeError for an unsupported type."""
        types = pa.types
        if wanted in CONVERTS:
            return CONVERTS[wanted]
        if types.is_decimal(wanted):
            return _decimal_of(wanted.precision, wanted.scale)
        if types.is_timestamp(wanted) and wanted.unit == "us":
            return self._to_time
        if types.is_list(wanted):
            return self._list(self.find(wanted.value_type))
        if types.is_map(wanted) and types.is_string(wanted.key_type):
            return self._map(self.find(wanted.item_type))
        if types.is_struct(wanted):
            return self._struct({field.name: self.find(field.type) for field in wanted})
        raise TypeError(f"messages cannot be decoded into the type {wanted}")

    def _to_time(self, value: Any) -> int:
        given = Instant(value * 1_000_000) if type(value) is int else value
        return _moment(given, "TIMESTAMP", self._read_time, Instant, shown=value)

    def _list(self, convert: Convert) -> Convert:
        def to_list(value: Any) -> list[Any]:
            if type(value) is not list:
                raise unfit(value, "ARRAY")
            return [None if each is None else convert(each) for each in value]

        return to_list

    def _map(self, convert: Convert) -> Convert:
        def to_map(value: Any) -> list[tuple[str, Any]]:
            return [(text_of(name), None if each is None else convert(each)) for name, each in members_of(value, "MAP")]

        return to_map

    def _struct(self, converts: Mapping[str, Convert]) -> Convert:
        def to_struct(value: Any) -> dict[str, Any]:
            row = dict.fromkeys(converts)
            for name, member in members_of(value, "STRUCT"):
                convert = converts.get(name)
                try:
                    row |= {} if convert is None else {name: None if member is None else convert(member)}
                except Unfit as error:
                    self.problems.append(f"{name}: {error}")
            return row

        return to_struct


def converted_together(values: list[Any], wanted: pa.DataType) -> pa.Array | None:
    """Returns the values as Arrow converts them in one call; None if `Converters` could give other results."""
    types, kinds = pa.types, set(map(type, values)) - {type(None)}
    try:
        if kinds <= {DIRECT.get(wanted)}:
            return pa.array(values, wanted)
        if kinds <= {int, FloatText} and (types.is_floating(wanted) or types.is_decimal(wanted)):
            return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(wanted)
        if kinds <= {str} and (types.is_date32(wanted) or (types.is_timestamp(wanted) and wanted.tz is not None)):
            texts = pa.array(values, pa.string())
            if types.is_date32(wanted) or pc.all(pc.match_substring_regex(texts, ZONED)).as_py() is not False:
                return texts.cast(wanted)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError):
        # A value does not fit, or Arrow and Spark read it differently.
        pass
    return None


def _to_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise unfit(value, "BOOLEAN")
    return value


def _whole_number(wanted: pa.DataType) -> Convert:
    # As in Spark, 1.0 is no whole number.
    most = (1 << (wanted.bit_width - 1)) - 1

    def to_number(value: Any) -> int:
        if type(value) is int and -most - 1 <= value <= most:
            return value
        raise unfit(value, INTEGERS[wanted])

    return to_number


def _to_double(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    number: Any = NOT_FINITE.get(value) if type(value) is str else value
    if type(number) not in (str, int, FloatText, Decimal):
        raise unfit(value, "DOUBLE")
    try:
        return float(number)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except ValueError as error:
        raise unfit(value, "DOUBLE") from error


def _to_float(value: Any) -> float:
    double = _to_double(value)
    # The text avoids a second rounding. A whole number of 200 bits or more is an infinity anyway, and Python refuses to
    # write thousands of digits.
    is_exact = type(value) is FloatText or (type(value) is int and value.bit_length() < 200)
    text = str(value) if is_exact else repr(double)
    found: float = pa.scalar(text).cast(pa.float32()).as_py()
    return found


def _decimal_of(precision: int, scale: int) -> Convert:
    unit, most = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)
    name = f"DECIMAL({precision},{scale})"

    def to_decimal(value: Any) -> Decimal:
        kind = type(value)
        text = value.replace(",", "") if kind is str else repr(value) if kind in (float, Float32) else value
        is_number = DECIMAL_TEXT.fullmatch(text) is not None if isinstance(text, str) else kind in (int, Decimal)
        try:
            found = Decimal(text) if is_number else None
            if found is not None and (not found or found.adjusted() <= DECIMAL_DIGITS_MAX):
                rounded = found.quantize(unit, context=DECIMALS)
                if -most < rounded < most:
                    return rounded
        except InvalidOperation as error:
            raise unfit(value, name) from error
        raise unfit(value, name)

    return to_decimal


def _to_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    try:
        if type(value) is str and BASE64.fullmatch(value) is not None:
            return base64.b64decode(value)
    except binascii.Error as error:
        raise unfit(value, "BINARY (base64 in JSON)") from error
    raise unfit(value, "BINARY (base64 in JSON)")


def _moment(
    value: Any, name: str, read: Callable[[str], int | None], kind: type[int], most: int = INT64_MAX, shown: Any = None
) -> int:
    """Returns a time as a number: from a text that `read` parses, or an object of the class `kind`. Raises Unfit."""
    found = read(value) if type(value) is str else int(value) if type(value) is kind else None
    if found is None or abs(found) > most:
        raise unfit(value if shown is None else shown, name)
    return found


CONVERTS: Mapping[pa.DataType, Convert] = {
    pa.bool_(): _to_boolean,
    **{each: _whole_number(each) for each in INTEGERS},
    pa.float64(): _to_double,
    pa.float32(): _to_float,
    pa.string(): text_of,
    pa.binary(): _to_bytes,
    pa.date32(): lambda value: _moment(value, "DATE", days_of, Day, INT32_MAX),
    pa.timestamp("us"): lambda value: _moment(value, "TIMESTAMP_NTZ", local_us_of, LocalTime),
}
"""The functions for the types that need neither a parameter nor a time zone."""
DIRECT = {pa.bool_(): bool, pa.binary(): bytes, pa.string(): str, **dict.fromkeys(INTEGERS, int)}
"""By column type, the type of the values that Arrow converts as `Converters` does."""
