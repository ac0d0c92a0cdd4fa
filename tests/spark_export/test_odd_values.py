"""Goal: values at the edges of a format give a row, and no error. Method: each value once, without Spark and node."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa

import bare
from block_node.persist.mark import MARK_HEADER, BlockMark
from spark_export.decode.decoding import decoder
from spark_export.sink.write_rows import read_row
from spark_export.source.options import parse_offsets, write_options
from spark_export.source.schema import NULL_HEADER
from spark_export.tables.columns import HEADERS


def test_a_mark_of_null_is_not_written_twice() -> None:
    row = {"value": None, "headers": [{"key": NULL_HEADER, "value": b""}]}
    made = read_row(row, write_options({"stream": "s", "nulls": "mark"}))
    assert made is not None
    assert [each.name for each in made.headers] == [NULL_HEADER]


def test_the_offsets_of_a_progress_can_have_deleted_partitions() -> None:
    text = '{"orders": {"0": 7, "1": 3, "created_us": {"0": 1, "1": 2}, "deleted": [1]}}'
    assert parse_offsets(text) == {"orders": {0: 7}}


def test_null_data_is_a_row_of_nulls() -> None:
    batch = pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([None], pa.binary())})
    made = decoder("json", "a INT, _problem STRING")(batch)
    assert made.select(["a", "_problem"]).to_pylist() == [{"a": None, "_problem": None}]


@pytest.mark.parametrize("mark", [BlockMark(2**63, 0, 2, 1, 1, b""), BlockMark(1, 2**31, 2**32, 1, 1, b"")])
def test_a_mark_that_no_column_holds_is_a_problem(mark: BlockMark) -> None:
    headers = [[{"key": MARK_HEADER, "value": bare.Encoder(BlockMark).encode(mark)}]]
    columns = {"key": pa.array([b"k"]), "data": pa.array([b""]), "headers": pa.array(headers, HEADERS)}
    (row,) = decoder("block")(pa.record_batch(columns)).to_pylist()
    assert row["block_number"] is None
    assert "no header `block/1` that can be read" in row["problem"]
