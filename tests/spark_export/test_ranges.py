"""Goal: a range is read without the rest, and the reason why filters are not pushed down still holds.

Method: the ranges that the reader plans are looked at; PySpark is tried with a source that takes filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", "4.1", reason="there is no Spark of 4.1 or later, which has filters for Python sources")

from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter

from spark_export import read_range
from spark_export.errors import OptionError
from stream_client import blocking
from stream_node.node.process import NodeProcess

pytestmark = pytest.mark.spark
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


class TakesFilters(DataSource):
    """A source of 100 rows, in ten groups, whose reader takes filters of equality as PySpark's documents say."""

    @classmethod
    def name(cls) -> str:
        return "takes_filters"

    def schema(self) -> str:
        return "number INT, tens INT"

    def reader(self, schema: Any) -> DataSourceReader:
        return FilteringReader()


class FilteringReader(DataSourceReader):
    wanted: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute == ("tens",):
                self.wanted = each.value
            else:
                yield each

    def read(self, partition: Any) -> Iterator[tuple[int, int]]:
        for number in range(100):
            if self.wanted is None or number // 10 == self.wanted:
                yield number, number // 10


def test_filters_that_are_pushed_down_give_wrong_results(spark: Any) -> None:
    """If this fails, PySpark is mended: then `BatchReader` may take filters (docs/spark.md says why it does not)."""
    from pyspark import cloudpickle

    import tests.spark_export.test_ranges as here

    cloudpickle.register_pickle_by_value(here)
    spark.conf.set(PUSH_DOWN, "true")
    try:
        spark.dataSource.register(here.TakesFilters)
        frame = spark.read.format("takes_filters").load()
        assert frame.where("tens = 3").count() == 10
        assert frame.count() == 10, "100 would be right: the filter of the query before is still there"
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_a_range_reads_its_rows_alone(spark: Any, node: NodeProcess) -> None:
    """Goal: partition, index and time choose what is read. Method: each range beside a filter over all rows."""
    with blocking.connect(node.address) as client:
        parts = client.create_partitioned("ranges", 3).partitions
        for number in range(30):
            parts[number % 3].push(b"%d" % number)
    everything = read_range(spark, "ranges", endpoint=node.address)
    rows = sorted((row.partition, row["offset"], bytes(row.value), row.timestamp) for row in everything.collect())
    assert len(rows) == 30

    def read(**chosen: Any) -> list[tuple[int, int, bytes, Any]]:
        frame = read_range(spark, "ranges", endpoint=node.address, **chosen)
        return sorted((row.partition, row["offset"], bytes(row.value), row.timestamp) for row in frame.collect())

    assert read(partition=1) == [row for row in rows if row[0] == 1]
    assert read(partition=[0, 2], index=(2, 5)) == [row for row in rows if row[0] != 1 and 2 <= row[1] < 5]
    # Spark gives times in the zone of this machine, without naming it.
    middle = sorted(row[3] for row in rows)[15].astimezone()
    late = read(time=(middle, middle + timedelta(days=1)))
    assert late == [row for row in rows if row[3].astimezone() >= middle]
    assert 0 < len(late) < 30
    assert read(partition=0, time=(middle - timedelta(days=1), middle)) == [
        row for row in rows if row[0] == 0 and row[3].astimezone() < middle
    ]
    assert read(partition=0, index=(0, 6), time=(middle - timedelta(days=1), middle)) == [
        row for row in rows if row[0] == 0 and row[1] < 6 and row[3].astimezone() < middle
    ]
    with pytest.raises(OptionError, match="needs partition"):
        read_range(spark, "ranges", index=(0, 1))


def test_a_range_of_time_plans_no_more_than_its_messages(spark: Any, node: NodeProcess) -> None:
    """Method: retention has removed nothing, and the tasks of a range in the future have nothing to read."""
    with blocking.connect(node.address) as client:
        client.create_partitioned("ranges_late", 1).partitions[0].push(b"x")
    frame = read_range(spark, "ranges_late", endpoint=node.address)
    latest = frame.collect()[0].timestamp.astimezone()
    later = read_range(
        spark, "ranges_late", endpoint=node.address, time=(latest + timedelta(days=1), latest + timedelta(days=2))
    )
    assert later.count() == 0
