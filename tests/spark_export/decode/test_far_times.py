"""Goal: a time that Python's datetime does not reach, or that is none, costs its own column at most, never its message.

Method: bytes written by hand after the formats' specifications; dates that are written down, such as the last one of
int64 microseconds. No session.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spark_export.decode.values import Day, Instant, LocalTime, TimeOfDay, moment_text
from tests.spark_export.decode.json_messages import schema
from tests.spark_export.decoded import arrays_of, make_decoder

pytestmark = pytest.mark.spark

END_US = 2**63 - 1
"""The last time of a column: +294247-01-10T04:00:54.775807+00:00."""


def rows(kind: str, messages: list[bytes], columns: StructType, **options: str) -> list[dict[str, Any]]:
    """The rows with times and dates as the numbers that Arrow has, since Python cannot have them all."""
    arrays = [
        array.cast(pa.int64()) if pa.types.is_timestamp(array.type)
        else array.cast(pa.int32()) if pa.types.is_date(array.type)
        else array
        for array in arrays_of(make_decoder(kind, columns, **options), messages)
    ]  # fmt: skip
    return [
        dict(zip(columns.names, row, strict=True)) for row in zip(*(each.to_pylist() for each in arrays), strict=True)
    ]


def zigzag(number: int) -> bytes:
    raw, found = (number << 1) ^ (number >> 63), bytearray()
    while raw >= 0x80:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*found, raw])


def avro_rows(messages: list[bytes], columns: StructType, *fields: dict[str, Any]) -> list[dict[str, Any]]:
    pytest.importorskip("fastavro", reason="the extra `avro` is not installed")
    record = {"type": "record", "name": "R", "fields": list(fields)}
    return rows("avro", messages, columns, avroSchema=json.dumps(record))


def logical(name: str, of: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": {"type": of, "logicalType": kind, **more}}


@pytest.mark.parametrize("wanted", ["n", "t"], ids=["not asked for", "asked for"])
def test_infinity_of_a_database_does_not_cost_its_message(wanted: str) -> None:
    """Debezium writes the infinity of PostgreSQL as a time-stamp of these numbers, once in µs and once in ms."""
    made = [
        *({"name": "n", "type": "int"}, logical("t", "long", "timestamp-micros")),
        logical("u", "long", "timestamp-millis"),
    ]
    for number in (9223372036825200000, -9223372036832400000):
        message = b"\x0e" + zigzag(number) + zigzag(number)
        if wanted == "n":
            assert avro_rows([message], schema(n="long", _problem="string"), *made) == [{"n": 7, "_problem": None}]
            continue
        columns = schema(n="long", t="timestamp", u="timestamp", _problem="string")
        fits = abs(number) <= END_US
        (row,) = avro_rows([message], columns, *made)
        assert (row["n"], row["t"], row["u"]) == (7, number if fits else None, None)
        assert f"u: {number * 1000} µs after 1970 is no TIMESTAMP" in row["_problem"]


def test_times_of_avro_are_their_numbers() -> None:
    made = [
        logical("t", "long", "timestamp-micros"),
        logical("z", "long", "local-timestamp-millis"),
        logical("y", "int", "date"),
        logical("h", "int", "time-millis"),
        {"name": "s", "type": "string"},
    ]
    columns = schema(t="timestamp", z="timestamp_ntz", y="date", h="string", s="string", _problem="string")
    far = zigzag(END_US) + zigzag(-(10**15)) + zigzag(2**31 - 1) + zigzag(86_399_999) + b"\x02x"
    wrong = zigzag(-1) + zigzag(2**62) + zigzag(-(2**31)) + zigzag(-1) + b"\x02x"
    assert avro_rows([far, wrong], columns, *made) == [
        {"t": END_US, "z": -(10**18), "y": 2**31 - 1, "h": "23:59:59.999000", "s": "x", "_problem": None},
        {
            **{"t": -1, "z": None, "y": None, "h": None, "s": "x"},
            "_problem": f"z: {2**62 * 1000} µs after 1970 is no TIMESTAMP_NTZ; y: -5877641-06-23 is no DATE; "
            "h: -1000 µs after midnight is no STRING",
        },
    ]


def test_logical_types_change_no_value() -> None:
    """A decimal of more digits than its type has, a text that is no UUID, and the default of a field."""
    message = b"\x06\x01\xe2\x40" + b"\x04no"
    fields = [
        logical("m", "bytes", "decimal", precision=4, scale=1),
        logical("u", "string", "uuid"),
    ]
    found = avro_rows([message], schema(m="decimal(9,1)", u="string", _problem="string"), *fields)
    assert [(str(row["m"]), row["u"], row["_problem"]) for row in found] == [("12345.6", "no", None)]
    import fastavro

    from spark_export.decode.avro import parsed, read_record

    writer = parsed([json.dumps({"type": "record", "name": "R", "fields": fields})])
    default = {**logical("t", "long", "timestamp-micros"), "default": 1_700_000_000_000_000}
    union = {"name": "v", "type": [{"type": "int", "logicalType": "date"}, "null"], "default": 3}
    reader = parsed([json.dumps({"type": "record", "name": "R", "fields": [*fields, default, union]})])
    read = read_record(message, writer, reader)
    assert (read["t"], read["v"]) == (Instant(1_700_000_000_000_000), Day(3))
    assert (type(read["t"]), type(read["v"])) == (Instant, Day)
    # Other code in the process reads as before.
    plain = {"type": "record", "name": "R", "fields": [logical("y", "int", "date")]}
    assert fastavro.schemaless_reader(io.BytesIO(b"\x02"), fastavro.parse_schema(plain)) == {"y": date(1970, 1, 2)}


FAR_US = (date(2026, 1, 5).toordinal() - 719_163 + 25 * 146_097) * 86_400_000_000 + 36_000_000_000
"""12026-01-05T10:00:00Z: 25 times 400 years after a time that Python has."""
CBOR_COLUMNS = schema(n="long", t="timestamp", y="date", m="decimal(9,2)", s="string", _problem="string")


@pytest.mark.parametrize(
    ("name", "tagged", "wanted", "problem"),
    [
        ("t", "c11b000000e8d4a51000", 10**18, None),
        ("t", "c1fb3ff8000000000000", 1_500_000, None),
        ("t", "c11b7fffffffffffffff", None, f"{(2**63 - 1) * 10**6} µs after 1970 is no TIMESTAMP"),
        ("t", "c1fb7ff8000000000000", None, "a CBORTag is no TIMESTAMP"),
        ("t", "c063303030", None, "'000' is no TIMESTAMP"),
        ("t", "c075" + b"12026-01-05T10:00:00Z".hex(), FAR_US, None),
        ("y", "d8641a002cc060", 2_932_832, None),
        ("y", "d86439ffff", -65_536, None),
        ("y", "d8643a7fffffff", None, "is no DATE"),
        ("m", "c482211904d2", "12.34", None),
        ("m", "c4821b7fffffffffffffff01", None, "a CBORTag is no DECIMAL(9,2)"),
        ("m", "c582200b", "5.50", None),
        ("s", "d81e820100", None, "a CBORTag is no STRING"),
        ("s", "d82541aa", None, "a CBORTag is no STRING"),
        ("s", "c11a514b67b0", "2013-03-21T20:04:00+00:00", None),
    ],
)
def test_a_tagged_value_of_cbor_costs_its_own_column_at_most(
    name: str, tagged: str, wanted: object, problem: str | None
) -> None:
    pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    message = b"\xa2\x61n\x07\x61" + name.encode() + bytes.fromhex(tagged)
    (row,) = rows("cbor", [message], CBOR_COLUMNS)
    assert row["n"] == 7
    assert (str(row[name]) if name == "m" and row[name] is not None else row[name]) == wanted
    assert (row["_problem"] or "").startswith(f"{name}: ") == (problem is not None)
    assert (problem or "") in (row["_problem"] or "")


def test_timestamps_of_protobuf_are_their_numbers() -> None:
    pytest.importorskip("google.protobuf", reason="the extra `protobuf` is not installed")
    from google.protobuf.timestamp_pb2 import Timestamp

    from spark_export.decode.protobuf import plain_value

    field = type("Field", (), {"enum_type": None, "message_type": Timestamp.DESCRIPTOR})
    for seconds, nanos in ((253_402_300_800, 5_000), (-(10**12), 0), (2**62, 1)):
        found = plain_value(Timestamp(seconds=seconds, nanos=nanos), field)
        assert (type(found), int(found)) == (Instant, seconds * 1_000_000 + nanos // 1_000)


@given(st.datetimes())
def test_times_are_written_as_python_writes_those_that_it_has(at: datetime) -> None:
    us = (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert moment_text(LocalTime(us)) == at.isoformat()
    assert moment_text(Instant(us)) == at.replace(tzinfo=UTC).isoformat()
    assert moment_text(Day(us // 86_400_000_000)) == at.date().isoformat()
    assert moment_text(TimeOfDay(us % 86_400_000_000)) == at.time().isoformat()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Instant(END_US), "+294247-01-10T04:00:54.775807+00:00"),
        (Instant(-END_US), "-290308-12-21T19:59:05.224193+00:00"),
        (Day(2_932_897), "+10000-01-01"),
        (Day(-719_528), "0000-01-01"),
        (Day(-719_529), "-0001-12-31"),
        (TimeOfDay(0), time().isoformat()),
        (TimeOfDay(86_400_000_000), None),
        (Instant(2**63), None),
    ],
)
def test_other_times_are_written_as_java_writes_them(value: Any, text: str | None) -> None:
    assert moment_text(value) == text
