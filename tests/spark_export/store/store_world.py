"""A node, and an export of one stream to an S3 server: real sockets and processes.

The table is looked at with DuckDB and pyarrow over the files that the manifests list, and compared with a pull of
everything from the node.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow.parquet as pq

from spark_export import table_files
from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE
from spark_export.exporter.runs.job import open_compactor, open_for_reading
from spark_export.exporter.tables.compact import Compaction
from spark_export.exporter.verify import VerificationResult, verify
from spark_export.store.open import open_store
from spark_export.store.place import StoreLocation, parse_place
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World
from tests.support.s3_server import CREDENTIALS, S3Server

Row = tuple[str, int, int, bytes]


class StoreWorld(World):
    """One export to a store. endpoint: what the exporter talks to, which may be a proxy before the server."""

    def __init__(self, server: S3Server, bucket: str, node: NodeProcess, stream: str) -> None:
        super().__init__(Path("/nowhere"), node, stream)
        self.server = server
        self.bucket = bucket
        self.place: StoreLocation = parse_place(f"s3://{bucket}/a/lake")
        self.options = {"endpoint": server.endpoint}
        self.settings = replace(self.settings, folder=self.place, store_options=self.options)
        self.reader = open_store(self.place, {"endpoint": server.endpoint})

    def through(self, endpoint: str) -> None:
        """Lets the exporter talk to this endpoint; the test's own looks at the table go on without it."""
        self.options = {"endpoint": endpoint}
        self.settings = replace(self.settings, store_options=self.options)

    def files(self) -> list[str]:
        """The names of the table's files in the bucket."""
        return [path.removeprefix(f"{self.place}/") for path in table_files(self.place, self.reader.options)]

    def objects(self, prefix: str = "data") -> list[str]:
        """All objects, whether a manifest names them or not."""
        return [each.name for each in self.reader.list_objects(prefix)]

    def rows(self) -> list[Row]:
        """By DuckDB, from copies of the listed files that pyarrow has read; the stream's name is in the path."""
        rows: list[Row] = []
        for name in self.files() if self.reader_has_manifests() else []:
            with self.reader.data.open_input(name) as file:
                table = pq.read_table(file, partitioning=None)
            stream = dict(part.split("=", 1) for part in name.split("/") if "=" in part)["stream"]
            stream = unquote(stream)
            found = duckdb.from_arrow(table).query("t", 'SELECT "partition", "index", "data" FROM t').fetchall()
            rows += [(stream, partition, index, bytes(data)) for partition, index, data in found]
        return sorted(rows)

    def reader_has_manifests(self) -> bool:
        return bool(self.objects("_manifests"))

    def verify(self, **options: Any) -> VerificationResult:
        async def main() -> VerificationResult:
            async with open_for_reading(replace(self.settings.address(), options=self.reader.options)) as (layout, it):
                return await verify(layout, it, **options)

        return asyncio.run(main())

    def compact(self, **options: Any) -> Compaction:
        async def main() -> Compaction:
            async with open_compactor(self.settings.address(), **options) as compactor:
                return await compactor.run()

        return asyncio.run(main())

    def assert_whole(self, streams: Any = ()) -> None:
        assert self.rows() == self.stored(streams)
        verdict = self.verify()
        assert verdict.problems == ()
        assert verdict.rows == len(self.rows())

    def command(self, verb: str, *more: str, site: str | None = None, **environment: str) -> tuple[int, str, str]:
        """The command in a child process. Returns its exit code, its output and its errors."""
        done = subprocess.run(
            self.arguments(verb, *more),
            env=self.environment({ENVIRONMENT_VARIABLE: site or ""} | environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def arguments(self, verb: str, *more: str) -> list[str]:
        given = [sys.executable, "-m", "stream_node", "export", verb, str(self.place), *more]
        given += [f"--store-option={name}={value}" for name, value in self.options.items()]
        if verb in ("run", "daemon"):
            given += ["--node", self.node.address, "--stream", self.stream]
            given += [] if "--master" in more else ["--master", "inline"]
        return given

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **CREDENTIALS, **more}
