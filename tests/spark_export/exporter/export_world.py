"""A node, an export folder beside it, and the exporter inside the test: real files, sockets and processes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset

from spark_export.exporter.node_side import Selection
from spark_export.exporter.runs.engine import ExportEngine
from spark_export.exporter.runs.job import INLINE, ExportSettings, open_compactor, open_exporter, open_for_reading
from spark_export.exporter.runs.run import Exporter, ExportOutcome, Progress
from spark_export.exporter.tables.compact import Compaction
from spark_export.exporter.verify import VerificationResult, verify
from stream_client import blocking
from stream_client.blocking import SavedIndexes
from stream_node.node.process import NodeProcess


class World:
    """One export folder of one node, which is looked at as any reader of folders would: with pyarrow's own dataset."""

    def __init__(self, folder: Path, node: NodeProcess, stream: str) -> None:
        self.folder = folder
        self.node = node
        self.stream = stream
        self.settings = ExportSettings(folder, node.address, master=INLINE, selection=Selection((stream,)))

    @contextmanager
    def client(self) -> Iterator[blocking.StreamClient]:
        with blocking.connect(self.node.address) as client:
            yield client

    def push(self, count: int, *, partitions: int = 2, stream: str | None = None, size: int = 20) -> None:
        """So many messages, in turn over that many partitions."""
        with (
            self.client() as client,
            client.create_partitioned(stream or self.stream, partitions).publisher() as publisher,
        ):
            for number in range(count):
                publisher.push(b"%0*d" % (size, number))

    def run(
        self,
        *,
        engine: ExportEngine | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        **changes: Any,
    ) -> ExportOutcome:
        async def main() -> ExportOutcome:
            settings = replace(self.settings, **changes)
            async with open_exporter(settings, engine=engine, on_progress=on_progress) as exporter:
                return await exporter.run()

        return asyncio.run(main())

    def with_exporter(self, work: Callable[[Exporter], Any], **changes: Any) -> Any:
        async def main() -> Any:
            async with open_exporter(replace(self.settings, **changes)) as exporter:
                return await work(exporter)

        return asyncio.run(main())

    def compact(self, **options: Any) -> Compaction:
        async def main() -> Compaction:
            async with open_compactor(self.folder, **options) as compactor:
                return await compactor.run()

        return asyncio.run(main())

    def verify(self, **options: Any) -> VerificationResult:
        async def main() -> VerificationResult:
            async with open_for_reading(self.folder) as (layout, ledger):
                return await verify(layout, ledger, **options)

        return asyncio.run(main())

    def rows(self) -> list[tuple[str, int, int, bytes]]:
        """Stream, partition, index and data of every row in the table, sorted."""
        return rows_of(self.folder / "messages")

    def stored(self, streams: Sequence[str] = ()) -> list[tuple[str, int, int, bytes]]:
        """The same of what the node has."""
        with self.client() as client:
            return sorted(
                (name, part.partition, message.index, message.data)
                for name in streams or (self.stream,)
                for part in client.get_stream(name).partitions
                for message in part.follow(stop_at_end=True)
            )

    def position(self, partition: int, client_id: str | None = None) -> int:
        """What the node keeps as the export's position."""
        with self.client() as client:
            return SavedIndexes(client, client_id or self.consumer()).get(self.stream, partition)

    def consumer(self) -> str:
        """The name of the export's consumer, as the ledger has it."""
        with closing(sqlite3.connect(self.folder / "ledger.sqlite")) as ledger:
            return str(ledger.execute("SELECT client_id FROM export").fetchone()[0])

    def assert_whole(self, streams: Sequence[str] = ()) -> None:
        """Table and node have the same messages, each once; the proof holds; nothing is left in staging."""
        assert self.rows() == self.stored(streams)
        verdict = self.verify()
        assert verdict.problems == ()
        assert verdict.rows == len(self.rows())
        assert list((self.folder / "staging").rglob("*")) == []


def rows_of(table: Path) -> list[tuple[str, int, int, bytes]]:
    found = dataset.dataset(table.resolve(), partitioning="hive").to_table(["stream", "partition", "index", "data"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
