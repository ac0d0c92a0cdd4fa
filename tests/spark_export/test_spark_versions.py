"""Goal: one code serves Spark 4.0 to 4.3, and what an older Spark cannot is refused by its name.

Method: the Python code of each version, which .ci/run puts into folders below OLDER_SPARKS. Where it is not there, the
modules of the installed PySpark, without what Spark 4.0 and 4.1 lack. Tests with the mark `older_spark` also run on a
whole Spark 4.0 there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from stream_node.node.process import NodeProcess
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
OLDER = {
    "4.0": """
        import pyspark.sql.datasource as api, pyspark.sql.pandas.types as types
        del api.DataSourceStreamArrowWriter
    """,
    "4.1": """
        import pyspark.sql.datasource as api, pyspark.sql.pandas.types as types
    """,
}
"""What makes of the installed PySpark an older one, besides WITHOUT_LIMITS."""
WITHOUT_LIMITS = """
    import sys

    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name == "pyspark.sql.streaming.datasource":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Hide())
    sys.modules.pop("pyspark.sql.streaming.datasource", None)
    new = types.to_arrow_schema
    types.to_arrow_schema = lambda schema, error_on_duplicated_field_names_in_struct=False, timestamp_utc=True: new(
        schema, timezone="UTC"
    )
"""
PROGRAM = """
    import sys
    from pyspark.sql import Row
    from pyspark.sql.types import BinaryType, StructType
    from spark_export.errors import OptionError
    from spark_export.sink.writer import StreamSink, StreamWriter
    from spark_export.source.options import WriteOptions, read_options
    from spark_export.source.readers import BatchReader, StreamReader
    from spark_export.source.source import StreamNodeSource

    given = {"endpoint": sys.argv[1], "subscribe": sys.argv[2]}
    batch = BatchReader(read_options(given))
    print(sum(each.num_rows for part in batch.partitions() for each in batch.read(part)))
    streaming = StreamReader(read_options({**given, "startingOffsets": "earliest"}))
    start, end = streaming.initialOffset(), streaming.latestOffset()
    print(sum(part.value.count for part in streaming.partitions(start, end)))
    try:
        StreamReader(read_options({**given, "maxOffsetsPerTrigger": "5"}))
    except OptionError as error:
        print(str(error).split()[4])
    gone = {sys.argv[2]: {**end[sys.argv[2]], "7": 3}}
    try:
        streaming.partitions(gone, end)
    except Exception as error:
        print(type(error).__name__)
    options = WriteOptions(endpoint=sys.argv[1], stream=sys.argv[2] + "_copy", exactly_once=False)
    for kind in (StreamWriter, StreamSink):
        writer = kind(StructType().add("value", BinaryType()), options, False)
        print(sum(writer.write(iter([Row(value=b"a"), Row(value=b"b")])).counts.values()))
    print(StreamSink.__bases__[-1].__name__)
"""


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("4.0", ["Spark", "DataLoss", "2", "2", "DataSourceStreamWriter"]),
        ("4.1", ["Spark", "DataLoss", "2", "2", "DataSourceStreamArrowWriter"]),
        ("4.2", ["DataLoss", "2", "2", "DataSourceStreamArrowWriter"]),
    ],
)
def test_an_older_spark_reads_writes_and_says_what_it_lacks(node: NodeProcess, version: str, told: list[str]) -> None:
    """Goal: batch and streaming reads, a partition that vanished, rows in place of Arrow, the missing limits."""
    stream = f"v_old_{version}"
    fill(node, stream, [9])
    code = Path(os.environ.get("OLDER_SPARKS", "")) / f"spark-{version}"
    environment, parts = {**os.environ, "PYTHONPATH": str(code)}, [PROGRAM]
    if not (code / "pyspark").is_dir():
        if version not in OLDER:
            pytest.skip(f"{code} is not there")
        environment, parts = {**os.environ}, [OLDER[version], WITHOUT_LIMITS, PROGRAM]
    program = "".join(map(textwrap.dedent, parts))
    done = subprocess.run(
        [sys.executable, "-c", program, node.address, stream],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.split() == ["9", "9", *told]
