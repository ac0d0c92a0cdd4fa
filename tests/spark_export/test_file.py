"""Goal: the file of a data directory gives what the node gives. Method: both, read side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa

from spark_export.errors import DataLoss, OptionError
from spark_export.source.catalog import find_catalog, selected, starting_indexes
from spark_export.source.options import read_options
from spark_export.source.plan import EARLIEST, ReadRange
from spark_export.source.range_reader import RangeReader
from stream_client import Header, blocking
from stream_node.node.process import NodeProcess
from tests.support.data_dir import truncate_before

pytestmark = pytest.mark.spark


def read_all(wanted: ReadRange, **options: str) -> pa.Table:
    reader = RangeReader(wanted, read_options({"subscribe": wanted.stream, **options}))
    return pa.Table.from_batches(list(reader.batches()))


def fill(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client:
        stream = client.create("it's")
        for number in range(40):
            stream.push(b"%d" % number * number, key=b"k", headers=[Header("h", b"v")] if number % 2 else [])


def test_the_file_is_what_the_node_serves(tmp_path: Path) -> None:
    """Goal: listing, times and rows are the same from both, while the node runs and after it has stopped."""
    with NodeProcess(tmp_path / "data") as node:
        fill(node)
        here = {"path": str(node.data_dir), "includeHeaders": "true", "verifyChecksums": "true"}
        there = {"endpoint": node.address, "includeHeaders": "true"}
        by_node, by_file = (read_options({"subscribe": "it's", **each}) for each in (there, here))
        ends = selected(by_node, find_catalog(by_node))
        assert selected(by_file, find_catalog(by_file)) == ends
        wanted = ReadRange("it's", 0, 3, 40, ends["it's", 0].created_us)
        rows = read_all(wanted, **there)
        assert read_all(wanted, **here).equals(rows)
        times = [time.timestamp() for time in rows.column("timestamp").to_pylist()]
        asked = {"startingTimestamp": str(int(times[20] * 1000))}
        both = [read_options({"subscribe": "it's", **each, **asked}) for each in (there, here)]
        assert len({str(starting_indexes(each, find_catalog(each), ends, EARLIEST)) for each in both}) == 1
        assert node.stop() == 0
    assert read_all(wanted, **here).equals(rows)


def test_what_is_gone_from_the_file_is_a_loss(tmp_path: Path) -> None:
    """Goal: retention is noticed in a file as over TCP. Method: a truncation behind the plan, and a lost stream."""
    with NodeProcess(tmp_path / "data") as node:
        fill(node)
        assert node.stop() == 0
    truncate_before(tmp_path / "data", "it's", 15)
    path = str(tmp_path / "data")
    with pytest.raises(DataLoss, match="it's/0 indexes 10 to 14: deleted by retention"):
        read_all(ReadRange("it's", 0, 10, 20), path=path)
    loose = read_all(ReadRange("it's", 0, 10, 20), path=path, failOnDataLoss="false")
    assert loose.column("index").to_pylist() == list(range(15, 20))
    with pytest.raises(DataLoss, match="no longer exists"):
        read_all(ReadRange("it's", 7, 0, 1), path=path)
    with pytest.raises(DataLoss, match="the stream ends at 40"):
        read_all(ReadRange("it's", 0, 39, 50), path=path)
    another = RangeReader(
        ReadRange("it's", 0, 15, 20, 1), read_options({"subscribe": "it's", "path": path, "failOnDataLoss": "false"})
    )
    assert (list(another.batches()), another.lost) == ([], 5), "the rows are another stream's of that name"


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    """Goal: a wrong path says so, and nothing is made there."""
    options = read_options({"subscribe": "s", "path": str(tmp_path)})
    with pytest.raises(OptionError, match=r"there is no streams\.sqlite; name the data directory"):
        find_catalog(options)
    assert list(tmp_path.iterdir()) == []


def test_reading_changes_no_byte(tmp_path: Path) -> None:
    """Goal: a reader of the file neither checkpoints nor writes. Method: the file before and after, its node killed."""
    with NodeProcess(tmp_path / "data") as node:
        fill(node)
        node.kill()
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir() if not path.name.endswith("-shm")}
    assert read_all(ReadRange("it's", 0, 0, 40), path=str(tmp_path / "data")).num_rows == 40
    after = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir() if not path.name.endswith("-shm")}
    assert after == before
    shutil.rmtree(tmp_path / "data")
