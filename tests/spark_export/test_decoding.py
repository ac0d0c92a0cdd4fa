"""Goal: what is in messages becomes columns, and what is no such thing becomes nulls. Method: arrays; no session."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import bare
from block_node.blocks.generator import START_SECONDS, BlockShape, ChainGenerator
from block_node.blocks.items import join_block
from block_node.blocks.keys import SigningKeys
from block_node.persist.mark import MARK_HEADER, BlockMark, key_of
from cardinal_streams.message.messages import encode
from cardinal_streams.message.types import Batch, BatchMsg, Message, Reorg, SubBatchMsg
from spark_export import decoding
from spark_export.block_decoding import BlockMessages
from spark_export.decoding import CborObjects, JsonObjects, find_decoder, object_columns
from spark_export.errors import OptionError
from spark_export.node_wire import StoredMessage
from spark_export.options import read_options
from spark_export.projection import Projection, full_schema
from spark_export.schema import ARROW_HEADERS, batch_of_messages

pytestmark = pytest.mark.spark

FIELDS = [pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("c", pa.list_(pa.float64()))]
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**31), 2**31 - 1),
        "b": st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=9),
        "c": st.lists(st.floats(-1e9, 1e9), max_size=3),
        "other": st.none() | st.booleans(),
    },
)


def columns(decoder: Any, messages: list[bytes]) -> list[list[Any]]:
    data = pa.array(messages, pa.binary())
    return [array.to_pylist() for array in decoder.decode(pa.nulls(len(data), pa.binary()), data, None, FIELDS)]


@given(st.lists(OBJECTS, min_size=1, max_size=20), st.none() | st.integers(1, 3))
def test_json_together_is_json_one_by_one(objects: list[dict[str, Any]], indent: int | None) -> None:
    """Goal: the fast way gives what the slow way gives. Method: both, on objects with and without line breaks."""
    messages = [json.dumps(each, indent=indent).encode() for each in objects]
    one_by_one = object_columns(pa.array(messages, pa.binary()), FIELDS, json.loads)
    assert columns(JsonObjects(), messages) == [array.to_pylist() for array in one_by_one]


def test_one_bad_message_costs_its_own_row_only() -> None:
    """Goal: neighbours keep their values. Method: no JSON, no object, cut, of another type, two objects."""
    bad = [b"\xff\xfe", b"[1]", b'{"a":', b'{"a": "text"}', b'{"a": 1}{"a": 2}', b"", b'{"a": 99999999999}']
    found = columns(JsonObjects(), [b'{"a": 1}', *bad, b'{"a": 2, "b": "x", "c": [1.5]}'])
    assert found == [[1, *[None] * len(bad), 2], [None] * (len(bad) + 1) + ["x"], [None] * (len(bad) + 1) + [[1.5]]]


def test_json_is_read_together() -> None:
    """Goal: messages that are alike are not read one by one. Method: the fast way alone."""
    data = pa.array([b'{"a": %d}' % number for number in range(100)], pa.binary())
    together = decoding._read_json(data, FIELDS)
    assert together is not None
    assert together[0].to_pylist() == list(range(100))


def test_cbor_maps_become_columns() -> None:
    """Goal: members of maps; nulls for what is none."""
    cbor2 = pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    messages = [cbor2.dumps({"a": 1, "b": "x", "c": [0.5]}), b"\xff", b"", cbor2.dumps([1]), cbor2.dumps({"a": "no"})]
    assert columns(CborObjects(), messages) == [
        [1, None, None, None, None],
        ["x", None, None, None, None],
        [[0.5], None, None, None, None],
    ]


def test_cardinal_messages_become_rows() -> None:
    """Goal: each kind with its own columns, a bad one with its problem. Method: as the producer encodes."""
    one, two, three = (bytes([number]) * 32 for number in (1, 2, 3))
    sent: list[Message] = [
        Batch(one, 7, two, 2**200, {"a": b"1"}, frozenset({"b"}), {"c": 2}, {"d": three}),
        BatchMsg(one, "c/x", b"v"),
        SubBatchMsg(one, three, 0, ("gone",), {"k": b"w"}),
        Reorg(two, 6),
    ]
    messages = [
        StoredMessage(index, 1, record.key, [], record.value) for index, record in enumerate(map(encode, sent))
    ] + [StoredMessage(4, 1, None, [], b"x")]
    options = read_options({"subscribe": "s", "decode": "cardinal"})
    schema = full_schema(options)
    projection = Projection(options, schema)
    rows = projection.apply(batch_of_messages(messages, "s", 0, projection.options)).to_pylist()
    assert [row["kind"] for row in rows] == ["batch", "value", "item", "reorg", None]
    assert (rows[0]["block_number"], rows[0]["weight"], rows[0]["counts"]) == (7, str(2**200), [("c", 2)])
    assert (rows[0]["parent_hash"], rows[0]["deletes"], rows[0]["sub_batches"]) == (two, ["b"], [("d", three)])
    assert (rows[1]["path"], rows[1]["value"], rows[1]["block_hash"]) == ("c/x", b"v", one)
    assert (rows[2]["values"], rows[2]["deletes"], rows[2]["item_index"]) == ([("k", b"w")], ["gone"], 0)
    assert rows[4]["problem"]


def test_blocks_become_rows_with_their_items() -> None:
    """Goal: marks, header, footer and items of a block; a part has its mark; what is no block has its problem.

    Method: messages as the block node stores them: a block, one in two parts, none, and one whose bytes are cut.
    """
    whole, large = ChainGenerator(SigningKeys.generate(), shape=BlockShape(item_count=5)).blocks(2)

    def message(index: int, block: Any, data: bytes, part: int = 0, parts: int = 1) -> StoredMessage:
        mark = BlockMark(block.number, part, parts, len(block.items), len(join_block(block.items)), block.root)
        return StoredMessage(index, 1, key_of(block.number), [("other", b""), (MARK_HEADER, bare.encode(mark))], data)

    data, second = join_block(whole.items), join_block(large.items)
    messages = [
        message(0, whole, data),
        message(1, large, second[:50], 0, 2),
        message(2, large, second[50:], 1, 2),
        StoredMessage(3, 1, None, [], data),
        message(4, whole, data[:-1]),
    ]
    options = read_options({"subscribe": "s", "decode": "block"})
    projection = Projection(options, full_schema(options))
    rows = projection.apply(batch_of_messages(messages, "s", 0, projection.options)).to_pylist()
    assert [(row["block_number"], row["part"], row["parts"], row["item_count"]) for row in rows] == [
        *[(0, 0, 1, 5), (1, 0, 2, 5), (1, 1, 2, 5)],
        *[(None, None, None, None), (0, 0, 1, 5)],
    ]
    assert (rows[0]["block_bytes"], rows[0]["block_root"], rows[0]["data"]) == (len(data), whole.root, data)
    assert [(each["position"], each["data"]) for each in rows[0]["items"]] == list(enumerate(whole.items))
    assert (rows[0]["items"][0]["kind"], rows[0]["items"][-1]["kind"]) == ("header", "proof")
    assert (rows[0]["produced"].timestamp(), rows[0]["hapi_version"].count(".")) == (START_SECONDS, 2)
    assert len(rows[0]["previous_root"]) == len(whole.root)
    assert [row["items"] is None for row in rows] == [False, True, True, True, True]
    assert [row["problem"] is None for row in rows] == [True, True, True, False, False]


def test_only_what_is_asked_of_a_block_is_decoded() -> None:
    """Goal: who asks for marks alone pays for no items. Method: bytes that are no block, and no problem."""
    fields = [pa.field("block_number", pa.int64()), pa.field("parts", pa.int32())]
    mark = {"key": MARK_HEADER, "value": bare.encode(BlockMark(7, 0, 1, 2, 3, b"r"))}
    headers = pa.array([[mark]], ARROW_HEADERS)
    found = BlockMessages().decode(pa.nulls(1, pa.binary()), pa.array([b"no block"]), headers, fields)
    assert [array.to_pylist() for array in found] == [[7], [1]]


def test_columns_that_cannot_be_had_are_refused() -> None:
    """Goal: a wrong name or type in a schema fails before anything is read."""
    options = read_options({"subscribe": "s"})
    with pytest.raises(OptionError, match="there is no column 'offset'; there are key"):
        Projection(options, StructType([StructField("offset", LongType())]))
    with pytest.raises(OptionError, match="the column 'partition' is int; ask for it as that"):
        Projection(options, StructType([StructField("partition", LongType())]))
    with pytest.raises(OptionError, match="decode='xml': it is json, cbor, cardinal, block"):
        find_decoder("xml")
    chosen = Projection(options, StructType([StructField("partition", IntegerType())]))
    assert (chosen.options.include_data, chosen.options.include_headers) == (False, False)
    decoded = Projection(
        read_options({"subscribe": "s", "decode": "json"}), StructType([StructField("x", StringType())])
    )
    assert decoded.options.include_data
