"""Goal: Avro records become columns, by a given schema or one of a registry, and a bad one costs its own row only.

Method: bytes written by hand after the specification of Avro, or by fastavro; a registry that is a real HTTP server.
"""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("fastavro", reason="the extra `avro` is not installed")

import fastavro
from pyspark import cloudpickle
from pyspark.sql.types import ArrayType, IntegerType, StructType

from spark_export.decode.decoding import MessageDecoder, decoder
from spark_export.decode.registry import RegistryFailed
from spark_export.errors import OptionError
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.decode.json_messages import schema
from tests.spark_export.decode.registry_server import RegistryServer, registry_server
from tests.spark_export.decoded import make_decoder, rows_of

pytestmark = pytest.mark.spark

PLAIN = {"type": "record", "name": "Order", "fields": [{"name": "a", "type": "int"}, {"name": "s", "type": "string"}]}
COLUMNS = schema(a="long", s="string", _problem="string")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def reader(columns: StructType = COLUMNS, **options: str) -> MessageDecoder:
    return make_decoder("avro", columns, **options)


def framed(number: int, rest: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + rest


def test_records_of_one_schema_become_rows() -> None:
    """Goal: a zigzag number and a text; what is cut, too long or empty is null, with the reason, and harms no other."""
    good = b"\x96\x01\x06foo"
    # A type that is no record may have any attribute of the user's own.
    of = json.dumps(PLAIN).replace('"string"', '{"type": "string", "fields": ["mine"]}')
    found = rows_of(reader(avroSchema=of), [good, good[:-1], good + b"x", b"", b"\xff" * 12, good])
    assert [(row["a"], row["s"]) for row in found] == [(75, "foo"), *[(None, None)] * 4, (75, "foo")]
    assert [row["_problem"] is None for row in found] == [True, *[False] * 4, True]
    assert found[2]["_problem"] == "1 bytes follow the Avro record"


def test_values_of_all_kinds_have_their_types(tmp_path: Path) -> None:
    """Goal: logical types, unions, enums, arrays, maps and records inside; a value of another type is null alone."""
    of = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "y", "type": {"type": "int", "logicalType": "date"}},
            {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}},
            {"name": "u", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["ON", "OFF"]}},
            {"name": "r", "type": {"type": "array", "items": "int"}},
            {"name": "k", "type": {"type": "map", "values": "double"}},
            {"name": "x", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "a", "type": "string"},
        ],
    }
    given = tmp_path / "all.avsc"
    given.write_text(json.dumps(of), encoding="utf-8")
    time, text = datetime(2026, 1, 5, 10, 0, 0, 5, UTC), "7db78fb8-d7d1-46d3-a594-263547c261f2"
    value = {"t": time, "y": date(2026, 1, 5), "m": Decimal("1.005"), "u": text, "e": "OFF", "r": [1, 2]}
    opened = io.BytesIO()
    fastavro.schemaless_writer(opened, of, {**value, "k": {"q": 0.5}, "x": b"\0\1", "a": "no number"})
    columns = schema(
        t="timestamp",
        y="date",
        m="decimal(9,3)",
        u="string",
        e="string",
        r=ArrayType(IntegerType()),
        x="binary",
        a="long",
    )
    found = rows_of(reader(columns, avroSchema=f"file:{given}"), [opened.getvalue()])
    assert found == [{**value, "x": b"\0\1", "a": None}]


def test_writers_of_a_registry_are_resolved_to_the_reader(registry: RegistryServer) -> None:
    """Goal: each message by its writer's schema, in the reader's shape: defaults, promotion, left-out fields.

    Each schema is fetched once. An unknown number, another kind and no header are problems of these messages alone.
    """
    registry.add(1, json.dumps(PLAIN))
    registry.add(2**31, json.dumps({**PLAIN, "fields": [{"name": "a", "type": "long"}, {"name": "z", "type": "int"}]}))
    registry.add(3, '{"type": "object"}', "JSON")
    registry.add(4, "no schema")
    wanted = {
        **PLAIN,
        "fields": [{"name": "a", "type": "long"}, {"name": "s", "type": "string", "default": "none"}],
    }
    messages = [
        framed(1, b"\x02\x02x"),
        framed(2**31, b"\x04\x06"),
        framed(9, b""),
        framed(3, b""),
        framed(4, b""),
        b"\1",
    ]
    made = reader(avroSchema=json.dumps(wanted), schemaRegistry=registry.address)
    found = rows_of(made, [*messages, *messages])
    assert [(row["a"], row["s"]) for row in found] == [(1, "x"), (2, "none"), *[(None, None)] * 4] * 2
    assert [row["_problem"] for row in found[2:4]] == [
        "the registry has no schema 9",
        "schema 3 is of the kind JSON, not AVRO",
    ]
    assert sorted(registry.asked) == [f"/schemas/ids/{number}" for number in (1, 2**31, 3, 4, 9)]
    again = cloudpickle.loads(cloudpickle.dumps(made))
    assert rows_of(again, messages[:1])[0]["a"] == 1


def test_floats_of_32_bits_have_the_digits_of_32_bits() -> None:
    """Goal: 0.1 is 0.1 as text and as a decimal, wherever it is, and its own value as a DOUBLE."""
    float_map = {"type": "map", "values": {"type": "array", "items": "float"}}
    types = {"a": ["null", "float"], "b": float_map, "c": "float", "d": {"type": "float"}}
    of = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}
    opened = io.BytesIO()
    fastavro.schemaless_writer(opened, of, {"a": 0.1, "b": {"x": [1e10, 0.3]}, "c": 0.1, "d": 16777216.0})
    columns = schema(a="string", b="string", c="double", d="string")
    (row,) = rows_of(reader(columns, avroSchema=json.dumps(of)), [opened.getvalue()])
    assert row == {"a": "0.1", "b": '{"x":[1.0E10,0.3]}', "c": 0.10000000149011612, "d": "1.6777216E7"}
    (row,) = rows_of(reader(schema(a="decimal(20,15)"), avroSchema=json.dumps(of)), [opened.getvalue()])
    assert row["a"] == Decimal("0.1")


@pytest.mark.parametrize(("most", "seconds"), [(1_000, 0.0), (1, 600.0)])
def test_a_schema_that_is_registered_later_is_found(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, most: int, seconds: float
) -> None:
    """Goal: an answer that there is no schema does not count for the life of an export. Method: its time is over, or
    answers about more numbers came than are remembered."""
    monkeypatch.setattr("spark_export.decode.registry.ABSENT_MAX", most)
    monkeypatch.setattr("spark_export.decode.registry.ABSENT_S", seconds)
    made, message = reader(schema(a="long"), schemaRegistry=registry.address), framed(1, b"\x02\x02x")
    assert rows_of(made, [message, framed(2, b""), framed(2, b"")]) == [{"a": None}] * 3
    assert len(registry.asked) == (2 if seconds else 3)
    registry.add(1, json.dumps(PLAIN))
    assert rows_of(made, [message]) == [{"a": 1}]


def test_schemas_that_refer_to_each_other_are_fetched(registry: RegistryServer) -> None:
    """Goal: a name from another subject, and one that two others share. A circle is a problem, and no endless loop."""
    shared, inner = {"name": "d", "subject": "d v", "version": 1}, {"name": "i", "subject": "i", "version": 2}
    registry.answers["/subjects/d%20v/versions/1"] = {
        "schema": json.dumps({"type": "record", "name": "D", "fields": [{"name": "q", "type": "int"}]})
    }
    registry.answers["/subjects/i/versions/2"] = {
        "schema": json.dumps({"type": "record", "name": "I", "fields": [{"name": "d", "type": "D"}]}),
        "references": [shared],
    }
    outer = {"type": "record", "name": "O", "fields": [{"name": "i", "type": "I"}, {"name": "d", "type": "D"}]}
    registry.add(1, json.dumps(outer), references=[shared, inner])
    registry.add(2, json.dumps(outer), references=[inner, shared])
    registry.add(3, json.dumps(outer), references=[{"name": "c", "subject": "c", "version": 1}])
    registry.answers["/subjects/c/versions/1"] = registry.answers["/schemas/ids/3"]
    columns = schema(i=schema(d=schema(q="integer")), d=schema(q="integer"), _problem="string")
    messages = [framed(number, b"\x02\x04") for number in (1, 2, 3)]
    found = rows_of(reader(columns, schemaRegistry=registry.address), messages)
    assert [(row["i"], row["d"]) for row in found] == [({"d": {"q": 1}}, {"q": 2})] * 2 + [(None, None)]
    assert "refers to itself" in found[2]["_problem"]


@pytest.mark.parametrize(
    ("text", "header"), [("me:secret", "Basic bWU6c2VjcmV0"), ("bearer t0ken", "Bearer t0ken")], ids=["basic", "bearer"]
)
def test_credentials_are_read_by_the_task(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, header: str
) -> None:
    """Goal: from a file or a variable, in the header, not for a redirection's server. Wrong ones end the task."""
    registry.add(1, json.dumps(PLAIN))
    registry.authorization = header
    monkeypatch.setenv("REGISTRY_AUTH", text)
    (tmp_path / "auth").write_text(text + "\n", encoding="utf-8")
    for place in ("env:REGISTRY_AUTH", f"file:{tmp_path / 'auth'}"):
        made = reader(schemaRegistry=registry.address, schemaRegistryAuth=place)
        assert rows_of(made, [framed(1, b"\x02\x02x")])[0]["a"] == 1
    with pytest.raises(RegistryFailed, match="401 Unauthorized; schemaRegistryAuth names the credentials"):
        rows_of(reader(schemaRegistry=registry.address), [framed(1, b"\x02\x02x")])
    with pytest.raises(OptionError, match="schemaRegistryAuth: env:NOT_SET: this process has no"):
        rows_of(reader(schemaRegistry=registry.address, schemaRegistryAuth="env:NOT_SET"), [framed(1, b"")])
    with registry_server() as other:
        other.add(1, json.dumps(PLAIN))
        registry.moved_to = other.address
        made = reader(schemaRegistry=registry.address, schemaRegistryAuth="env:REGISTRY_AUTH")
        assert rows_of(made, [framed(1, b"\x02\x02x")])[0]["a"] == 1
        assert other.seen == [None]


def test_a_registry_that_fails_ends_the_task_and_makes_no_nulls(registry: RegistryServer) -> None:
    """Goal: after retries, an error in one line. Method: 503, another status, no JSON, a server that is silent."""
    registry.add(1, json.dumps(PLAIN))
    message = framed(1, b"\x02\x02x")
    registry.failing = 1
    assert rows_of(reader(schemaRegistry=registry.address), [message])[0]["a"] == 1
    registry.failing = 99
    with pytest.raises(RegistryFailed, match="/schemas/ids/1: 503 Service Unavailable"):
        rows_of(reader(schemaRegistry=registry.address, schemaRegistryTimeoutMs="1100"), [message])
    registry.failing, registry.failure = 1, 418
    with pytest.raises(RegistryFailed, match="418"):
        rows_of(reader(schemaRegistry=registry.address), [message])
    for wrong in (b"<html>", b"[]", b'{"schema": 5}'):
        registry.answers["/schemas/ids/1"] = wrong
        with pytest.raises(RegistryFailed, match=r"is this a schema registry\?|contains no schema"):
            rows_of(reader(schemaRegistry=registry.address), [message])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = reader(schemaRegistry=f"http://127.0.0.1:{silent.getsockname()[1]}", schemaRegistryTimeoutMs="50")
        with pytest.raises(RegistryFailed, match="timed out"):
            rows_of(made, [message])


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"error_code": 404, "message": "HTTP 404 Not Found"}'])
def test_a_server_that_is_no_registry_makes_no_nulls(registry: RegistryServer, body: bytes) -> None:
    """Goal: a wrong path, or another server, fails the task. Method: an answer 404 that no registry gives."""
    registry.absent = body
    with pytest.raises(RegistryFailed, match=r"/schemas/ids/1: 404 .*; is this a schema registry\?"):
        rows_of(reader(schemaRegistry=registry.address), [framed(1, b"\x02\x02x")])


def test_spark_reads_records_of_a_registry(spark: Any, node: NodeProcess, registry: RegistryServer) -> None:
    """Goal: end to end, from the node through Spark's workers, every row but the bad one has its own values."""
    registry.add(5, json.dumps(PLAIN))
    messages = []
    for at in range(2000):
        opened = io.BytesIO()
        fastavro.schemaless_writer(opened, PLAIN, {"a": at, "s": f"é{at}"})
        messages.append(framed(5, opened.getvalue()))
    messages[99] = framed(6, b"")
    with blocking.connect(node.address) as client, client.create("avro_rows").publisher() as publisher:
        publisher.push_many(messages)
    options = {"endpoint": node.address, "subscribe": "avro_rows", "decode": "avro", "schemaRegistry": registry.address}
    columns = "index LONG, a INT, s STRING, _corrupt_record BINARY"
    frame = spark.read.format("stream_node").options(columns="stream", **options).schema(columns).load()
    rows = [tuple(row) for row in frame.orderBy("index").collect()]
    assert rows.pop(99) == (99, None, None, bytearray(messages[99]))
    assert rows == [(at, at, f"é{at}", None) for at in range(2000) if at != 99]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "say how the messages are written, by avroSchema or schemaRegistry"),
        ({"avroSchema": "{"}, "avroSchema is no JSON"),
        ({"avroSchema": '{"type": "nothing"}'}, "avroSchema is no Avro schema"),
        ({"avroSchema": "file:/nowhere.avsc"}, "No such file"),
        ({"schemaRegistry": "registry:8081"}, "write it as http://host:port"),
        ({"schemaRegistry": "http://me:secret@host:1"}, "which plans would show"),
        ({"schemaRegistry": "http://host:1", "schemaRegistryAuth": "me:secret"}, "env:NAME or file:PATH"),
        ({"schemaRegistry": "http://host:1", "schemaRegistryTimeoutMs": "0"}, "a whole number of at least 1"),
        ({"avroSchema": '"int"', "schemaRegistryAuth": "env:X"}, "need schemaRegistry"),
        ({"decode": "json", "schemaRegistry": "http://h"}, "has a meaning with decode=avro or decode=protobuf only"),
        ({"decode": "protobuf", "avroSchema": '"int"'}, "has a meaning with decode=avro only"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], problem: str) -> None:
    """Goal: before anything is read, in one line. Method: each option, wrong."""
    with pytest.raises(OptionError, match=problem):
        decoder(options.get("decode", "avro"), "a INT", options)
