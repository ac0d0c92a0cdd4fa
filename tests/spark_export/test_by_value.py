"""Trap 10: workers need nothing of ours. Method: what Spark sends, unpickled where ours cannot be imported.

By reference, or from a zip, PySpark 4.3 finds the source in batch reads only, or not at all; `register` sends its code.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark import cloudpickle

from spark_export.registration import send_by_value
from spark_export.sink.writer import StreamWriter
from spark_export.source.options import WriteOptions, read_options
from spark_export.source.readers import BatchReader, StreamReader
from stream_node.node.process import NodeProcess
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark

WORKER = """
import pickle, sys

OURS = {"spark_export", "pyspark_stream_node", "stream_storage", "stream_service", "stream_node", "ockam", "bare",
        "msgspec", "trio", "sqlalchemy", "structlog", "anyio"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"{name} is not on this worker")

sys.meta_path.insert(0, Refuse())
readers, parts, writer = pickle.load(open(sys.argv[1], "rb"))
for reader in readers:
    print(sum(batch.num_rows for part in parts for batch in reader.read(part)))
import pyarrow as pa
print(sum(writer.write(iter([pa.RecordBatch.from_pydict({"data": [b"a", b"b"]})])).counts.values()))
print(len(readers[1].partitions({"v_rows": {"0": 0}}, readers[1].initialOffset())))
"""


def test_a_worker_without_our_packages_reads_and_writes(node: NodeProcess, tmp_path: Path) -> None:
    """Goal: readers over TCP, of the file and streaming, and the writer; planning too, as a Connect server does it."""
    from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType, TimestampType

    fill(node, "v_rows", [1_200])
    send_by_value()
    given = {"endpoint": node.address, "subscribe": "v_rows", "includeHeaders": "true", "verifyChecksums": "true"}
    batch = BatchReader(read_options(given))
    columns = StructType([StructField("a", IntegerType()), StructField("t", TimestampType())])
    decoding = BatchReader(read_options({**given, "decode": "json"}), columns)
    pytest.importorskip("fastavro", reason="the extra `avro` is not installed")
    pytest.importorskip("google.protobuf", reason="the extra `protobuf` is not installed")
    registry = {**given, "schemaRegistry": "http://127.0.0.1:1"}
    others = [BatchReader(read_options({**registry, "decode": kind}), columns) for kind in ("avro", "protobuf")]
    of_file = BatchReader(read_options({"path": str(node.data_dir), "subscribe": "v_rows"}))
    streaming = StreamReader(read_options(given))
    writer = StreamWriter(
        StructType([StructField("data", BinaryType())]), WriteOptions(endpoint=node.address, stream="v_out"), False
    )
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(([batch, streaming, of_file, decoding, *others], batch.partitions(), writer)))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(sent)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1200"] * 6 + ["2", "1"]), done.stderr
