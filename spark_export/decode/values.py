"""The values of decoded messages before they become columns, and the text of a value in a STRING column.

A value is a str, int, float, bool, bytes, Decimal, list, dict or None, or one of the classes of this module. This
module parses no message and no column type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from spark_export.decode.times import DAY_US, INT64_MAX, clock_text, day_text

TEXT_PARTS_MAX = 5_000_000
"""The largest number of parts of a value that is formatted as text; a CBOR value can contain itself."""
TEXT_BITS_MAX = 10_000
"""The largest number of bits of a whole number as text; Python refuses to format much larger numbers."""
DECIMAL_DIGITS_MAX = 40
"""The largest power of ten in a decimal that is written out in full; DECIMAL has up to 38 digits."""
ESCAPED = re.compile(r'["\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Malformed(ValueError):
    """A message does not have the expected format, such as JSON or Avro. The text gives the reason."""


class Unfit(ValueError):
    """A value does not fit the type of its column. The text names the value and the type."""


class FloatText(str):
    """A JSON number as text: a number with a fraction or an exponent, `NaN` or an infinity."""

    __slots__ = ()


class Float32(float):
    """A floating-point number of 32 bits, whose text has only the digits that 32 bits hold: 0.1."""

    def __repr__(self) -> str:
        return repr(float(pa.scalar(float(self), pa.float32()).cast(pa.string()).as_py()))


class Moment(int):
    """A time of a binary format, as a number of `unit`. It can be outside the range of Python's times."""

    unit = "µs after 1970"


class Instant(Moment):
    """A time in UTC."""


class LocalTime(Moment):
    """A time of a clock without a zone."""


class TimeOfDay(Moment):
    unit = "µs after midnight"


class Day(Moment):
    unit = "days after 1970"


def scaled(number: int, exponent: int) -> Decimal:
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, exponent))


def moment_text(value: Moment) -> str | None:
    """Returns a time in the form of ISO 8601; None for a time of day that no day has, and for one beyond 64 bits."""
    if isinstance(value, TimeOfDay):
        return clock_text(value) if 0 <= value < DAY_US else None
    if abs(value) > INT64_MAX:
        return None
    if isinstance(value, Day):
        return day_text(value)
    days, us_of_day = divmod(value, DAY_US)
    return f"{day_text(days)}T{clock_text(us_of_day)}{'+00:00' if isinstance(value, Instant) else ''}"


def unfit(value: Any, wanted: str) -> Unfit:
    if isinstance(value, list | Mapping):
        shown = "an array" if isinstance(value, list) else "an object"
    elif isinstance(value, int) and value.bit_length() > TEXT_BITS_MAX:
        shown = f"a number of {value.bit_length()} bits"
    elif isinstance(value, Moment):
        shown = moment_text(value) or f"{int(value)} {value.unit}"
    elif isinstance(value, FloatText | int | float | str | bytes):
        shown = str(value) if type(value) in (FloatText, int) else repr(value)
    else:
        shown = f"a {type(value).__name__}"
    return Unfit(f"{shown if len(shown) <= 60 else shown[:57] + '...'} is no {wanted}")


def members_of(value: Any, wanted: str) -> Iterable[tuple[str, Any]]:
    """Returns the members of an object with text keys. Raises Unfit."""
    if isinstance(value, dict) and all(type(name) is str for name in value):
        return value.items()
    raise unfit(value, wanted)


def text_of(value: Any) -> str:
    """Returns a string as it is, and a number or any other value as JSON in the form that Spark writes. Raises Unfit.

    A lone surrogate becomes `?` in a string, and an escape in JSON.
    """
    if type(value) is str:
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    # No recursion, so that deep nesting cannot exhaust the stack. In `waiting`, a tuple is a finished text.
    parts: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        if len(parts) > TEXT_PARTS_MAX:
            raise Unfit(f"a value of more than {TEXT_PARTS_MAX} parts is no STRING")
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
        elif kind is dict:
            ahead = [("{",)]
            for at, (name, item) in enumerate(members_of(each, "STRING")):
                ahead += [("," * bool(at) + quoted(name) + ":",), item]
            waiting += reversed([*ahead, ("}",)])
        elif isinstance(each, Moment | UUID):
            text = str(each) if isinstance(each, UUID) else moment_text(each)
            if text is None:
                raise unfit(each, "STRING")
            parts.append(text if each is value else quoted(text))
        else:
            parts.append(_scalar_text(each))
    return "".join(parts)


def quoted(text: str) -> str:
    return f'"{ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex().upper()
    return SHORT_ESCAPES.get(found[0]) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _scalar_text(value: Any) -> str:
    kind = type(value)
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind is int and value.bit_length() <= TEXT_BITS_MAX:
        return str(value)
    if kind in (FloatText, float, Float32):
        return double_text(value if kind is Float32 else float(value))
    if kind is Decimal and value.is_finite():
        # A CBOR decimal of a few bytes can have billions of digits.
        return format(value, "f") if -DECIMAL_DIGITS_MAX <= value.adjusted() <= DECIMAL_DIGITS_MAX else str(value)
    raise unfit(value, "STRING")


def double_text(value: float) -> str:
    """Formats a number as Java does: `1.5`, `100000.0`, `1.0E10`."""
    if value != value or value in (float("inf"), float("-inf")):
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    shortest = repr(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return shortest if "e" not in shortest else format(Decimal(shortest), "f")
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    exponent += len(digits) - 1
    if len(shown) == 1 and not isinstance(value, Float32):
        # Java writes at least two digits: the two digits that are nearest to the number.
        near = f"{abs(value):.1e}"
        shown, exponent = (near[0] + near[2]).rstrip("0"), int(near[4:])
    return f"{'-' * sign}{shown[0]}.{shown[1:] or '0'}E{exponent}"
