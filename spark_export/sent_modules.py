"""Names the modules that travel to Spark's Python processes for the format `stream_node`.

A test compares the names with the imports of these modules. Other modules of this project, such as those that decode
blocks, must be installed where they are used.
"""

from __future__ import annotations

_READING = (
    *(
        "bulk_pages",
        "endpoint",
        "errors",
        "file_catalog",
        "kafka_options",
        "node_client",
        "node_tls",
        "node_token",
        "node_wire",
        "option_values",
        "options",
    ),
    *("patterns", "plan", "range_reader", "schema", "sent_code", "sent_modules"),
    *("decode.schema_options", "decode.time_texts"),
)
_SOURCE = (
    *("attempts", "block_decoding", "catalog", "decoding", "projection", "pushes", "readers", "sink", "sink_record"),
    *("source", "table_options", "write_rows", "writer"),
    *("decode.avro", "decode.json_page", "decode.json_text", "decode.objects", "decode.protobuf", "decode.registry"),
    *("decode.rows", "decode.typed_values", "decode.value_text"),
)
_TASKS = (
    *("exporter.errors", "exporter.file_target", "exporter.hive_names", "exporter.model", "exporter.spark_tasks"),
    *("exporter.task", "exporter.write_files", "store.data", "store.errors", "store.options", "store.place"),
)
_STORAGE = ("storage.sqlite.bulk.arrow_pages", "storage.checksum")


def _named(*groups: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"spark_export.{name}" for group in groups for name in group), *_STORAGE)


SOURCE_MODULES = _named(_READING, _SOURCE)
"""The modules of the format `stream_node`, for reads and writes."""
TASK_MODULES = _named(_READING, _TASKS)
"""The modules of a task of the exporter."""
