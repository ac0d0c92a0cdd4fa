"""Decodes messages that consist of one JSON object or one CBOR map. The user names the members that become columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from spark_export.decode.json_page import PageReader, merged
from spark_export.decode.json_text import Malformed, object_reader
from spark_export.decode.rows import Load, NamedColumns, RowMaker
from spark_export.decode.typed_values import DECIMALS
from spark_export.decode.value_text import Day, Instant, scaled
from spark_export.errors import OptionError


class JsonObjects(NamedColumns):
    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        """Decodes a page: plain messages (see `json_page`) by one call of Arrow, the others one by one, with equal
        results."""
        maker, page = RowMaker(fields, self._rules), PageReader(self._rules.without_notes(fields))
        plain = page.is_plain(data)
        together = page.read(data.filter(plain)) if plain.true_count else None
        if together is None:
            return maker.columns(data, self._loader(fields))
        alone = maker.columns(data.filter(pc.invert(plain)), self._loader(fields))
        return merged(fields, together, alone, plain)

    def _loader(self, fields: Sequence[pa.Field]) -> Load:
        return object_reader()


class CborObjects(NamedColumns):
    """A decoder of messages that consist of one CBOR map with text keys. Spark workers need the package cbor2.

    Bytes after the map are ignored. CBOR texts and numbers are converted by the rules for JSON. A CBOR byte string can
    become BINARY. A CBOR time, date or decimal can become TIMESTAMP, DATE or DECIMAL. A tagged value that is not what
    its tag says fits no column, and leaves the other members as they are.
    """

    def _loader(self, fields: Sequence[pa.Field]) -> Load:
        return cbor_reader()


def _seconds(value: Any) -> Any:
    # Only of these types: a decimal can have billions of digits.
    return Instant(round(Fraction(value) * 1_000_000)) if type(value) in (int, float) else None


def _decimal(value: Any) -> Any:
    exponent, digits = value
    return scaled(digits, exponent) if type(digits) is int else None


def _binary_decimal(value: Any) -> Any:
    exponent, digits = value
    return DECIMALS.multiply(Decimal(digits), DECIMALS.power(2, exponent)) if type(digits) is int else None


TAGS: Mapping[int, Callable[[Any], Any]] = {
    0: lambda value: value if type(value) is str else None,
    1: _seconds,
    4: _decimal,
    5: _binary_decimal,
    37: lambda value: UUID(bytes=value),
    100: lambda value: Day(value) if type(value) is int else None,
    1004: lambda value: value if type(value) is str else None,
    **dict.fromkeys((30, 35, 36, 260, 261), lambda value: None),
}
"""By tag of CBOR, the function that makes a value of what is tagged, or None if it is not what the tag says. cbor2
itself would refuse the whole message for one wrong value. No column has a type for the tags of the last line."""


def cbor_reader() -> Callable[[bytes], Mapping[Any, Any]]:
    """Returns a function that decodes one message and raises Malformed. Raises OptionError without cbor2."""
    try:
        import cbor2
    except ImportError as error:
        raise OptionError("decode=cbor needs the package cbor2 on every worker; install the extra `spark`") from error

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
