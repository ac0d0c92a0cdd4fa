"""The decoders of messages that consist of one JSON object or one CBOR map. The user names the members that become
columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField

from spark_export.decode.json_page import PageReader, merged
from spark_export.decode.json_text import Malformed, object_reader
from spark_export.decode.rows import RowMaker, RowRules
from spark_export.errors import OptionError


class JsonObjects:
    """The decoder of messages that consist of one JSON object."""

    needs_headers = False

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules

    def columns(self) -> list[StructField] | None:
        return None

    def check(self, fields: Sequence[pa.Field]) -> None:
        RowMaker(fields, self._rules)

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        """Decodes plain messages together and all other messages one by one. Both ways give the same row."""
        maker, page = RowMaker(fields, self._rules), PageReader(self._rules.without_notes(fields))
        plain = page.is_plain(data)
        together = page.read(data.filter(plain)) if plain.true_count else None
        if together is None:
            return maker.columns(data, object_reader())
        alone = maker.columns(data.filter(pc.invert(plain)), object_reader())
        return merged(fields, together, alone, plain)


class CborObjects:
    """The decoder of messages that consist of one CBOR map with text keys. Workers need the package cbor2.

    Bytes after the map are ignored. Texts and numbers of CBOR become values by the rules for JSON. A byte string fits
    BINARY, and a time, date or decimal of CBOR fits the column type with that name.
    """

    needs_headers = False

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules

    def columns(self) -> list[StructField] | None:
        return None

    def check(self, fields: Sequence[pa.Field]) -> None:
        RowMaker(fields, self._rules)

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        return RowMaker(fields, self._rules).columns(data, cbor_reader())


def cbor_reader() -> Callable[[bytes], Mapping[Any, Any]]:
    """Returns a function that reads one message and raises Malformed. Raises OptionError without the package cbor2."""
    try:
        import cbor2
    except ImportError as error:
        raise OptionError("decode=cbor needs the package cbor2 on every worker; install the extra `spark`") from error

    def read(message: bytes) -> Mapping[Any, Any]:
        try:
            found = cbor2.loads(message)
        except MemoryError:
            raise
        except Exception as error:
            # What is wrong with bytes shows as errors of many types, from cbor2's own to those of decimals and dates.
            raise Malformed(f"the message is not CBOR: {error or type(error).__name__}") from error
        if not isinstance(found, Mapping):
            raise Malformed("the message is not one CBOR map")
        return found

    return read
