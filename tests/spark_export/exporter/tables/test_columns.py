"""Goal: a table of somebody else takes the rows of an export, or is refused by the name of a column, before anything is
written. Method: columns as the libraries of Delta and Iceberg give them.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")

import pyarrow as pa

from spark_export.tables.columns import HEADERS, ROWS, fitting
from spark_export.tables.errors import TableRefused

LEAST = [pa.field("stream", pa.string()), pa.field("partition", pa.int32()), pa.field("index", pa.int64())]
LARGE = pa.large_list(pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())]))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (pa.field("headers", pa.list_(pa.string())), "its column headers is list<"),
        (
            pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
            "column headers is",
        ),
        (pa.field("key", pa.binary(), False), "its column key may not be null"),
    ],
)
def test_a_column_that_cannot_take_the_rows_is_named(field: pa.Field, said: str) -> None:
    with pytest.raises(TableRefused, match=said):
        fitting(pa.schema([*LEAST, field]), ROWS, "lake")


@pytest.mark.parametrize("kind", [HEADERS, LARGE])
def test_the_names_and_sizes_of_a_library_fit(kind: pa.DataType) -> None:
    table = pa.schema([*LEAST, pa.field("headers", kind, False), pa.field("era", pa.int32(), False)])
    assert fitting(table, ROWS, "lake").field("headers").type == HEADERS


def test_a_decoded_column_that_the_table_lacks_is_told() -> None:
    """Goal: `--decode` does nothing in silence, also where the table was made without it."""
    decoded = ROWS.append(pa.field("amount", pa.struct([("value", pa.string())])))
    with pytest.raises(TableRefused, match="lacks the decoded column amount"):
        fitting(ROWS, decoded, "lake")
    theirs = ROWS.append(pa.field("amount", pa.struct([("value", pa.large_string())])))
    assert fitting(theirs, decoded, "lake").names == decoded.names
