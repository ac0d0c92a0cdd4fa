"""Goal: Spark's Python processes need nothing of this project installed, but pyarrow and msgspec.

Method: a Python that finds the installed packages of others and none of ours; the zip that `ship` makes is its only
source of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType, TimestampType

from spark_export import shipping
from spark_export.errors import SourceError
from spark_export.session import JavaMissing, find_java_home
from spark_export.shipping import PACKAGES, make_archive, restore, shipped
from spark_export.sink.writer import StreamWriter
from spark_export.source.options import WriteOptions, read_options
from spark_export.source.readers import BatchReader, StreamReader
from spark_export.source.source import StreamNodeSource
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
NOT_THERE = ("trio", "sqlalchemy", "structlog", "anyio", "deltalake", "pyiceberg")
"""Packages that this project needs elsewhere, and that no worker needs."""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the packages of others, but for NOT_THERE, and without this project."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "packages").mkdir()
    for each in Path(sysconfig.get_paths()["purelib"]).iterdir():
        ours = "stream_node" in each.name or each.name.partition("-")[0] in (*PACKAGES[:-1], *NOT_THERE)
        if not ours and each.suffix != ".pth" and each.name != "mypy_extensions.py":
            (folder / "packages" / each.name).symlink_to(each)
    python = folder / "python"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder / "packages"}:$PYTHONPATH" exec "{base}" "$@"\n')
    python.chmod(0o755)
    return python


def run(python: Path, program: str, *arguments: str, folder: Path) -> list[str]:
    """Runs a program in an empty folder. Returns the words that it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(program), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout.split()


WORKER = """
    import pickle, sys
    try:
        import stream_client
        print("installed")
    except ModuleNotFoundError:
        pass
    sys.path.insert(1, sys.argv[1])
    readers, parts, writer = pickle.load(open(sys.argv[2], "rb"))
    for reader in readers:
        print(sum(batch.num_rows for part in parts for batch in reader.read(part)))
    import pyarrow as pa
    print(sum(writer.write(iter([pa.RecordBatch.from_pydict({"data": [b"a", b"b"]})])).counts.values()))
    print(len(readers[1].partitions({"v_rows": {"0": 0}}, readers[1].initialOffset())))
"""


def test_a_worker_reads_plans_and_writes_with_the_zip_alone(
    node: NodeProcess, bare_python: Path, tmp_path: Path
) -> None:
    """Goal: readers over TCP, of the file and streaming, each decoder, and the writer; pickled by reference."""
    fill(node, "v_rows", [1_200])
    given = {"endpoint": node.address, "subscribe": "v_rows", "includeHeaders": "true", "verifyChecksums": "true"}
    columns = StructType([StructField("a", IntegerType()), StructField("t", TimestampType())])
    pytest.importorskip("fastavro", reason="the extra `avro` is not installed")
    pytest.importorskip("google.protobuf", reason="the extra `protobuf` is not installed")
    registry = {**given, "schemaRegistry": "http://127.0.0.1:1"}
    decoding = [BatchReader(read_options({**registry, "decode": kind}), columns) for kind in ("avro", "protobuf")]
    decoding.append(BatchReader(read_options({**given, "decode": "json"}), columns))
    of_file = BatchReader(read_options({"path": str(node.data_dir), "subscribe": "v_rows"}))
    batch, streaming = BatchReader(read_options(given)), StreamReader(read_options(given))
    writer = StreamWriter(
        StructType([StructField("data", BinaryType())]), WriteOptions(endpoint=node.address, stream="v_out"), False
    )
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(([batch, streaming, of_file, *decoding], batch.partitions(), writer)))
    assert len(sent.read_bytes()) < 20_000, "a class of ours travels by value"
    assert run(bare_python, WORKER, make_archive(), str(sent), folder=tmp_path) == ["1200"] * 6 + ["2", "1"]


def test_a_data_source_finds_its_zip_where_spark_shows_none(bare_python: Path, tmp_path: Path) -> None:
    """Goal: the planner of a streaming query, which sees no file of the session (Spark 4.3), unpickles the source; and
    what it pickles again is unpickled by the next process."""
    (tmp_path / "kind").write_bytes(cloudpickle.dumps(shipped(StreamNodeSource)))
    program = """
        import pickle, sys
        from pyspark import cloudpickle
        source = pickle.load(open("kind", "rb"))(options={"subscribe": "s"})
        open("kind", "wb").write(b"" if len(sys.argv) > 1 else open("kind", "rb").read())
        open("source", "wb").write(cloudpickle.dumps(source))
        print(type(source).__module__, source.name(), sys.modules["stream_client"].__file__.count(".zip"))
    """
    again = """
        import pickle
        source = pickle.load(open("source", "rb"))
        print(len(source.schema().fields))
    """
    assert run(bare_python, program, folder=tmp_path) == ["spark_export.source.source", "stream_node", "1"]
    assert run(bare_python, again, folder=tmp_path) == ["7"]


def test_an_installed_source_is_pickled_without_a_zip() -> None:
    """Goal: where this project is installed, each process takes its own. Method: the source as Spark finds it."""
    source = StreamNodeSource(options={"subscribe": "s"})
    remade, (archive, module, name, options) = source.__reduce__()
    assert (remade, archive, options) == (restore, None, {"subscribe": "s"})
    assert isinstance(restore(archive, module, name, options), StreamNodeSource)


def test_the_module_names_the_zip_for_a_shell() -> None:
    """Goal: `spark-submit --py-files "$(python -m spark_export.shipping)"` submits the packages of this project."""
    named = subprocess.run([sys.executable, "-m", "spark_export.shipping"], capture_output=True, text=True, check=True)
    assert named.stdout == f"{make_archive()}\n"


def test_a_package_without_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a frozen or stripped installation is told at once, and not by a worker."""
    monkeypatch.setattr(shipping, "PACKAGES", ("spark_export_that_is_missing",))
    with pytest.raises(SourceError, match="spark_export_that_is_missing cannot be found"):
        make_archive.__wrapped__()


def test_two_makers_of_the_zip_at_once_do_not_write_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: two makers with one process number, as in two containers, make one whole zip, which then stays as it is: a
    session of Spark has been given it. Method: while the first writes its first module, the second one makes the zip
    from the beginning to the end."""
    made: list[str] = []
    files: list[int] = []
    whole = zipfile.ZipFile.writestr

    def writestr(archive: zipfile.ZipFile, *given: object) -> None:
        if not made:
            made.append("")
            made.append(make_archive.__wrapped__())
            files.append(Path(made[1]).stat().st_ino)
        whole(archive, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(shipping, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(shipping, "PACKAGES", ("bare", "mypy_extensions"))
    monkeypatch.setattr(zipfile.ZipFile, "writestr", writestr)
    last = make_archive.__wrapped__()
    assert made[1:] == [last]
    assert [each.name for each in tmp_path.iterdir()] == [Path(made[1]).name]
    assert files == [Path(last).stat().st_ino]
    with zipfile.ZipFile(made[1]) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(set(archive.namelist())) > 1


PROGRAM = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from spark_export import open_session
    from tests.spark_export.spark_queries import run_query
    spark = open_session("local[1]")
    options = {"endpoint": sys.argv[2], "subscribe": "v_bare"}
    read = spark.read.format("stream_node").options(**options).load()
    print(read.count())
    frame = spark.readStream.format("stream_node").options(startingOffsets="earliest", **options).load()
    for name, target in (("memory", {}), ("stream_node", {"topic": "v_copy", "endpoint": sys.argv[2]})):
        writer = frame.select("key", "value").writeStream.format(name).queryName("seen_" + name).options(**target)
        writer = writer.option("checkpointLocation", "checkpoint_" + name)
        run_query(writer)
    print(spark.table("seen_memory").count())
    copy = read.select("value").write.format("stream_node").mode("append")
    copy.options(topic="v_copy", endpoint=sys.argv[2]).save()
    spark.stop()
"""


@pytest.mark.timeout(900)
def test_a_driver_that_has_the_code_and_workers_that_do_not(
    node: NodeProcess, bare_python: Path, tmp_path: Path
) -> None:
    """Goal: reads, a streaming query, the sink and a write. Method: the driver alone has this folder on its path, and
    Spark's processes, planners included, have not."""
    try:
        find_java_home()
    except JavaMissing as error:
        pytest.skip(str(error))
    fill(node, "v_bare", [30])
    assert run(bare_python, PROGRAM, str(ROOT), node.address, folder=tmp_path) == ["30", "30"]
    with blocking.connect(node.address) as client:
        assert sum(each.count for each in client.get_stream("v_copy").info()) == 60
