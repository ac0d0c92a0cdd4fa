"""An export in the format of Delta or Iceberg to an S3 server, looked at by deltalake and pyiceberg."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.tables.table_readers import COLUMNS, LIBRARIES
from tests.spark_export.store.store_world import Row, StoreWorld
from tests.support.s3_server import CREDENTIALS, S3Server


class LogWorld(StoreWorld):
    """table_format: delta or iceberg. catalog: the properties of Iceberg's catalog, as pyiceberg takes them."""

    def __init__(
        self, server: S3Server, bucket: str, node: NodeProcess, stream: str, table_format: str, folder: Path
    ) -> None:
        super().__init__(server, bucket, node, stream)
        self.format = table_format
        self.settings = replace(self.settings, format=table_format)
        self.catalog: dict[str, str] = {}
        if table_format == "iceberg":
            self.catalog = {"uri": f"sqlite:///{folder / 'catalog.sqlite'}"}
            self.settings = replace(self.settings, catalog="sql", catalog_options=self.catalog)

    def rows(self) -> list[Row]:
        table = self.read_delta() if self.format == "delta" else self.read_iceberg()
        found = (
            [] if table is None else zip(*(column.to_pylist() for column in table.select(COLUMNS).columns), strict=True)
        )
        return sorted(found)

    def read_delta(self) -> Any:
        deltalake = pytest.importorskip("deltalake")
        options = {
            "AWS_ENDPOINT_URL": self.server.endpoint,
            "AWS_ALLOW_HTTP": "true",
            **{name.replace("AWS_REGION", "AWS_DEFAULT_REGION"): value for name, value in CREDENTIALS.items()},
        }
        address = f"{self.place}/messages"
        if not deltalake.DeltaTable.is_deltatable(address, options):
            return None
        return deltalake.DeltaTable(address, storage_options=options).to_pyarrow_table(columns=COLUMNS)

    def read_iceberg(self) -> Any:
        catalogs = pytest.importorskip("pyiceberg.catalog")
        missing = pytest.importorskip("pyiceberg.exceptions").NoSuchTableError
        kind = "rest" if self.catalog["uri"].startswith("http") else "sql"
        properties = {"type": kind, "s3.endpoint": self.server.endpoint, **self.catalog}
        catalog = catalogs.load_catalog("stream_node", **properties)
        try:
            return catalog.load_table("export.messages").scan(selected_fields=tuple(COLUMNS)).to_arrow()
        except missing:
            return None
        finally:
            catalog.close()

    def data_files(self) -> list[str]:
        """All data files in the bucket, whether the table's log names them or not."""
        return [name for name in self.objects("messages") if name.endswith(".parquet")]

    def arguments(self, verb: str, *more: str) -> list[str]:
        given = super().arguments(verb, *more)
        if verb in ("run", "daemon"):
            given += ["--format", self.format]
            if self.catalog:
                given += ["--catalog", self.settings.catalog or ""]
                given += [f"--catalog-option={name}={value}" for name, value in self.catalog.items()]
        return given


def tables(*formats: str, usual: str) -> pytest.MarkDecorator:
    """Tables of these formats; only the usual ones outside of soak runs, since each test starts processes."""
    marks = {each: () if each in usual.split() else (pytest.mark.soak,) for each in formats}
    return pytest.mark.parametrize("world", [pytest.param(each, marks=marks[each]) for each in formats], indirect=True)


def world_of(table_format: str, server: S3Server, node: NodeProcess, name: str, folder: Path) -> StoreWorld:
    """An export in this format, with a bucket and a stream of its own. Skips if the format's library is missing."""
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    bucket = server.make_bucket(re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-"))
    if table_format == "parquet":
        return StoreWorld(server, bucket, node, name)
    return LogWorld(server, bucket, node, name, table_format, folder)


def runs(world: StoreWorld, count: int) -> None:
    """Pushes 50 messages and exports them, so many times."""
    for _ in range(count):
        world.push(50)
        world.run()
