"""Parses many JSON messages in one call of Arrow. `rows.RowMaker` would give the same rows, one message at a time.

Arrow parses only plain messages: messages that match a regular expression, which is made from the columns. A plain
message is one JSON object in strict syntax and valid UTF-8, so that messages can be joined without ambiguity. Its
values for the columns have forms that Arrow and Spark convert alike. `RowMaker` parses all other messages, for example
a message with a number for a STRING column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

_SPACE = r"[ \t\n\r]*"
# The characters of a string: ASCII from the blank to 0x7f without quote and backslash, and UTF-8 of two to four bytes.
_ASCII = [code for code in range(0x20, 0x80) if chr(code) not in '"\\\\']
_NOT_ASCII = (
    r"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    r"|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_PLAIN = rf"[\x20\x21\x23-\x5b\x5d-\x7f]|{_NOT_ASCII}"
# Escapes of a character, and of both halves of a surrogate pair. A half alone is no text.
_ESCAPE = (
    r'\\["\\/bfnrt]|\\u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_STRING = rf'"(?:{_PLAIN}|{_ESCAPE})*"'
_NUMBER = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,3})?"
# Excludes -0 without a fraction, which is 0.0 in Spark and -0.0 in Arrow.
_DOUBLE = (
    r"(?:0|-?[1-9][0-9]{0,14}"
    r"|-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,17}(?:[eE][+-]?[0-9]{1,2})?|[eE][+-]?[0-9]{1,2}))"
)
_FLOAT = _DOUBLE.replace("[0-9]{1,2}", "[0-9]")
_DAY = (
    r"(?:19|20)[0-9]{2}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
)
_ZONED = (
    rf"{_DAY}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
)
_DIGITS = {8: "[0-9]{0,1}", 16: "[0-9]{0,3}", 32: "[0-9]{0,8}", 64: "[0-9]{0,17}"}
_OTHER_DEPTH = 2
"""The largest nesting depth, in a plain message, of members that are not columns."""


class PageReader:
    """A parser of the plain messages of a page: the messages that Arrow and Spark parse alike.

    pattern: the regular expression (RE2) of plain messages; None if no message counts as plain.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = list(fields)
        try:
            self.pattern: str | None = rf"\A{_SPACE}{_object({each.name: each.type for each in fields})}{_SPACE}\z"
        except TypeError:
            self.pattern = None

    def is_plain(self, data: pa.Array) -> pa.Array:
        if self.pattern is not None:
            try:
                return pc.match_substring_regex(data, pattern=self.pattern)
            except pa.ArrowInvalid:
                # There are so many columns that the expression is larger than RE2 allows.
                self.pattern = None
        return pa.repeat(pa.scalar(False), len(data))

    def read(self, data: pa.Array) -> dict[str, pa.Array] | None:
        """Parses plain messages into columns by name; None if Arrow refuses them, as for a name that occurs twice."""
        offsets = pa.array([0, len(data)], pa.int32())
        lines = pc.binary_join(pa.ListArray.from_arrays(offsets, data), b"\n")[0].as_buffer()
        parse = arrow_json.ParseOptions(
            explicit_schema=pa.schema([pa.field(field.name, _read_as(field.type)) for field in self._fields]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )
        # Arrow reads its input in blocks; one block for all data keeps every object whole.
        read = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
        try:
            table = arrow_json.read_json(pa.BufferReader(lines), read_options=read, parse_options=parse)
            if table.num_rows != len(data):
                return None
            return {
                field.name: pa.concat_arrays(table.column(field.name).chunks).cast(field.type) for field in self._fields
            }
        except pa.ArrowException:
            return None


def merged(
    fields: Sequence[pa.Field], together: dict[str, pa.Array], alone: list[pa.Array], plain: pa.Array
) -> list[pa.Array]:
    """Merges the rows of plain messages (parsed by Arrow) and of other messages into the original order of the page."""
    rows = len(plain)
    columns = [together.get(field.name, pa.nulls(plain.true_count, field.type)) for field in fields]
    if plain.true_count == rows:
        return columns
    # A stable sort puts the plain messages first. The inverse of the sort restores the order of the page.
    order = pc.array_sort_indices(pc.array_sort_indices(pc.invert(plain).cast(pa.int8())))
    return [pa.concat_arrays(pair).take(order) for pair in zip(columns, alone, strict=True)]


def _read_as(wanted: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_date32(wanted) else wanted


def _object(columns: Mapping[str, pa.DataType]) -> str:
    """Returns a regular expression for objects with these columns as members, in any order, and others.

    Raises TypeError for a name with a quote, a backslash or a character outside printable ASCII, and as `_value` does.
    """
    if any(ord(char) not in _ASCII for name in columns for char in name):
        raise TypeError("a name outside ASCII")
    known = [f'"{_literal(name)}"{_SPACE}:{_SPACE}(?:{_value(wanted)}|null)' for name, wanted in columns.items()]
    other = f'"{_not_one_of(list(columns))}{_SPACE}:{_SPACE}{_other(_OTHER_DEPTH)}'
    member = f"(?:{'|'.join([*known, other])}){_SPACE}"
    return rf"\{{{_SPACE}(?:{member}(?:,{_SPACE}{member})*)?\}}"


def _value(wanted: pa.DataType) -> str:
    """Returns a regular expression for the values of a type. Raises TypeError if Arrow and Spark convert it
    differently."""
    types = pa.types
    if types.is_boolean(wanted):
        return "true|false"
    if types.is_signed_integer(wanted):
        return f"-?(?:0|[1-9]{_DIGITS[wanted.bit_width]})"
    if types.is_float64(wanted) or types.is_float32(wanted):
        return _DOUBLE if types.is_float64(wanted) else _FLOAT
    if types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale
        digits = rf"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole > 0 else "0"
        return f"-?{digits}" + (rf"(?:\.[0-9]{{1,{wanted.scale}}})?" if wanted.scale > 0 else "")
    if types.is_string(wanted):
        return _STRING
    if types.is_timestamp(wanted) and wanted.tz is not None:
        return f'"{_ZONED}"'
    if types.is_date32(wanted):
        return f'"{_DAY}"'
    if types.is_list(wanted) and not types.is_date32(wanted.value_type):
        item = f"(?:{_value(wanted.value_type)}|null){_SPACE}"
        return rf"\[{_SPACE}(?:{item}(?:,{_SPACE}{item})*)?\]"
    if types.is_struct(wanted) and not any(types.is_date32(each.type) for each in wanted):
        return _object({each.name: each.type for each in wanted})
    raise TypeError(wanted)


def _other(depth: int) -> str:
    """Returns a regular expression for JSON values with a nesting depth of at most `depth` objects and arrays."""
    if depth == 0:
        return f"(?:{_STRING}|{_NUMBER}|true|false|null)"
    inner = _other(depth - 1)
    array = rf"\[{_SPACE}(?:{inner}{_SPACE}(?:,{_SPACE}{inner}{_SPACE})*)?\]"
    member = rf"{_STRING}{_SPACE}:{_SPACE}{inner}{_SPACE}"
    return rf"(?:{_other(0)}|{array}|\{{{_SPACE}(?:{member}(?:,{_SPACE}{member})*)?\}})"


def _not_one_of(rest: Sequence[str]) -> str:
    """Returns a regular expression for a JSON name that is none of `rest`, and its closing quote.

    A recursive call for a first character gets the ends of the names that begin with it.
    """
    first = sorted({name[0] for name in rest if name})
    if not first:
        # At most the empty name is excluded. If so, at least one character must follow.
        return rf'(?:{_PLAIN}){"+" if rest else "*"}"'
    choices = [_literal(each) + _not_one_of([name[1:] for name in rest if name[:1] == each]) for each in first]
    others = "".join(_literal(chr(code)) for code in _ASCII if chr(code) not in first)
    choices.append(rf'(?:[{others}]|{_NOT_ASCII})(?:{_PLAIN})*"')
    if "" not in rest:
        choices.append('"')
    return f"(?:{'|'.join(choices)})"


def _literal(name: str) -> str:
    return "".join(rf"\x{ord(char):02x}" for char in name)
