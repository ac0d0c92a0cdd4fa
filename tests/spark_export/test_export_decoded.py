"""Goal: a table with decoded columns, so that not every reader decodes again. Method: the command, and readers that
share no code with it, against Python's own JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from spark_export import table_files
from stream_client import blocking
from stream_node.cli.exports.export_options import DecodingOptions
from stream_node.cli.values import UsageError
from stream_node.node.process import NodeProcess

pytestmark = pytest.mark.spark

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
MESSAGES = [*(b'{"id":%d,"amount":%d.5,"tags":["a"]}' % (at, at) for at in range(500)), b'{"id":"x"}', b"no json", b""]
SCHEMA = "id INT, amount DECIMAL(10,2), tags ARRAY<STRING>, _corrupt_record BINARY, _problem STRING"


def export(node: NodeProcess, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stream_node", "export", "run", str(folder), "--node", node.address, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def wanted() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for message in MESSAGES[:-3]:
        found = json.loads(message, parse_float=Decimal)
        rows.append({**found, "_corrupt_record": None, "_problem": None})
    nothing = dict.fromkeys(("id", "amount", "tags", "_corrupt_record", "_problem"))
    texts = ["id: 'x' is no INT", "the message is not one JSON object"]
    return [*rows, *({**nothing, "_corrupt_record": MESSAGES[at - 3], "_problem": texts[at]} for at in (0, 1)), nothing]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    names = [
        name for name in ("id", "amount", "tags", "_corrupt_record", "_problem", "data") if name in table.column_names
    ]
    return list(table.sort_by("index").select(names).to_pylist())


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_the_contents_of_messages_are_columns(form: str, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: the columns have the values in each format, in two runs, and the data only where it is asked for."""
    name = f"decoded_{form}"
    with blocking.connect(node.address) as client:
        stream = client.create(name)
        for part in (MESSAGES[:300], MESSAGES[300:]):
            with stream.publisher() as publisher:
                publisher.push_many(part)
            options = ("--stream", name, "--format", form, "--decode", "json", "--schema", SCHEMA, "--without-data")
            done = export(node, tmp_path / "lake", *options)
            assert done.returncode == 0, done.stderr
    if form == "delta":
        deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
        (folder,) = (log.parent for log in (tmp_path / "lake").rglob("_delta_log"))
        table = pa.table(deltalake.DeltaTable(str(folder)).to_pyarrow_table())
        found = deltalake.DeltaTable(str(folder)).to_pyarrow_dataset()
        assert found.count_rows(filter=pc.field("id") >= 498) == 2
        assert found.count_rows(filter=pc.field("_problem").is_null()) == 501
    else:
        files = table_files(tmp_path / "lake")
        table = pa.concat_tables([pyarrow.parquet.read_table(file, partitioning=None) for file in files])
    assert rows_of(table) == wanted()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (DecodingOptions(schema="a INT"), "--schema, --decode-option and --without-data need --decode"),
        (DecodingOptions(without_data=True), "--schema, --decode-option and --without-data need --decode"),
        (DecodingOptions("json"), "--decode json: decode=json: say which columns you want"),
        (DecodingOptions("xml", "a INT"), "it is json, cbor"),
        (DecodingOptions("json", "a INTERVAL"), "'interval' is no type"),
        (DecodingOptions("avro", "a INT"), "say how the messages are written"),
        (DecodingOptions("json", "a INT", ["timeZone=Nowhere/Land"]), "time zone"),
        (DecodingOptions("json", "a INT", ["timeZone"]), "NAME=VALUE"),
        (DecodingOptions("json", "a INT", ["timeZones=UTC"]), "--decode-option timeZones: there are columnName"),
        (DecodingOptions("block", "a INT"), "decode=block has no column 'a'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: DecodingOptions, problem: str) -> None:
    """Goal: a usage error in one line, before the command does anything."""
    with pytest.raises(UsageError) as refused:
        options.decoder()
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_filter_on_a_column_that_messages_lack_finds_their_rows(node: NodeProcess, tmp_path: Path) -> None:
    """Goal: a table of the user's own with more columns. Method: deltalake's dataset, which believes the log."""
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    with blocking.connect(node.address) as client:
        client.create("own").push(b"1")
    kinds = {
        "stream": pa.string(),
        "partition": pa.int32(),
        "index": pa.int64(),
        "data": pa.binary(),
        "note": pa.string(),
    }
    deltalake.DeltaTable.create(str(tmp_path / "own"), deltalake.Schema.from_arrow(pa.schema(kinds)))
    done = export(node, tmp_path / "own", "--stream", "own")
    assert done.returncode == 0, done.stderr
    found = deltalake.DeltaTable(str(tmp_path / "own")).to_pyarrow_dataset()
    assert found.count_rows(filter=pc.field("note").is_null()) == 1


def test_a_stream_whose_name_readers_take_for_null_is_no_folder(node: NodeProcess, tmp_path: Path) -> None:
    """Goal: no row is read back under another name. Method: pyarrow reads a folder of this name as NULL, so plain
    Parquet leaves the stream out and says so, and another format has it, as an independent reader finds."""
    with blocking.connect(node.address) as client:
        for name in (NULL_NAME, "beside it"):
            client.create(name).push(b"1")
    streams = ("--stream", NULL_NAME, "--stream", "beside it")
    done = export(node, tmp_path / "plain", *streams)
    assert (done.returncode, "take the name of the stream '__HIVE_DEFAULT_PARTITION__' for NULL" in done.stderr) == (
        1,
        True,
    )
    assert len(table_files(tmp_path / "plain")) == 1
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    assert export(node, tmp_path / "delta", *streams, "--format", "delta").returncode == 0
    (folder,) = (log.parent for log in (tmp_path / "delta").rglob("_delta_log"))
    table = deltalake.DeltaTable(str(folder)).to_pyarrow_table()
    assert sorted(table["stream"].to_pylist()) == sorted([NULL_NAME, "beside it"])
