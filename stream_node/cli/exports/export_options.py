"""The options that the commands of `stream-node export` share, and the exporter settings that are made from them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from stream_node.cli.options import ContextOption, NodeOption, NodeOptions, proof_for
from stream_node.cli.values import UsageError, parse_duration, parse_size, split_pair


def parse_folder(text: str) -> Any:
    """Returns the address of an export: a folder, or a prefix in a store. Raises UsageError for other addresses."""
    from spark_export.tables.address import parse_place
    from spark_export.tables.errors import TableRefused

    try:
        return parse_place(text)
    except TableRefused as error:
        raise UsageError(str(error)) from error


FolderArgument = Annotated[
    Any,
    typer.Argument(parser=parse_folder),
    "FOLDER",
    "The folder of the export, or its address: s3://BUCKET/PREFIX, gs://, abfs://, hdfs://. It may be a Delta "
    "table that exists.",
]
AUTO, EMBEDDED, INLINE = "auto", "local[*,4]", "inline"
ConfOption = Annotated[list[str] | None, "NAME=VALUE", "A setting of Spark; may be repeated."]
NiceOption = Annotated[
    int,
    typer.Option(min=0, max=19),
    "The niceness of the export, as in nice(1). A higher value leaves more processor time to the node.",
]
NICE = 7
"""The default niceness of an export, as in nice(1).
With it, on a machine with two cores, pushes keep nine tenths of their rate during an export. With a larger value, an
export on a busy machine would get almost no processor time."""
KeepOption = Annotated[
    int | None,
    typer.Option(parser=parse_duration),
    "TIME",
    "How long replaced files and old snapshots are kept for readers. Without it: 1h; for Delta and Iceberg 5d.",
]
LogLevelOption = Annotated[
    str, "The lowest level of log lines, which are JSON lines on stderr: debug, info, warning or error."
]


class TableOptions(NamedTuple):
    store_option: Annotated[
        list[str] | None,
        "NAME=VALUE",
        "An option of the store, such as endpoint=http://10.0.0.5:9000; may be repeated. Credentials come "
        "from the environment.",
    ] = None
    catalog: Annotated[
        str | None,
        "NAME",
        "The name of an Iceberg table's catalog, as in the configuration of pyiceberg. Later commands use the "
        "same catalog. Without it, the catalog is a file in the folder of the export.",
    ] = None
    catalog_option: Annotated[
        list[str] | None,
        "NAME=VALUE",
        "A property of the catalog, such as type=rest or uri=https://catalog:8181, which is passed to "
        "pyiceberg unchanged; may be repeated. Secrets come from the environment: PYICEBERG_CATALOG__NAME__TOKEN.",
    ] = None
    catalog_table: Annotated[
        str | None, "NAMESPACE.NAME", "The table's name in the catalog. Without it: export.messages."
    ] = None
    history: Annotated[
        Path | None,
        "FILE",
        "The SQLite file of the history. Without it: _history.sqlite in the folder, or a file in your state "
        "folder for a store.",
    ] = None

    def store_options(self, place: Any) -> dict[str, str]:
        """Returns the options of the store. Raises UsageError for an unknown one."""
        from spark_export.tables.address import complete_options
        from spark_export.tables.errors import TableRefused

        options = pairs(self.store_option)
        try:
            complete_options(place, options)
        except TableRefused as error:
            raise UsageError(str(error)) from error
        return options

    def choice(self) -> Any:
        """Returns the choice of a catalog, or None. Raises UsageError."""
        from spark_export.tables.log import CatalogChoice

        if self.catalog is None:
            if self.catalog_option or self.catalog_table:
                raise UsageError("--catalog-option and --catalog-table need --catalog")
            return None
        return CatalogChoice(self.catalog, pairs(self.catalog_option), self.catalog_table)

    def open(self, place: Any) -> Any:
        """Returns the `spark_export.tables.log.TableLog` of an export that exists. Raises ExportError, UsageError."""
        from spark_export.exporter.job import open_existing

        return open_existing(place, self.store_options(place), self.choice())

    def history_of(self, place: Any) -> Any:
        from spark_export.exporter.history import history_of

        return history_of(place, self.history)


PLAIN_TABLE = TableOptions()


class DecodingOptions(NamedTuple):
    decode: Annotated[
        str | None,
        "KIND",
        "Add columns with the contents of the messages: json, cbor, avro, protobuf, cardinal or block.",
    ] = None
    schema: Annotated[
        str | None, "COLUMNS", "The decoded columns, as in Spark: 'id INT, amount DECIMAL(10,2), _problem STRING'."
    ] = None
    decode_option: Annotated[
        list[str] | None, "NAME=VALUE", "An option of the decoder, such as avroSchema=FILE; may be repeated."
    ] = None
    without_data: Annotated[
        bool, "Leave the column `data` out of a new table, which has the decoded columns in its place."
    ] = False

    def decoder(self) -> Any:
        """Returns a `spark_export.decode.decoding.MessageDecoder`, or None. Raises UsageError."""
        if self.decode is None:
            if self.schema or self.decode_option or self.without_data:
                raise UsageError("--schema, --decode-option and --without-data need --decode")
            return None
        from spark_export.decode.decoding import decoder
        from spark_export.decode.options import DECODE_OPTIONS
        from spark_export.errors import OptionError

        options = pairs(self.decode_option)
        known = {each.lower() for each in DECODE_OPTIONS}
        if unknown := [name for name in options if name.lower() not in known]:
            raise UsageError(f"--decode-option {unknown[0]}: there are {', '.join(DECODE_OPTIONS)}")
        try:
            made = decoder(self.decode, self.schema, options)
        except OptionError as error:
            raise UsageError(f"--decode {self.decode}: {error}") from error
        from spark_export.tables.columns import ROWS

        taken = {each.lower() for each in (*ROWS.names, "date", "run")}
        if clash := [each.name for each in made.fields if each.name.lower() in taken]:
            names = ", ".join(clash)
            raise UsageError(f"--schema: the table has columns of its own named {names}; leave them out of the schema")
        return made


class ExportOptions(NamedTuple):
    folder: FolderArgument
    stream: Annotated[list[str] | None, "NAME", "Export this stream. May be repeated. Without it, all streams."] = None
    pattern: Annotated[
        str | None,
        "REGEX",
        "Export the streams whose whole name matches this pattern, including streams that are created later.",
    ] = None
    node: NodeOption = None
    context: ContextOption = None
    data_dir: Annotated[
        Path | None,
        "The node's data directory. The export then reads the database directly instead of through the node. "
        "All tasks must run on the node's machine.",
    ] = None
    table_format: Annotated[
        str | None,
        typer.Option("--format"),
        "The format of a new table: parquet, delta or iceberg. Without it: parquet in a folder, delta on a store.",
    ] = None
    client: Annotated[
        str | None,
        "The name of the consumer under which the node shows the export's position. Without it: export-FOLDER-ID.",
    ] = None
    accept_lost: Annotated[
        bool, "If retention has deleted messages that were not exported yet, report the loss and continue."
    ] = False
    table: TableOptions = PLAIN_TABLE
    verify_checksums: Annotated[
        bool,
        "Check the checksum of every message. A stream with a damaged message is left out. The check takes "
        "about half a second for a million messages.",
    ] = False
    rows_max: Annotated[
        int | None,
        typer.Option(min=1),
        "N",
        "The maximum number of rows in one step. New messages are exported in steps, and a crash loses at "
        "most the current step. Without it, 5 million.",
    ] = None
    bytes_max: Annotated[
        int | None,
        typer.Option(parser=parse_size),
        "SIZE",
        "The maximum size of the data in one step, estimated from the average message: 500MB, 10GiB. Without it, 2GiB.",
    ] = None
    seconds_max: Annotated[
        float | None,
        typer.Option(min=0),
        "SECONDS",
        "The time after which the run begins no step. Steps are made small enough to end before it. The next "
        "run exports the rest.",
    ] = None
    decoding: DecodingOptions = DecodingOptions()

    def settings(self) -> Any:
        """Returns `spark_export.exporter.job.ExportSettings`. Raises UsageError, ContextError."""
        import re

        from spark_export.exporter.job import ExportSettings
        from spark_export.exporter.node_side import Selection
        from spark_export.source.options import compile_pattern
        from spark_export.tables.log import FORMATS

        if self.table_format not in (None, *FORMATS):
            raise UsageError(f"--format {self.table_format}: one of {', '.join(FORMATS)}")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise UsageError(f"--data-dir {self.data_dir} is no folder")
        if self.pattern is not None:
            try:
                compile_pattern(self.pattern)
            except re.error as error:
                raise UsageError(f"--pattern {self.pattern!r} is not a regular expression: {error}") from error
        choice = self.table.choice()
        if choice is not None and self.table_format not in (None, "iceberg"):
            raise UsageError(
                f"--catalog {choice.name}: only tables in the format iceberg have a catalog; say --format iceberg"
            )
        if self.bytes_max == 0:
            raise UsageError("--bytes-max 0: a step needs room for a message")
        target = NodeOptions(self.node, self.context).target()
        if target.via:
            raise UsageError(
                f"{target.address} is reached through {', '.join(target.via)}; an export connects to the node itself"
            )
        tls, token = proof_for(target)
        return ExportSettings(
            folder=self.folder,
            node=target.address,
            data_dir=self.data_dir,
            selection=Selection(tuple(self.stream or ()), self.pattern),
            client_id=self.client,
            format=self.table_format,
            accept_lost=self.accept_lost,
            verify_checksums=self.verify_checksums,
            rows_max=self.rows_max,
            bytes_max=self.bytes_max,
            seconds_max=self.seconds_max,
            decoder=self.decoding.decoder(),
            without_data=self.decoding.without_data,
            store_options=self.table.store_options(self.folder),
            catalog=choice,
            history=self.table.history,
            tls=tls,
            token=token,
        )


class SparkOptions(NamedTuple):
    master: Annotated[
        str,
        "MASTER",
        "What writes the files. inline: threads of this process. local[*,4], spark://HOST:PORT, yarn, "
        "k8s://…: Spark. auto: Spark on this machine if the extra `spark` is installed, otherwise inline.",
    ] = AUTO
    remote: Annotated[str | None, "sc://HOST:PORT", "A Spark Connect server in place of a master."] = None
    conf: ConfOption = None
    aot_cache: Annotated[
        Path | None,
        "FILE",
        "A file in which Spark keeps its loaded classes (0.2 GB); needs Java 25. The first start writes it, "
        "and later ones take half the time.",
    ] = None

    def open_exporter(self, settings: Any) -> Any:
        """Returns the exporter. Raises UsageError, ExportError."""
        auto = EMBEDDED if find_spec("pyspark") is not None else INLINE
        master = auto if self.master == AUTO else self.master
        if self.remote is None and master == INLINE:
            from spark_export.exporter.run import Exporter

            return Exporter(settings)
        from spark_export.exporter.application import SparkExporter

        if settings.seconds_max is not None:
            raise UsageError("--seconds-max is no setting of Spark; leave it out, or say --master inline")
        options = {"master": master, "remote": self.remote, "config": pairs(self.conf), "aot_cache": self.aot_cache}
        return SparkExporter(settings, **options)


def pairs(texts: list[str] | None) -> dict[str, str]:
    """Parses settings of the form NAME=VALUE. Raises UsageError."""
    return dict(split_pair(text, "a setting") for text in texts or ())
