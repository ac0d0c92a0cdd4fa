"""The options that the commands of `stream-node export` share, and the exporter settings that are made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from stream_node.cli.options import ContextOption, NodeOption, NodeOptions
from stream_node.cli.request_options import proof_for
from stream_node.cli.values import UsageError, parse_size


def parse_folder(text: str) -> Any:
    """Returns the folder of an export as a path, or its address on a store. Raises UsageError for other addresses."""
    from spark_export.store.errors import PlaceRefused
    from spark_export.store.place import parse_place

    try:
        place = parse_place(text)
    except PlaceRefused as error:
        raise UsageError(str(error)) from error
    return place.folder if place.is_local else place


FolderArgument = Annotated[
    Any,
    typer.Argument(
        parser=parse_folder,
        metavar="FOLDER",
        help="The folder of the export, or its address: s3://BUCKET/PREFIX, gs://, abfs://, hdfs://. With a cluster, "
        "every executor must see a folder under this path.",
    ),
]
StoreOptionOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the store, such as endpoint=http://10.0.0.5:9000; may be repeated. Credentials come from "
        "the environment.",
    ),
]
LedgerOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="STREAM_NODE_EXPORT_LEDGER",
        help="A database for the ledger: sqlite+aiosqlite:////PATH, or postgresql+asyncpg://USER@HOST/DATABASE. "
        "Without it, the ledger is kept with the table.",
    ),
]
StreamOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Export this stream. May be repeated. Without it, all streams.")
]
PatternOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Export the streams whose whole name matches this pattern, including streams that are created later.",
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        help="The node's data directory. The export then reads the database directly instead of through the node. "
        "All tasks must run on the node's machine."
    ),
]
FormatOption = Annotated[str, typer.Option("--format", help="The format of the table: parquet, delta or iceberg.")]
CatalogOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="The kind of an Iceberg table's catalog: rest, sql, hive, glue. Later runs use the same catalog. For a "
        "new table without this option, the catalog is a file in the folder of the export.",
    ),
]
CatalogOptionOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A property of the catalog, such as uri=https://catalog:8181, which is passed to pyiceberg unchanged; "
        "may be repeated. Secrets come from the environment: PYICEBERG_CATALOG__STREAM_NODE__TOKEN.",
    ),
]
CatalogTableOption = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE.NAME", help="The table's name in the catalog. Without it: export.messages."),
]
MasterOption = Annotated[
    str,
    typer.Option(
        help="What runs the tasks. inline: threads of the command, without Spark and Java. local[*,4], "
        "spark://HOST:PORT, yarn, k8s://…: Spark with this master. auto: inline, or local[*,4] if there are "
        "more than 64 GiB of new data and Java is installed, or with a setting of Spark."
    ),
]
RemoteOption = Annotated[
    str | None, typer.Option(metavar="sc://HOST:PORT", help="A Spark Connect server in place of a master.")
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated. With it, auto always uses Spark."),
]
AotCacheOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file in which Spark keeps its loaded classes (0.2 GB); needs Java 25. The first run writes it, and "
        "later runs start faster.",
    ),
]
ClientOption = Annotated[
    str | None,
    typer.Option(
        help="The name of the consumer whose position is saved. Without it: export-FOLDER-ID, the table's own name."
    ),
]
AcceptLostOption = Annotated[
    bool,
    typer.Option(help="If retention has deleted messages that were not exported yet, report the loss and continue."),
]
VerifyChecksumsOption = Annotated[
    bool,
    typer.Option(
        help="Check the checksum of every message. A stream with a damaged message is left out. The check takes "
        "about half a second for a million messages."
    ),
]
RowsMaxOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="The maximum number of rows in one step. New messages are exported in steps, and a crash loses at most "
        "the current step. Without it, 5 million; 50 million on a cluster.",
    ),
]
BytesMaxOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="The maximum size of the data in one step, estimated from the average message: 500MB, 10GiB. Without "
        "it, 2GiB; 20GiB on a cluster.",
    ),
]
SecondsMaxOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="The time after which the run begins no step. Steps are made small enough to end before it. The next "
        "run exports the rest.",
    ),
]
NiceOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=19,
        help="The niceness of the export and its Spark, as in nice(1). A higher value leaves more processor time to "
        "the node.",
    ),
]
NICE = 7
"""The default niceness of an export, as in nice(1).
With it, on a machine with two cores, pushes keep nine tenths of their rate during an export. With a larger value, an
export on a busy machine would get almost no processor time."""
MASTERS = r"auto|inline|local(-cluster)?(\[.+\])?|spark://.+|yarn|k8s://.+"
KeepOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long replaced files and old snapshots are kept for readers. Without it: 1h; for Delta and Iceberg "
        "5d.",
    ),
]
LogLevelOption = Annotated[
    str,
    typer.Option(help="The lowest level of log lines, which are JSON lines on stderr: debug, info, warning or error."),
]


class StoreOptions(NamedTuple):
    """How a command reaches an export that exists."""

    store_option: StoreOptionOption = None
    ledger: LedgerOption = None

    def address_of(self, folder: Any) -> Any:
        """Returns the address of an export: its folder, the options of its store, and its ledger. Raises UsageError."""
        from spark_export.exporter.address import TableAddress
        from spark_export.exporter.errors import ExportError
        from spark_export.exporter.ledger.url import parse_url
        from spark_export.store.options import complete_options

        options = dict(_pair(each) for each in self.store_option or ())
        try:
            place = TableAddress.of(folder).place
            complete_options(place, options)
            if self.ledger is not None:
                parse_url(self.ledger)
        except ExportError as error:
            raise UsageError(str(error)) from error
        return TableAddress(place, options, self.ledger)


PLAIN_STORE = StoreOptions()


class ExportOptions(NamedTuple):
    """What an export takes from where, and how."""

    folder: FolderArgument
    stream: StreamOption = None
    pattern: PatternOption = None
    node: NodeOption = None
    context: ContextOption = None
    data_dir: DataDirOption = None
    table_format: FormatOption = "parquet"
    master: MasterOption = "auto"
    remote: RemoteOption = None
    conf: ConfOption = None
    aot_cache: AotCacheOption = None
    client: ClientOption = None
    accept_lost: AcceptLostOption = False
    store: StoreOptions = PLAIN_STORE
    verify_checksums: VerifyChecksumsOption = False
    rows_max: RowsMaxOption = None
    bytes_max: BytesMaxOption = None
    seconds_max: SecondsMaxOption = None
    catalog: CatalogOption = None
    catalog_option: CatalogOptionOption = None
    catalog_table: CatalogTableOption = None

    def settings(self) -> dict[str, Any]:
        """Returns the values for `spark_export.exporter.runs.job.ExportSettings`. Raises UsageError, ContextError."""
        import re

        from spark_export.exporter.node_side import Selection
        from spark_export.exporter.tables.table import FORMATS
        from spark_export.source.patterns import compile_pattern

        if self.table_format not in FORMATS:
            raise UsageError(f"--format {self.table_format}: one of {', '.join(FORMATS)}")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise UsageError(f"--data-dir {self.data_dir} is no folder")
        if not re.fullmatch(MASTERS, self.master):
            raise UsageError(
                f"--master {self.master}: it is local[N], spark://HOST:PORT, yarn, k8s://…, inline or auto"
            )
        if self.master == "inline" and (self.conf or self.aot_cache is not None):
            raise UsageError("--conf and --aot-cache are settings of Spark, which --master inline does not use")
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise UsageError(f"--remote {self.remote}: it is sc://HOST:PORT")
        if self.pattern is not None:
            try:
                compile_pattern(self.pattern)
            except re.error as error:
                raise UsageError(f"--pattern {self.pattern!r} is not a regular expression: {error}") from error
        if self.catalog is None and (self.catalog_option or self.catalog_table):
            raise UsageError("--catalog-option and --catalog-table need --catalog")
        if self.catalog is not None and self.table_format != "iceberg":
            raise UsageError(
                f"--catalog {self.catalog}: only tables in the format iceberg have a catalog; say --format iceberg"
            )
        bytes_most = None if self.bytes_max is None else parse_size(self.bytes_max)
        if bytes_most == 0:
            raise UsageError("--bytes-max 0: a step needs room for a message")
        target = NodeOptions(self.node, self.context).target()
        if target.via:
            raise UsageError(
                f"{target.address} is reached through {', '.join(target.via)}; executors connect to the node itself"
            )
        tls, token = proof_for(target)
        return {
            "folder": self.folder,
            "node": target.address,
            "tls": tls,
            "token": token,
            "data_dir": self.data_dir,
            "selection": Selection(tuple(self.stream or ()), self.pattern),
            "client_id": self.client,
            "format": self.table_format,
            "master": self.master,
            "remote": self.remote,
            "conf": dict(_pair(each) for each in self.conf or ()),
            "aot_cache": self.aot_cache,
            "accept_lost": self.accept_lost,
            "store_options": self.store.address_of(self.folder).options,
            "ledger": self.store.ledger,
            "verify_checksums": self.verify_checksums,
            "rows_max": self.rows_max,
            "bytes_max": bytes_most,
            "seconds_max": self.seconds_max,
            "catalog": self.catalog,
            "catalog_options": dict(_pair(each) for each in self.catalog_option or ()),
            "catalog_table": self.catalog_table,
        }


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not a setting: NAME=VALUE")
    return name, value
