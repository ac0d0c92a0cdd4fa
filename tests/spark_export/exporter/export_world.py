"""A node, an export beside it, and the exporter inside the test: real files, sockets and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from spark_export.exporter.job import ExportSettings, open_existing
from spark_export.exporter.node_side import Selection
from spark_export.exporter.run import Exporter, ExportOutcome, Progress
from spark_export.exporter.upkeep import Kept, TableUpkeep
from spark_export.exporter.verify import VerificationResult, verify
from spark_export.tables.columns import ROWS
from spark_export.tables.log import TableLog
from stream_client import blocking
from stream_client.blocking import SavedIndexes
from stream_node.node.process import NodeProcess

Row = tuple[str, int, int, bytes]
COLUMNS = ["stream", "partition", "index", "data"]
LIBRARIES = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}


class World:
    """One export of one node, which is looked at as a user of its format would: by the format's own library."""

    def __init__(self, folder: Path, node: NodeProcess, stream: str, table_format: str | None = None) -> None:
        self.folder = folder
        self.node = node
        self.stream = stream
        self.settings = ExportSettings(folder, node.address, format=table_format, selection=Selection((stream,)))

    @property
    def format(self) -> str:
        return self.settings.format or "parquet"

    @contextmanager
    def client(self) -> Iterator[blocking.StreamClient]:
        with blocking.connect(self.node.address) as client:
            yield client

    def push(
        self, count: int, *, partitions: int = 2, stream: str | None = None, size: int = 20, key: bytes | None = None
    ) -> None:
        """So many messages, in turn over that many partitions; with a key, in that of the key."""
        with (
            self.client() as client,
            client.create_partitioned(stream or self.stream, partitions).publisher() as publisher,
        ):
            for number in range(count):
                publisher.push(b"%0*d" % (size, number), key=key)

    def run(self, *, on_progress: Callable[[Progress], None] | None = None, **changes: Any) -> ExportOutcome:
        with Exporter(replace(self.settings, **changes), on_progress=on_progress) as exporter:
            return exporter.run()

    def with_exporter(self, work: Callable[[Exporter], Any], **changes: Any) -> Any:
        with Exporter(replace(self.settings, **changes)) as exporter:
            return work(exporter)

    def log(self) -> TableLog:
        return open_existing(self.settings.place(), self.settings.store_options)

    def compact(self, *, files_min: int = 2, keep_s: float | None = None) -> Kept:
        return TableUpkeep(self.log(), files_min=files_min, keep_s=keep_s).run()

    def verify(self, *, contents: bool = True) -> VerificationResult:
        """contents: also compares the rows with the node's messages."""
        if not contents:
            return verify(self.log())
        reader = self.settings.node_side()
        return verify(self.log(), ends=self.settings.node_side().list_ends(Selection()), read=reader.read)

    def rows(self) -> list[Row]:
        """Stream, partition, index and data of every row in the table, sorted."""
        return rows_of(self.read(COLUMNS))

    def read(self, columns: Sequence[str]) -> pa.Table:
        if self.format == "delta":
            return read_delta(self.folder / "messages", columns)
        if self.format == "iceberg":
            return read_iceberg(self.folder, columns)
        folder = (self.folder / "messages").resolve()
        if not any(folder.rglob("*.parquet")):
            # Without files pyarrow knows no columns.
            return ROWS.empty_table().select(list(columns))
        return dataset.dataset(folder, partitioning="hive").to_table(list(columns))

    def stored(self, streams: Sequence[str] = ()) -> list[Row]:
        """The same of what the node has."""
        with self.client() as client:
            return sorted(
                (name, part.partition, message.index, message.data)
                for name in streams or (self.stream,)
                for part in client.get_stream(name).partitions
                for message in part.follow(stop_at_end=True)
            )

    def position(self, partition: int, client_id: str | None = None) -> int:
        """What the node shows as the export's position."""
        with self.client() as client:
            return SavedIndexes(client, client_id or self.consumer()).get(self.stream, partition)

    def consumer(self) -> str:
        return self.settings.consumer(self.log().table_id())

    def assert_whole(self, streams: Sequence[str] = ()) -> None:
        """Table and node have the same messages, each once; the verification holds; nothing is left in staging."""
        assert self.rows() == self.stored(streams)
        verdict = self.verify()
        assert (verdict.problems, verdict.removed) == ((), 0)
        assert verdict.rows == verdict.compared == len(self.rows())
        assert list(self.folder.glob("staging/*")) == []


def rows_of(table: pa.Table) -> list[Row]:
    return sorted(zip(*(column.to_pylist() for column in table.select(COLUMNS).columns), strict=True))


def read_delta(folder: Path | str, columns: Sequence[str], **options: Any) -> pa.Table:
    return pytest.importorskip("deltalake").DeltaTable(str(folder), **options).to_pyarrow_table(columns=list(columns))


def open_iceberg(folder: Path) -> Any:
    """The table of a folder, opened as any program would that knows where the catalog is."""
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = catalogs.SqlCatalog(
        "stream-node", uri=f"sqlite:///{folder / 'catalog.sqlite'}?timeout=60", warehouse=f"file://{folder}"
    )
    return catalog.load_table("export.messages")


def read_iceberg(folder: Path, columns: Sequence[str]) -> pa.Table:
    table = open_iceberg(folder)
    try:
        return table.scan(selected_fields=tuple(columns)).to_arrow()
    finally:
        table.catalog.close()
