"""The settings of an export, and the table at its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.planning import STEP_BYTES_MAX, STEP_ROWS_MAX
from spark_export.tables.address import StoreLocation, parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import TableRefused, full_disk_told
from spark_export.tables.log import CatalogChoice, TableLog, find_format, open_table
from spark_export.tables.model import FilesPlan, TableState
from stream_client import Tls, Token

if TYPE_CHECKING:
    from spark_export.decode.decoding import MessageDecoder

SUFFIX_CHARACTERS = 6
OWN_NAMES = (
    *("messages", "generations", "staging", "catalog.sqlite", "catalog.sqlite-journal", "ledger.sqlite"),
    "lost+found",
)
"""Names that a folder may have before its table exists, besides `_…` and `.…`. The root of a disk has `lost+found`."""


@dataclass(frozen=True)
class ExportSettings:
    """The settings of an export, with Spark or without.

    folder: the folder of the export, or its address on a store, or a Delta table of the user's own.
    node: the address of the node. data_dir: the node's data directory, to read the database in place of the node.
    client_id: the consumer name under which the node gets the positions; None: `export-FOLDER-ID`.
    format: parquet, delta or iceberg; None: that of the existing table. A new table is then of iceberg if there is a
        `catalog`, else of parquet in a folder and of delta on a store.
    accept_lost: whether to export streams that lost messages, or were made anew.
    rows_max, bytes_max: the largest number of rows of a step, and the largest estimated size of its message data.
    seconds_max: the time limit, see `spark_export.exporter.planning.Pace`. On Spark it has no effect.
    decoder: adds columns to the rows, see `spark_export.decode.decoding.decoder`. without_data: leaves out `data`.
    store_options: the options of the store, see `spark_export.tables.address`.
    history: the file of the history; None: in the folder, or in this user's state folder for a store.
    tls, token: how this process and the executors connect to the node; files must be there on each executor, too.
    """

    folder: Path | str | StoreLocation
    node: str
    data_dir: Path | None = None
    selection: Selection = field(default_factory=Selection)
    client_id: str | None = None
    format: str | None = None
    accept_lost: bool = False
    verify_checksums: bool = False
    rows_max: int | None = None
    bytes_max: int | None = None
    seconds_max: float | None = None
    decoder: MessageDecoder | None = None
    without_data: bool = False
    store_options: dict[str, str] = field(default_factory=dict)
    catalog: CatalogChoice | None = None
    history: Path | None = None
    tls: Tls | None = None
    token: Token | None = None

    def place(self) -> StoreLocation:
        return self.folder if isinstance(self.folder, StoreLocation) else parse_place(self.folder)

    def node_side(self) -> NodeSide:
        checked = self.verify_checksums
        return NodeSide(self.node, self.tls, self.token, data_dir=self.data_dir, verify_checksums=checked)

    def step_sizes(self, factor: int = 1) -> tuple[int, int]:
        """Returns the most rows and bytes of a step."""
        return self.rows_max or STEP_ROWS_MAX * factor, self.bytes_max or STEP_BYTES_MAX * factor

    def columns(self) -> pa.Schema:
        """Returns the columns of the rows: those of the messages, and those of the decoder."""
        fields = [each for each in ROWS if not (self.without_data and each.name == "data")]
        return pa.schema([*fields, *(self.decoder.fields if self.decoder is not None else ())])

    def open_log(self) -> TableLog:
        """Returns the table, which is created if it does not exist. Raises ExportError."""
        # The history, which needs aiosqlite, is written after the first commit. Fail now, before anything is made.
        if find_spec("aiosqlite") is None:
            raise ModuleNotFoundError("No module named 'aiosqlite'", name="aiosqlite")
        place, found = self.place(), find_format(self.place(), self.store_options)
        if found is None and place.is_local and place.folder.is_dir():
            # If two exporters start at once in a new folder, each may find names that the other has made: OWN_NAMES.
            names = sorted(each.name for each in place.folder.iterdir())
            if strange := [each for each in names if not each.startswith((".", "_")) and each not in OWN_NAMES]:
                more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
                raise TableRefused(
                    f"{place} is no export and is not empty, it has {strange[0]}{more}: export into an empty or a new "
                    "folder"
                )
        if found is not None and self.format not in (None, found):
            raise TableRefused(f"{place} has a table in the format {found}, not {self.format}; leave --format out")
        with full_disk_told(place):
            log = open_table(place, found or self.format, self.store_options, self.catalog)
            log.create(self.columns())
        return log

    def plan_files(self, log: TableLog, state: TableState) -> FilesPlan:
        return log.files_plan(state, self.columns(), convert=self.decoder)

    def consumer(self, table_id: str) -> str:
        return self.client_id or f"export-{self.place().name}-{table_id.replace('-', '')[:SUFFIX_CHARACTERS]}"


def open_existing(
    folder: Path | str | StoreLocation,
    store_options: Mapping[str, str] | None = None,
    catalog: CatalogChoice | None = None,
) -> TableLog:
    """Returns the table of an export that exists. Raises TableRefused if there is none."""
    place = folder if isinstance(folder, StoreLocation) else parse_place(folder)
    log = open_table(place, None, store_options, catalog)
    if not log.exists():
        raise TableRefused(f"{place} holds no export")
    return log


def table_files(address: str | Path, store_options: Mapping[str, str] | None = None) -> list[str]:
    """Returns the files of an exported table at this moment: local paths, or addresses in a store.

    store_options: options of the store, such as endpoint and region. Raises ExportError if there is no export.
    """
    return [plain_path(each.address) for each in open_existing(address, store_options).list_files()]


def plain_path(address: str) -> str:
    """Converts file:///PATH, which not all readers can open, to the path. Returns any other address unchanged."""
    return "/" + address.removeprefix("file:").lstrip("/") if address.startswith("file:/") else address
