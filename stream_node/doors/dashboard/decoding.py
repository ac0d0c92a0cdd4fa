"""Decoding: shows the data of a message as text, JSON, CBOR or Avro, else as hexadecimal digits with the reason.

Everybody who may write to a stream can choose the messages that a page decodes in the node's event loop, and a hundred
bytes can stand for billions of values: by references to earlier values, compression, arrays of values without bytes,
and types that contain themselves. cbor2 refuses such data while it decodes them, and `check_avro` before.

Decoded values look like JSON, with the diagnostic notation of CBOR (RFC 8949, section 8) for values that JSON lacks, so
that no value looks like another one:

    {"name": "x", 7: h'00ff', "rate": NaN, "more": undefined, "tagged": 24(h'01')}"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

View: TypeAlias = Literal["auto", "text", "json", "cbor", "avro", "hex"]
VIEWS: Final[tuple[View, ...]] = get_args(View)
AVRO_MAGIC = b"Obj\x01"
"""The first bytes of an Avro file. Only an Avro file contains its schema."""
AVRO_RECORDS_MAX = 100
CHARACTERS_MAX = 100_000
_KEPT_WHITESPACE = "\n\t"


class _NotDecoded(Exception):
    """The data does not have the form in which it was decoded."""


class Decoded(NamedTuple):
    """The data of a message as a page shows it, in the form `view`. note: why it has another form, or is cut."""

    view: str
    text: str
    note: str = ""


def decode(data: bytes, view: str, bytes_max: int, size_bytes: int | None = None, *, is_short: bool = False) -> Decoded:
    """Returns data in the form `view`. The form "auto" means the first form that fits the data. Never raises.
    bytes_max: longer data is cut, and shown as text or as hexadecimal digits. size_bytes: the size of the whole data,
    if `data` is only its beginning. is_short: whether JSON stands on one line instead of one line for each value."""
    size_bytes = len(data) if size_bytes is None else size_bytes
    is_cut = size_bytes > bytes_max
    forms: tuple[str, ...] = ("json", "avro", "text", "cbor") if view == "auto" else (view,)
    note = ""
    for form in forms:
        if form not in _FORMS:
            continue
        if is_cut and form != "text":
            note = f"only the first {bytes_max:,} bytes are shown"
            continue
        try:
            text = _FORMS[form](data[:bytes_max])
            if is_short and form in ("json", "cbor", "avro"):
                text = " ".join(line.strip() for line in text.split("\n"))
        # Libraries raise errors of many kinds for data in another format, and a bad message must not blank a page.
        except Exception as error:
            note = f"this is not {form}: {str(error)[:200] or type(error).__name__}"
            continue
        cut = f"only the first {bytes_max:,} of {size_bytes:,} bytes are shown" if is_cut else ""
        return Decoded(form, text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + " …", cut)
    if view == "auto" and not is_cut:
        note = ""
    return Decoded("hex", hex_text(data[:bytes_max]), note)


def hex_text(data: bytes) -> str:
    rows = []
    for place in range(0, len(data), 16):
        row = data[place : place + 16]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{place:08x}  {row.hex(' '):<47}  {readable}")
    return "\n".join(rows)


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # The last character of data that was cut may be incomplete.
        if error.reason != "unexpected end of data" or error.start < len(data) - 4:
            raise _NotDecoded(f"byte {error.start} is not UTF-8") from error
        text = data[: error.start].decode()
    found = next((each for each in text if not each.isprintable() and each not in "\n\t\r"), None)
    if found is not None:
        raise _NotDecoded(f"it has the control character {found!r}")
    return text


def _json(data: bytes) -> str:
    stripped = data.strip()
    if not stripped.startswith((b"{", b"[", b'"')):
        raise _NotDecoded("it is no object, array or string")
    # The text is laid out without decoding it, so large numbers and repeated keys stay as they are.
    return _printable(msgspec.json.format(stripped, indent=2).decode())


CBOR_DEPTH_MAX = 64
CBOR_TAGS = frozenset({0, 1, 2, 3, 24, 32, 33, 34, 37, 55_799})
"""The tags that are decoded, such as for times, large integers and texts. Tags for references and arithmetic are
refused."""


class _CborTags(dict[int, Any]):
    """A table of tag decoders for cbor2. It is empty, and a lookup of any tag not in CBOR_TAGS raises ValueError."""

    def __missing__(self, tag: int) -> Any:
        if tag in CBOR_TAGS:
            raise KeyError(tag)
        raise ValueError(f"values with the tag {tag} are not decoded")


def _cbor(data: bytes) -> str:
    cbor2 = _library("cbor2")
    source = io.BytesIO(data)
    try:
        value = cbor2.load(source, max_depth=CBOR_DEPTH_MAX, semantic_decoders=_CborTags())
    except TypeError:
        # An older cbor2 does not know `semantic_decoders`. Errors of the data are CBORDecodeErrors.
        raise _NotDecoded("the node's environment has a cbor2 before version 6; upgrade it to see this form") from None
    except cbor2.CBORDecodeError as error:
        raise _NotDecoded(str(error.__cause__ or error)) from error
    if source.tell() != len(data):
        raise _NotDecoded(f"{len(data) - source.tell():,} bytes follow the first value")
    return _value(value)


def _avro(data: bytes) -> str:
    if not data.startswith(AVRO_MAGIC):
        raise _NotDecoded("it is no Avro file, so it has no schema with it")
    reader = _library("fastavro").reader(io.BytesIO(data))
    check_avro(reader.codec, reader.writer_schema)
    records = list(islice(reader, AVRO_RECORDS_MAX + 1))
    more = f"\nand more than {AVRO_RECORDS_MAX} records" if len(records) > AVRO_RECORDS_MAX else ""
    return "\n".join(_value(each) for each in records[:AVRO_RECORDS_MAX]) + more


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise _NotDecoded(f"the node's environment lacks the package {name}; install it to see this form") from None


def _value(value: Any) -> str:
    return _printable(show_value(value, CHARACTERS_MAX))


def _printable(text: str) -> str:
    """Escapes characters that hide or reverse text, such as direction marks."""
    return "".join(
        each if each.isprintable() or each in _KEPT_WHITESPACE else each.encode("unicode_escape").decode()
        for each in text
    )


_FORMS = {"json": _json, "avro": _avro, "text": _text, "cbor": _cbor, "hex": hex_text}


DECIMAL_BITS_MAX = 10_000
"""Larger integers are shown in hexadecimal digits, because Python refuses to write thousands of decimal digits."""
_INDENT = "  "


def show_value(value: Any, characters_max: int) -> str:
    """Returns the text of a decoded value. A text of more than `characters_max` characters is cut soon after these."""
    parts, left = list[str](), characters_max
    for text in _texts(value, "\n"):
        parts.append(text)
        left -= len(text)
        if left < 0:
            break
    return "".join(parts)


def _texts(value: Any, line: str) -> Iterator[str]:
    """Yields the text of a value, in pieces. line: the beginning of a new line at the depth of this value."""
    inner = line + _INDENT
    if isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, Mapping):
        yield "{"
        for place, (key, each) in enumerate(value.items()):
            yield "," + inner if place else inner
            yield from _texts(key, inner)
            yield ": "
            yield from _texts(each, inner)
        yield line + "}" if value else "}"
    elif isinstance(value, bytes | bytearray):
        yield f"h'{bytes(value).hex()}'"
    elif isinstance(value, Sequence | set | frozenset):
        begin, end = "[]" if isinstance(value, Sequence) else "{}"
        yield begin
        for place, each in enumerate(value):
            yield "," + inner if place else inner
            yield from _texts(each, inner)
        yield line + end if value else end
    elif hasattr(value, "tag") and hasattr(value, "value"):
        # A tag of CBOR that its library does not interpret.
        yield f"{value.tag}("
        yield from _texts(value.value, line)
        yield ")"
    else:
        yield _single(value)


def _single(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= DECIMAL_BITS_MAX else hex(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    name = type(value).__name__
    if name == "CBORSimpleValue":
        return f"simple({int(value.value)})"
    if repr(value) == "undefined":
        return "undefined"
    return _quoted(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


AVRO_DEPTH_MAX = 50
AVRO_WORK_MAX = 2_000
"""The most values that one record may have outside of its arrays and maps."""
AVRO_BYTE_WORK_MAX = 20
"""The most values that one byte of an array or a map may stand for."""
_PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def check_avro(codec: str, schema: Any) -> None:
    """Raises ValueError if a small Avro file with this schema can contain very large values."""
    if codec != "null":
        raise ValueError(f"it is compressed ({codec[:20]})")
    _, work = _weigh(schema, {}, (), 0)
    if work > AVRO_WORK_MAX:
        raise ValueError(f"a record has more than {AVRO_WORK_MAX} values")


def _weigh(schema: Any, named: dict[str, tuple[int, int]], around: tuple[str, ...], depth: int) -> tuple[int, int]:
    """Returns the smallest size of a value of this type in bytes, and the number of values inside such a value.
    named: the weights of the named types so far. around: the names of the types that contain this type."""
    if depth > AVRO_DEPTH_MAX:
        raise ValueError(f"types are nested more than {AVRO_DEPTH_MAX} deep")
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema], 1
        name = _short(schema)
        if name in around or name not in named:
            raise ValueError("a type contains itself, or is not there")
        return named[name]
    if isinstance(schema, list):
        # The number of the branch takes a byte. The branch with most values for each byte counts.
        weights = [_weigh(each, named, around, depth + 1) for each in schema]
        return max(((least + 1, work + 1) for least, work in weights), key=lambda each: each[1] / each[0])
    if not isinstance(schema, Mapping):
        raise ValueError("a type is not valid")
    kind = schema.get("type")
    if kind in ("array", "map"):
        least, work = _weigh(schema.get("items" if kind == "array" else "values"), named, around, depth + 1)
        if kind == "map":
            least, work = least + 1, work + 1
        if work > AVRO_BYTE_WORK_MAX * least:
            raise ValueError("an array has values that take no bytes")
        return 1, 1
    if kind not in ("record", "error", "enum", "fixed"):
        return _weigh(kind, named, around, depth + 1)
    name = _short(str(schema.get("name")))
    weight = (0, 1)
    if kind == "enum":
        weight = (1, 1)
    elif kind == "fixed":
        weight = (int(schema.get("size", 0)), 1)
    else:
        for field in schema.get("fields", ()):
            least, work = _weigh(field["type"], named, (*around, name), depth + 1)
            weight = (weight[0] + least, weight[1] + work)
            if weight[1] > AVRO_WORK_MAX:
                raise ValueError(f"a record has more than {AVRO_WORK_MAX} values")
    # Types of several namespaces can have one short name. The worse weight counts for all of them.
    least, work = named.get(name, weight)
    named[name] = min(least, weight[0]), max(work, weight[1])
    return weight


def _short(name: str) -> str:
    return name.rpartition(".")[2]
