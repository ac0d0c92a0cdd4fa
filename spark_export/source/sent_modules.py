"""Names the modules that travel to Spark's Python processes for the format `stream_node`.

A test compares the names with the imports of these modules. Other modules of this project, such as those that decode
blocks, must be installed where they are used.
"""

from __future__ import annotations

_READING = (
    *(
        "source.bulk_pages",
        "source.endpoint",
        "errors",
        "tables.file_catalog",
        "source.kafka_options",
        "source.node_client",
        "source.node_tls",
        "source.node_token",
        "source.node_wire",
        "source.option_values",
        "source.options",
    ),
    *(
        "source.patterns",
        "source.plan",
        "source.range_reader",
        "source.schema",
        "source.sent_code",
        "source.sent_modules",
    ),
    *("decode.options", "decode.times"),
)
_SOURCE = (
    *(
        "source.attempts",
        "tables.catalog",
        "source.projection",
        "sink.pushes",
        "source.readers",
        "sink.sink",
        "sink.sink_record",
    ),
    *("source.source", "tables.table_options", "sink.write_rows", "sink.writer"),
    *("decode.avro", "decode.block", "decode.cardinal", "decode.converters", "decode.ddl", "decode.decoding"),
    *("decode.objects", "decode.protobuf", "decode.registry", "decode.values"),
)
_TASKS = (
    *(
        "exporter.errors",
        "exporter.tables.file_target",
        "exporter.tables.hive_names",
        "exporter.model",
        "exporter.runs.spark_tasks",
    ),
    *(
        "exporter.runs.task",
        "exporter.tables.write_files",
        "store.data",
        "store.errors",
        "store.options",
        "store.place",
    ),
)
_STORAGE = ("stream_storage.sqlite.bulk.arrow_pages", "stream_storage.checksum")


def _named(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"spark_export.{name}" for group in groups for name in group), *_STORAGE)


SOURCE_MODULES = _named(_READING, _SOURCE)
"""The modules of the format `stream_node`, for reads and writes."""
TASK_MODULES = _named(_READING, _TASKS)
"""The modules of a task of the exporter."""
