"""A node, and an export of one stream to an S3 server: real sockets and processes.

The tables are read by deltalake and pyiceberg with options of their own, and compared with a pull from the node.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from spark_export.tables.columns import ROWS
from spark_export.tables.filesystem import open_filesystem
from spark_export.tables.log import CatalogChoice
from stream_node.node.process import NodeProcess
from stream_storage.failpoint import ENVIRONMENT_VARIABLE
from tests.spark_export.exporter.export_process import command
from tests.spark_export.exporter.export_world import World, read_delta
from tests.support.s3_server import CREDENTIALS, S3Server


class StoreWorld(World):
    """One export to a store. folder: where the catalog of an Iceberg table is."""

    def __init__(
        self, server: S3Server, bucket: str, node: NodeProcess, stream: str, table_format: str, folder: Path
    ) -> None:
        super().__init__(folder, node, stream, table_format)
        self.server = server
        self.address = f"s3://{bucket}/a/lake"
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.sqlite'}"}
        self.settings = replace(
            self.settings,
            folder=self.address,
            store_options={"endpoint": server.endpoint},
            catalog=CatalogChoice("lakes", self.catalog) if table_format == "iceberg" else None,
        )

    def through(self, endpoint: str) -> None:
        """Lets the exporter talk to this endpoint; the test's own looks at the table go on without it."""
        self.settings = replace(self.settings, store_options={"endpoint": endpoint, "tries": "2", "timeout_s": "5"})

    def read(self, columns: Sequence[str]) -> pa.Table:
        if self.format == "delta":
            options = {"AWS_ENDPOINT_URL": self.server.endpoint, "AWS_ALLOW_HTTP": "true", **CREDENTIALS}
            return read_delta(f"{self.address}/messages", columns, storage_options=options)
        catalogs = pytest.importorskip("pyiceberg.catalog")
        missing = pytest.importorskip("pyiceberg.exceptions").NoSuchTableError
        catalog = catalogs.load_catalog("lakes", **{"s3.endpoint": self.server.endpoint, **self.catalog})
        try:
            return catalog.load_table("export.messages").scan(selected_fields=tuple(columns)).to_arrow()
        except missing:
            return ROWS.empty_table().select(list(columns))
        finally:
            catalog.close()

    def data_files(self) -> list[str]:
        """All data files in the bucket, whether the table's log names them or not."""
        filesystem, root = open_filesystem(self.address, {"endpoint": self.server.endpoint})
        found = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        return [each.path for each in found if each.path.endswith(".parquet")]

    def child(self, verb: str, *more: str, site: str = "") -> subprocess.CompletedProcess[str]:
        """The command in a child process, to its end. site: where it is killed."""
        given = [self.address if part == str(self.folder) else part for part in command(self, verb, *more)]
        given += [f"--store-option={name}={value}" for name, value in self.settings.store_options.items()]
        return subprocess.run(
            given,
            env={**os.environ, **CREDENTIALS, ENVIRONMENT_VARIABLE: site},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
