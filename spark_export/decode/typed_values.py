"""Converts the values of messages to the types of columns, as Spark's `from_json` does in its mode PERMISSIVE.

A value that does not fit makes no other value wrong: a member of an object becomes null alone, while an element that
does not fit makes its whole array or map null. Two values of `from_json` are left out on purpose because they are
wrong: a whole number above 127 for TINYINT, which Spark wraps, and a number of seconds that is too large for TIMESTAMP.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from spark_export.decode.json_text import FloatText, Pairs
from spark_export.decode.time_texts import INT64_MAX, UNIX_DAY, days_of, local_us_of, time_reader

Convert: TypeAlias = Callable[[Any], Any]
"""A function from a value of a message, not null, to a value for Arrow. It raises Unfit."""

DECIMALS = Context(prec=80, rounding=ROUND_HALF_UP, Emin=-(10**9), Emax=10**9)
DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
DECIMAL_DIGITS_MAX = 40
TEXT_PARTS_MAX = 5_000_000
"""The largest number of parts of a value that is written as text. A CBOR value may contain itself."""
TEXT_BITS_MAX = 10_000
"""The largest number of bits of a whole number that becomes text. Python refuses to write much larger ones."""
BASE64 = re.compile(r"(?:[\0- ]*[A-Za-z0-9+/]{4})*(?:[\0- ]*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))?[\0- ]*")
NOT_FINITE = {"NaN": "nan", "+INF": "inf", "+Infinity": "inf", "Infinity": "inf", "-INF": "-inf", "-Infinity": "-inf"}
QUOTED = re.compile(r'["\\\x00-\x1f]')
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Unfit(ValueError):
    """A value that does not fit the type of its column. The text says which value and which type."""


class Converters:
    """Makes the functions that convert values.

    problems: what did not fit, one text for each value. The caller empties the list before each message.
    """

    def __init__(self, zone: str) -> None:
        """zone: the zone of times whose text names none. Raises ValueError if there is no such zone."""
        self.problems: list[str] = []
        self._read_time = time_reader(zone)

    def find(self, wanted: pa.DataType) -> Convert:
        """Returns the function for a type. Raises TypeError for a type that this module cannot make."""
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
            found = value * 1_000_000 if abs(value) <= INT64_MAX // 1_000_000 else None
        elif kind is datetime and value.tzinfo is not None:
            found = microseconds(value - EPOCH)
        if found is None:
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
        """Puts the members of an object into a row. Of a name that is there twice, the last value that fits counts."""
        for name, value in members:
            convert = converts.get(name)
            if convert is None:
                continue
            try:
                row[name] = None if value is None else convert(value)
            except Unfit as error:
                self.problems.append(f"{name}: {error}")


def unfit(value: Any, wanted: str) -> Unfit:
    shown = value_text(value)
    return Unfit(f"{shown if len(shown) <= 60 else shown[:57] + '...'} is no {wanted}")


def value_text(value: Any) -> str:
    """Returns a value as text for a person. Values with parts may be deep or endless, so they are only named."""
    if isinstance(value, list):
        return "an object" if isinstance(value, Pairs) else "an array"
    if isinstance(value, Mapping):
        return "an object"
    if type(value) is int and value.bit_length() > TEXT_BITS_MAX:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, FloatText | int | float | str | bytes):
        return str(value) if type(value) in (FloatText, int) else repr(value)
    return f"a {type(value).__name__}"


def members_of(value: Any, wanted: str) -> Iterable[tuple[Any, Any]]:
    if type(value) is Pairs:
        return value
    if isinstance(value, dict) and all(type(name) is str for name in value):
        return value.items()
    raise unfit(value, wanted)


def to_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise unfit(value, "BOOLEAN")
    return value


def whole_number(bits: int) -> Convert:
    """Returns the function for signed whole numbers of so many bits. 1.0 is none, as in Spark."""
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
    if kind is str:
        value = NOT_FINITE.get(value, "")
    elif kind is not int and kind is not FloatText and kind is not Decimal:
        raise unfit(value, "DOUBLE")
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except ValueError as error:
        raise unfit(value, "DOUBLE") from error


def to_float(value: Any) -> float:
    """Rounds once, from the text or number to 32 bits."""
    double = to_double(value)
    bits = struct.unpack("<q", struct.pack("<d", double))[0]
    # Rounding to 64 bits first matters only where that ends in the middle between two numbers of 32 bits.
    if (bits & 0x1FFFFFFF == 0x10000000 or abs(double) < 1.2e-38) and type(value) in (int, FloatText):
        found: float = pa.scalar(str(value)).cast(pa.float32()).as_py()
        return found
    try:
        return float(struct.unpack("<f", struct.pack("<f", double))[0])
    except OverflowError:
        return float("inf") if double > 0 else float("-inf")


def decimal_of(precision: int, scale: int) -> Convert:
    """Returns the function for decimals: exact, with further digits rounded half up."""
    unit, most = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)
    name = f"DECIMAL({precision},{scale})"

    def to_decimal(value: Any) -> Decimal:
        kind = type(value)
        text = value.replace(",", "") if kind is str else value
        if kind is str or kind is FloatText:
            if DECIMAL_TEXT.fullmatch(text) is None:
                raise unfit(value, name)
        elif kind is not int and kind is not Decimal:
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
    """Returns a text as it is, and every other value as its JSON text, as Spark writes it."""
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
    elif type(value) is date:
        found = value.toordinal() - UNIX_DAY
    if found is None:
        raise unfit(value, "DATE")
    return found


def to_local_time(value: Any) -> int:
    found = None
    if type(value) is str:
        found = local_us_of(value)
    elif type(value) is datetime and value.tzinfo is None:
        found = microseconds(value - EPOCH.replace(tzinfo=None))
    if found is None or abs(found) > INT64_MAX:
        raise unfit(value, "TIMESTAMP_NTZ")
    return found


def microseconds(passed: Any) -> int:
    """Returns a time difference in microseconds, exactly."""
    return int((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds)


def json_text(value: Any) -> str:
    """Returns a value as JSON without blanks, as Spark writes a value for a column of text. Works without recursion."""
    parts: list[str] = []
    # What is still to be written: values, and texts that are ready, each in a tuple of its own.
    waiting: list[Any] = [value]
    while waiting:
        if len(parts) > TEXT_PARTS_MAX:
            raise unfit("a value of endless parts", "STRING")
        each = waiting.pop()
        kind = type(each)
        if kind is tuple:
            parts.append(each[0])
        elif kind is str:
            parts.append(quoted(each))
        elif kind is list:
            ahead: list[Any] = [("[",)]
            for at, item in enumerate(each):
                ahead += [(",",), item] if at else [item]
            waiting += reversed([*ahead, ("]",)])
        elif kind is Pairs or kind is dict:
            ahead = [("{",)]
            for at, (name, item) in enumerate(members_of(each, "STRING")):
                ahead += [("," * bool(at) + quoted(name) + ":",), item]
            waiting += reversed([*ahead, ("}",)])
        elif isinstance(each, date | time | UUID):
            text = str(each) if isinstance(each, UUID) else each.isoformat()
            parts.append(text if each is value else quoted(text))
        else:
            parts.append(scalar_text(each))
    return "".join(parts)


def quoted(text: str) -> str:
    text = text if text.isascii() else text.encode("utf-8", "replace").decode()
    escaped = QUOTED.sub(lambda found: SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04X}", text)
    return f'"{escaped}"'


def scalar_text(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int and value.bit_length() <= TEXT_BITS_MAX:
        return str(value)
    if type(value) is FloatText or type(value) is float:
        return double_text(float(value))
    if type(value) is Decimal and value.is_finite():
        # A few bytes can be a number of billions of digits.
        return format(value, "f") if -DECIMAL_DIGITS_MAX <= value.adjusted() <= DECIMAL_DIGITS_MAX else str(value)
    raise unfit(value, "STRING")


def double_text(value: float) -> str:
    """Returns a number as Java writes it: `1.5`, `100000.0`, `1.0E10`; in quotes if it is not finite, as in JSON."""
    if value != value or value in (float("inf"), float("-inf")):
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if "e" not in repr(value) else format(Decimal(repr(value)), "f")
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    exponent += len(digits) - 1
    if len(shown) == 1:
        # Java writes at least two digits, and those nearest to the number.
        near = f"{abs(value):.1e}"
        shown, exponent = near[0] + near[2], int(near[4:])
        shown = shown.rstrip("0") or "0"
    return f"{'-' * sign}{shown[0]}.{shown[1:] or '0'}E{exponent}"
