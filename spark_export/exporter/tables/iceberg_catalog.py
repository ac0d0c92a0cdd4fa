"""The catalog of an Iceberg table: an SQLite file in the export's folder, or a catalog that the user chooses.

The user's choice is stored with the table, so that all commands find the catalog. The stored choice contains no
secrets. pyiceberg reads secrets from its own file and from environment variables, for example
PYICEBERG_CATALOG__STREAM_NODE__TOKEN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ockam.files.parsing import parse_json
from spark_export.exporter.errors import ExportMismatch, ExtraMissing
from spark_export.exporter.tables.iceberg_retries import name_strategy
from spark_export.exporter.tables.layout import Layout
from spark_export.store.data import CONNECT_S
from spark_export.store.errors import ObjectExists, ObjectMissing
from spark_export.store.local_store import LocalStore
from spark_export.store.place import parse_place
from spark_export.store.store import Store

CATALOG_FILE = "catalog.sqlite"
CHOICE, STORED_CHOICE = "catalog.json", "_export/catalog.json"
"""The names of the file with the user's choice of a catalog: in a folder, and on a store."""
CATALOG_NAME = "stream_node"
FOLDERS_CATALOG = "stream-node"
"""The name of the SQLite catalog in the export's folder."""
TABLE_NAME = "export.messages"
KINDS = ("rest", "sql", "hive", "glue", "dynamodb", "bigquery")
"""The types of catalogs, by their names in pyiceberg."""
SECRET_PARTS = ("token", "credential", "secret", "password", "access-key")


@dataclass(frozen=True)
class CatalogChoice:
    """The user's choice of a catalog.

    table: the table's namespace and name in the catalog, separated by a dot. options: properties for pyiceberg.
    """

    kind: str
    table: str
    options: Mapping[str, str]

    def check(self) -> None:
        """Raises ExportMismatch if the kind is unknown, the table has no namespace, or an option is a secret."""
        if self.kind not in KINDS:
            raise ExportMismatch(f"--catalog {self.kind}: it is one of {', '.join(KINDS)}")
        namespace, _, name = self.table.rpartition(".")
        if not namespace or not name:
            raise ExportMismatch(f"--catalog-table {self.table}: it is NAMESPACE.NAME")
        for option in self.options:
            if any(part in option.lower() for part in SECRET_PARTS):
                variable = f"PYICEBERG_CATALOG__{CATALOG_NAME.upper()}__{option.upper().replace('-', '_')}"
                raise ExportMismatch(
                    f"--catalog-option {option}: a secret is not given as an option, which `ps` shows; set {variable}"
                )


def keep_choice(layout: Layout, choice: CatalogChoice) -> None:
    """Stores the choice with the table. Raises ExportMismatch if the table already has another catalog or name."""
    choice.check()
    found = _read_choice(layout)
    if found is None and layout.store is None and (layout.folder / CATALOG_FILE).exists():
        raise ExportMismatch(f"the table's catalog is {layout.folder / CATALOG_FILE}; leave --catalog out")
    if found is None:
        store, name = _place(layout)
        try:
            store.create(name, json.dumps(asdict(choice), sort_keys=True).encode())
        except ObjectExists:
            found = _read_choice(layout)
    if found is not None and (found.kind, found.table) != (choice.kind, choice.table):
        raise ExportMismatch(
            f"the table is {found.table} in a catalog of the kind {found.kind}, not {choice.table} in one of the kind "
            f"{choice.kind}"
        )
    if found is not None and dict(found.options) != dict(choice.options):
        store, name = _place(layout)
        store.swap(name, json.dumps(asdict(choice), sort_keys=True).encode(), store.read_tagged(name).tag)


def open_catalog(layout: Layout) -> tuple[Any, tuple[str, ...]]:
    """Returns the catalog of the table, and the table's name in it. Raises ExportMismatch, ExtraMissing."""
    choice = _read_choice(layout)
    if choice is None and layout.store is not None:
        raise ExportMismatch(
            "an Iceberg table on a store needs a catalog: --catalog rest --catalog-option uri=https://…, or --catalog "
            "sql --catalog-option uri=postgresql+psycopg2://…"
        )
    if choice is None:
        from pyiceberg.catalog.sql import SqlCatalog

        address = f"sqlite:///{layout.folder / CATALOG_FILE}"
        folders = SqlCatalog(FOLDERS_CATALOG, uri=address, warehouse=f"file://{layout.folder}")
        return folders, tuple(TABLE_NAME.split("."))
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    given = {**_file_options(layout.store), **choice.options, "type": choice.kind}
    try:
        return load_catalog(CATALOG_NAME, **given), tuple(choice.table.split("."))
    except (NotInstalledError, ModuleNotFoundError) as error:
        raise ExtraMissing(f"the catalog {choice.kind}: {error}; pip install 'pyiceberg[{choice.kind}]'") from error


def _file_options(store: Store | None) -> dict[str, str]:
    if store is None:
        return {}
    options, scheme = store.options, store.place.scheme
    names = {
        "s3": {"endpoint": "s3.endpoint", "region": "s3.region", "anonymous": "s3.anonymous"},
        "gs": {"endpoint": "gcs.service.host", "project": "gcs.project-id"},
        "abfs": {"account": "adls.account-name", "endpoint": "adls.blob-storage-authority"},
        "hdfs": {"user": "hdfs.user"},
    }[scheme]
    found = {name: options[option] for option, name in names.items() if option in options}
    if scheme == "s3":
        found |= {"s3.connect-timeout": str(CONNECT_S), "s3.request-timeout": options["timeout_s"]}
        found["s3.retry-strategy-impl"] = name_strategy(options["tries"])
    return found


def _read_choice(layout: Layout) -> CatalogChoice | None:
    store, name = _place(layout)
    try:
        return CatalogChoice(**parse_json(store.read(name)))
    except ObjectMissing:
        return None
    except (ValueError, TypeError) as error:
        raise ExportMismatch(f"{store.place / name} is not what an exporter writes: {error}") from error


def _place(layout: Layout) -> tuple[Store, str]:
    if layout.store is not None:
        return layout.store, STORED_CHOICE
    return LocalStore(parse_place(Path(layout.folder)), {}), CHOICE
