"""Converts the values of messages to the types of columns, as Spark's `from_json` does in its mode PERMISSIVE.

If a member of an object does not fit its type, the member becomes null. If an element of an array or map does not fit,
the whole array or map becomes null. Other members keep their values.

Two cases differ from Spark. For a number above 127 in TINYINT, and for too many seconds in TIMESTAMP, Spark returns a
wrong value after an integer overflow. This module returns null.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from spark_export.decode.json_text import FloatText
from spark_export.decode.time_texts import INT32_MAX, INT64_MAX, days_of, local_us_of, time_reader
from spark_export.decode.value_text import (
    DECIMAL_DIGITS_MAX,
    Day,
    Instant,
    LocalTime,
    Unfit,
    json_text,
    members_of,
    unfit,
)

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value of a message, except null, to a value for Arrow. Raises Unfit."""

DECIMALS = Context(prec=80, rounding=ROUND_HALF_UP, Emin=-(10**9), Emax=10**9)
DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
BASE64 = re.compile(r"(?:[\0- ]*[A-Za-z0-9+/]{4})*(?:[\0- ]*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))?[\0- ]*")
NOT_FINITE = {"NaN": "nan", "+INF": "inf", "+Infinity": "inf", "Infinity": "inf", "-INF": "-inf", "-Infinity": "-inf"}


class Converters:
    """A factory of functions that convert values to column types.

    problems: one text for each value that did not fit its column. The caller empties the list before each message.
    """

    def __init__(self, zone: str) -> None:
        self.problems: list[str] = []
        self._read_time = time_reader(zone)

    def find(self, wanted: pa.DataType) -> Convert:
        """Returns the function that converts values to a type. Raises TypeError for an unsupported type."""
        types = pa.types
        if types.is_boolean(wanted):
            return to_boolean
        if types.is_signed_integer(wanted):
            return whole_number(wanted.bit_width)
        if types.is_float64(wanted):
            return to_double
        if types.is_float32(wanted):
            return to_float
        if types.is_decimal(wanted):
            return decimal_of(wanted.precision, wanted.scale)
        if types.is_string(wanted):
            return to_text
        if types.is_binary(wanted):
            return to_bytes
        if types.is_date32(wanted):
            return to_days
        if types.is_timestamp(wanted):
            return self._to_time if wanted.tz is not None else to_local_time
        if types.is_list(wanted):
            return self._list(self.find(wanted.value_type))
        if types.is_map(wanted) and types.is_string(wanted.key_type):
            return self._map(self.find(wanted.item_type))
        if types.is_struct(wanted):
            return self._struct({field.name: self.find(field.type) for field in wanted})
        raise TypeError(f"messages cannot be decoded into the type {wanted}")

    def _to_time(self, value: Any) -> int:
        kind = type(value)
        found = None
        if kind is str:
            found = self._read_time(value)
        elif kind is int:
            found = value * 1_000_000
        elif kind is Instant:
            found = int(value)
        if found is None or abs(found) > INT64_MAX:
            raise unfit(value, "TIMESTAMP")
        return found

    def _list(self, convert: Convert) -> Convert:
        def to_list(value: Any) -> list[Any]:
            if type(value) is not list:
                raise unfit(value, "ARRAY")
            return [None if each is None else convert(each) for each in value]

        return to_list

    def _map(self, convert: Convert) -> Convert:
        def to_map(value: Any) -> list[tuple[str, Any]]:
            return [(to_text(name), None if each is None else convert(each)) for name, each in members_of(value, "MAP")]

        return to_map

    def _struct(self, converts: Mapping[str, Convert]) -> Convert:
        def to_struct(value: Any) -> dict[str, Any]:
            row = dict.fromkeys(converts)
            self.fill(row, members_of(value, "STRUCT"), converts)
            return row

        return to_struct

    def fill(self, row: dict[str, Any], members: Iterable[tuple[Any, Any]], converts: Mapping[str, Convert]) -> None:
        """Converts the members of an object into a row. Of a repeated name, the last value that fits counts."""
        for name, value in members:
            convert = converts.get(name)
            if convert is None:
                continue
            try:
                row[name] = None if value is None else convert(value)
            except Unfit as error:
                self.problems.append(f"{name}: {error}")


def to_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise unfit(value, "BOOLEAN")
    return value


def whole_number(bits: int) -> Convert:
    """Returns a function that accepts whole numbers of `bits` bits. As in Spark, 1.0 is Unfit."""
    most = (1 << (bits - 1)) - 1
    name = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}[bits]

    def to_number(value: Any) -> int:
        if type(value) is int and -most - 1 <= value <= most:
            return value
        raise unfit(value, name)

    return to_number


def to_double(value: Any) -> float:
    kind = type(value)
    if kind is float:
        return float(value)
    number = NOT_FINITE.get(value) if kind is str else value
    if number is None or kind not in (str, int, FloatText, Decimal):
        raise unfit(value, "DOUBLE")
    try:
        return float(number)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except ValueError as error:
        raise unfit(value, "DOUBLE") from error


def to_float(value: Any) -> float:
    """Converts to a 32-bit float, with a single rounding. Raises Unfit."""
    double = to_double(value)
    bits = struct.unpack("<q", struct.pack("<d", double))[0]
    # The intermediate 64-bit value can give a wrong result only if it is halfway between two 32-bit floats.
    if (bits & 0x1FFFFFFF == 0x10000000 or abs(double) < 1.2e-38) and type(value) in (int, FloatText):
        found: float = pa.scalar(str(value)).cast(pa.float32()).as_py()
        return found
    try:
        return float(struct.unpack("<f", struct.pack("<f", double))[0])
    except OverflowError:
        return float("inf") if double > 0 else float("-inf")


def decimal_of(precision: int, scale: int) -> Convert:
    """Returns a function that converts to decimals, exactly. Digits beyond the scale are rounded half up."""
    unit, most = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)
    name = f"DECIMAL({precision},{scale})"

    def to_decimal(value: Any) -> Decimal:
        kind = type(value)
        text = value.replace(",", "") if kind is str else repr(value) if kind is float else value
        if kind is str or kind is FloatText:
            if DECIMAL_TEXT.fullmatch(text) is None:
                raise unfit(value, name)
        elif kind not in (int, float, Decimal):
            raise unfit(value, name)
        try:
            found = Decimal(text)
            if found.adjusted() > DECIMAL_DIGITS_MAX and found:
                raise unfit(value, name)
            rounded = found.quantize(unit, context=DECIMALS)
            if -most < rounded < most:
                return rounded
        except InvalidOperation as error:
            raise unfit(value, name) from error
        raise unfit(value, name)

    return to_decimal


def to_text(value: Any) -> str:
    """Returns a string as Spark writes it, and any other value as JSON."""
    if type(value) is str:
        # Spark writes a question mark for half of a surrogate pair.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return json_text(value)


def to_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str or BASE64.fullmatch(value) is None:
        raise unfit(value, "BINARY (base64 in JSON)")
    try:
        return base64.b64decode(value)
    except binascii.Error as error:
        raise unfit(value, "BINARY (base64 in JSON)") from error


def to_days(value: Any) -> int:
    found = None
    if type(value) is str:
        found = days_of(value)
    elif type(value) is Day and abs(value) <= INT32_MAX:
        found = int(value)
    if found is None:
        raise unfit(value, "DATE")
    return found


def to_local_time(value: Any) -> int:
    found = None
    if type(value) is str:
        found = local_us_of(value)
    elif type(value) is LocalTime:
        found = int(value)
    if found is None or abs(found) > INT64_MAX:
        raise unfit(value, "TIMESTAMP_NTZ")
    return found
