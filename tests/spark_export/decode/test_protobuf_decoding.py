"""Goal: Protobuf messages become columns, by a descriptor file or a registry, and a bad one costs its own row only.

Method: bytes written by hand after the specification of Protobuf, or by the library; a registry that is a real server.
"""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("google.protobuf", reason="the extra `protobuf` is not installed")

from google.protobuf import descriptor_pb2
from pyspark import cloudpickle
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType

from spark_export.decode.decoding import MessageDecoder
from spark_export.decode.registry import RegistryFailed
from spark_export.errors import OptionError
from tests.spark_export.decode.json_messages import schema
from tests.spark_export.decode.registry_server import RegistryServer, registry_server
from tests.spark_export.decoded import make_decoder, rows_of

pytestmark = pytest.mark.spark

COLUMNS = schema(
    number="integer",
    name="string",
    note="string",
    state="string",
    sizes=ArrayType(LongType()),
    place=schema(x="double"),
    by_id=MapType(StringType(), StringType()),
    made="timestamp",
    large=DecimalType(20, 0),
    raw="binary",
    _problem="string",
)


def order_file() -> Any:
    """The descriptor of a file `shop/order.proto` of proto3, as protoc makes it from:

    message Order {
      int32 number = 1; string name = 2; optional string note = 3; State state = 4; repeated int64 sizes = 5;
      Place place = 6; map<int32, string> by_id = 7; google.protobuf.Timestamp made = 8; uint64 large = 9;
      bytes raw = 10;
      message Part { int32 p = 1; }
      enum State { NEW = 0; PAID = 1; }
    }
    message Place { double x = 1; float height = 2; }
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("number", kinds.TYPE_INT32, 1, ""),
            ("name", kinds.TYPE_STRING, 1, ""),
            ("note", kinds.TYPE_STRING, 1, ""),
            ("state", kinds.TYPE_ENUM, 1, ".shop.Order.State"),
            ("sizes", kinds.TYPE_INT64, 3, ""),
            ("place", kinds.TYPE_MESSAGE, 1, ".shop.Place"),
            ("by_id", kinds.TYPE_MESSAGE, 3, ".shop.Order.ByIdEntry"),
            ("made", kinds.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("large", kinds.TYPE_UINT64, 1, ""),
            ("raw", kinds.TYPE_BYTES, 1, ""),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    order.field[2].proto3_optional = True
    order.field[2].oneof_index = 0
    order.oneof_decl.add(name="_note")
    entry = order.nested_type.add(name="ByIdEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_INT32, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_STRING, label=1)
    order.nested_type.add(name="Part").field.add(name="p", number=1, type=kinds.TYPE_INT32, label=1)
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    place = file.message_type.add(name="Place")
    place.field.add(name="x", number=1, type=kinds.TYPE_DOUBLE, label=1)
    place.field.add(name="height", number=2, type=kinds.TYPE_FLOAT, label=1)
    return file


WHOLE = bytes.fromhex(
    "089601"  # number = 150
    "12026869"  # name = "hi"
    "1a00"  # note = "", which is there
    "2001"  # state = PAID
    "2a03010203"  # sizes = 1, 2, 3, packed
    "3209"
    "09000000000000f83f"  # place.x = 1.5
    "3a0508071201"
    + b"z".hex()  # by_id[7] = "z"
    + "42080880d4f0ca061000"  # made: 1,767,647,744 s after 1970
    "48ffffffffffffffffff01"  # large = 2**64 - 1
    "520100"  # raw = one zero byte
)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def descriptor(tmp_path: Path) -> str:
    path = tmp_path / "order.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[order_file()]).SerializeToString())
    return str(path)


def reader(columns: StructType = COLUMNS, **options: str) -> MessageDecoder:
    return make_decoder("protobuf", columns, **options)


def test_fields_of_all_kinds_become_columns(descriptor: str) -> None:
    """Goal: every kind of field, what is absent, and messages that are none, each alone."""
    found = rows_of(
        reader(protobufDescriptor=descriptor, protobufMessage="shop.Order"), [WHOLE, b"", WHOLE[:-1], b"\x20\x05"]
    )
    values = {"number": 150, "name": "hi", "note": "", "state": "PAID", "sizes": [1, 2, 3], "place": {"x": 1.5}}
    made = datetime(2026, 1, 5, 21, 15, 44, tzinfo=UTC)
    assert found[0] == {
        **values,
        "by_id": [("7", "z")],
        "made": made,
        "large": 2**64 - 1,
        "raw": b"\0",
        "_problem": None,
    }
    # What proto3 does not write is its default; what can be absent is null.
    absent: dict[str, Any] = {"note": None, "place": None, "made": None, "sizes": [], "by_id": [], "_problem": None}
    assert found[1] == {"number": 0, "name": "", "state": "NEW", "large": 0, "raw": b"", **absent}
    assert {name for name, value in found[2].items() if value is not None} == {"_problem"}
    assert "is no shop.Order" in found[2]["_problem"]
    assert found[3]["state"] == "5"


def test_a_value_that_does_not_fit_is_null_alone(descriptor: str) -> None:
    columns = schema(large="long", number="integer", state="integer", _problem="string")
    (row,) = rows_of(reader(columns, protobufDescriptor=descriptor, protobufMessage="shop.Order"), [WHOLE])
    assert (row["large"], row["number"], row["state"]) == (None, 150, None)
    assert row["_problem"] == "large: 18446744073709551615 is no BIGINT; state: 'PAID' is no INT"


def test_floats_of_32_bits_have_the_digits_of_32_bits(descriptor: str) -> None:
    columns = schema(height="string", place="string")
    message = bytes.fromhex("15cdcccc3d")  # height = 0.1
    options = {"protobufDescriptor": descriptor, "protobufMessage": "shop.Place"}
    assert rows_of(reader(columns, **options), [message])[0]["height"] == "0.1"
    options["protobufMessage"] = "shop.Order"
    assert rows_of(reader(columns, **options), [b"\x32\x05" + message])[0]["place"] == '{"x":0.0,"height":0.1}'


def test_the_header_of_a_registry_says_which_message_it_is(registry: RegistryServer) -> None:
    """Goal: the first message, another one and one inside; what is not there is a problem of its message alone."""
    own = order_file().SerializeToString()
    registry.add(7, base64.b64encode(own).decode(), "PROTOBUF", form="?format=serialized")
    order, place, part = (
        b"\0\0\0\0\7\0\x08\x2a",
        b"\0\0\0\0\7\2\2\x09" + b"\0" * 6 + b"\xf8\x3f",
        b"\0\0\0\0\7\4\0\2\x08\x05",
    )
    wrong = [b"\0\0\0\0\7\2\x0e", b"\0\0\0\0\7\2", b"\0\0\0\0\7\3", b"\0\0\0\0\x08\0", b"\7\0", b""]
    columns = schema(number="integer", x="double", p="integer", _problem="string")
    made = reader(columns, schemaRegistry=registry.address)
    found = rows_of(made, [order, place, part, *wrong, order])
    assert [(row["number"], row["x"], row["p"]) for row in found[:3]] == [
        (42, None, None),
        (None, 1.5, None),
        (None, None, 5),
    ]
    assert all(row["_problem"] and row["number"] is None for row in found[3:-1])
    assert (found[-1]["number"], found[-1]["_problem"]) == (42, None)
    assert registry.asked == ["/schemas/ids/7?format=serialized", "/schemas/ids/8?format=serialized"]
    only = reader(columns, schemaRegistry=registry.address, protobufMessage="shop.Order")
    assert [row["number"] for row in rows_of(only, [order, place])] == [42, None]
    assert rows_of(cloudpickle.loads(cloudpickle.dumps(made)), [order])[0]["number"] == 42


def test_files_that_import_files_of_the_registry(registry: RegistryServer) -> None:
    """Goal: a reference to another subject is fetched, under the name by which it is imported."""
    outer = descriptor_pb2.FileDescriptorProto(name="default", syntax="proto3", dependency=["shop/order.proto"])
    outer.message_type.add(name="Box").field.add(name="order", number=1, type=11, label=1, type_name=".shop.Order")
    reference = {"name": "shop/order.proto", "subject": "orders", "version": 3}
    form = "?format=serialized"
    registry.add(1, base64.b64encode(outer.SerializeToString()).decode(), "PROTOBUF", [reference], form)
    registry.answers[f"/subjects/orders/versions/3{form}"] = {
        "schema": base64.b64encode(order_file().SerializeToString()).decode(),
        "schemaType": "PROTOBUF",
    }
    message = b"\0\0\0\0\1\0\x0a\x02\x08\x2a"
    columns = schema(order=schema(number="integer"))
    assert rows_of(reader(columns, schemaRegistry=registry.address), [message]) == [{"order": {"number": 42}}]


def test_a_registry_that_only_has_text_is_told(registry: RegistryServer, descriptor: str) -> None:
    """Goal: no nulls for a registry without the format; the descriptor file serves instead, and asks for nothing."""
    registry.add(7, 'syntax = "proto3"; message A {}', "PROTOBUF", form="?format=serialized")
    message = b"\0\0\0\0\7\0\x08\x2a"
    with pytest.raises(RegistryFailed, match="give protobufDescriptor"):
        rows_of(reader(schemaRegistry=registry.address), [message])
    asked = len(registry.asked)
    made = reader(schemaRegistry=registry.address, protobufDescriptor=descriptor, protobufMessage="shop.Order")
    assert (rows_of(made, [message])[0]["number"], len(registry.asked)) == (42, asked)


def test_the_header_of_a_registry_is_obeyed_beside_a_descriptor(registry: RegistryServer, descriptor: str) -> None:
    """Goal: a message of another type never becomes values of the type that was named. Method: an Order, a Place and a
    Part with the bytes of an Order, and positions that the file does not have."""
    made = reader(schemaRegistry=registry.address, protobufDescriptor=descriptor, protobufMessage="shop.Order")
    heads = [b"\0", b"\2\0", b"\2\2", b"\4\0\2", b"\2\x0e"]
    found = rows_of(made, [b"\0\0\0\0\7" + head + b"\x08\x2a" for head in heads])
    assert [row["number"] for row in found] == [42, 42, None, None, None]
    assert [row["_problem"] for row in found] == [
        *(None, None),
        "the message is a shop.Place, not a shop.Order",
        "the message is a shop.Order.Part, not a shop.Order",
        "the schema has no message at the positions [7] of the header",
    ]
    named = {"protobufDescriptor": descriptor, "protobufMessage": "shop.Order.Part"}
    part = reader(schema(p="integer"), schemaRegistry=registry.address, **named)
    assert rows_of(part, [b"\0\0\0\0\7\4\0\2\x08\x05"]) == [{"p": 5}]
    assert registry.asked == []


def test_numbers_of_schemas_are_not_kept_beside_a_descriptor(registry: RegistryServer, descriptor: str) -> None:
    """Goal: publishers, who choose these numbers, take no memory by them. Method: what Python has allocated after
    messages with 5,000 numbers."""
    made = reader(
        schema(number="integer"),
        schemaRegistry=registry.address,
        protobufDescriptor=descriptor,
        protobufMessage="shop.Order",
    )
    rows_of(made, [b"\0\0\0\0\7\0\x08\x2a"])
    tracemalloc.start()
    try:
        rows_of(made, [b"\0" + number.to_bytes(4, "big") + b"\0\x08\x2a" for number in range(5_000)])
        assert tracemalloc.get_traced_memory()[0] < 250_000
    finally:
        tracemalloc.stop()


def test_wrong_descriptors_are_refused(descriptor: str, tmp_path: Path) -> None:
    """Goal: before anything is read, in one line. Method: none, a text, no such message, a missing import."""
    (tmp_path / "text").write_text("message A {}", encoding="utf-8")
    lonely = order_file()
    lonely.dependency.append("other.proto")
    (tmp_path / "lonely").write_bytes(descriptor_pb2.FileDescriptorSet(file=[lonely]).SerializeToString())
    for options, problem in [
        ({}, "by protobufDescriptor .* and protobufMessage, or by schemaRegistry"),
        ({"protobufDescriptor": "/nowhere", "protobufMessage": "A"}, "No such file"),
        ({"protobufDescriptor": descriptor}, "by protobufDescriptor .* and protobufMessage"),
        ({"protobufDescriptor": descriptor, "schemaRegistry": "http://h"}, "say which one by protobufMessage"),
        ({"protobufDescriptor": descriptor, "protobufMessage": "Order"}, "no message of this full name"),
        ({"protobufDescriptor": str(tmp_path / "text"), "protobufMessage": "A"}, "is no complete set"),
        ({"protobufDescriptor": str(tmp_path / "lonely"), "protobufMessage": "shop.Order"}, "--include_imports"),
    ]:
        with pytest.raises(OptionError, match=problem):
            reader(**options)
