"""Decoding: shows the data of a message as text, JSON, CBOR or Avro, else as hexadecimal digits with the reason."""

from __future__ import annotations

import importlib
import io
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from stream_node.doors.dashboard.decoding_bounds import check_avro, check_cbor
from stream_node.doors.dashboard.notation import show_value

View: TypeAlias = Literal["auto", "text", "json", "cbor", "avro", "hex"]
VIEWS: Final[tuple[View, ...]] = get_args(View)
AVRO_MAGIC = b"Obj\x01"
"""The first bytes of an Avro file. Only an Avro file contains its schema."""
AVRO_RECORDS_MAX = 100
CHARACTERS_MAX = 100_000
_KEPT_WHITESPACE = "\n\t"


class _NotDecoded(Exception):
    """The data is not in this form."""


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


def _cbor(data: bytes) -> str:
    check_cbor(data)
    cbor2 = _library("cbor2")
    source = io.BytesIO(data)
    value = cbor2.load(source)
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
