"""Goal: no message ends an export, whoever has published it. Method: messages of publishers that keep no rules."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")

import pyarrow as pa

import bare
from block_node.blocks.items import make_header
from block_node.blocks.protobuf import bytes_field
from block_node.persist.mark import MARK_HEADER, BlockMark
from cardinal_streams.message.messages import Batch, BatchDeleteMsg, BatchMsg, Message, SubBatchMsg, encode
from spark_export.decode.decoding import ObjectDecoder, decoder
from spark_export.decode.options import DecodeOptions
from spark_export.tables.columns import HEADERS

ONE, TWO = b"\1" * 32, b"\2" * 32


def test_keys_that_are_no_utf8_become_text() -> None:
    """Goal: a key of Cardinal Streams can be any bytes, and its column is a text. Method: a byte ff in each key."""
    sent: list[Message] = [
        Batch(ONE, 7, TWO, 1, {"a\udcff": b"1"}, frozenset({"b\udcff"}), {"c\udcff": 2}, {"d\udcff": TWO}),
        BatchMsg(ONE, "e\udcff", b"v"),
        BatchDeleteMsg(ONE, "f\udcff"),
        SubBatchMsg(ONE, TWO, 0, ("g\udcff",), {"h\udcff": b"w"}),
    ]
    keys, data = zip(*map(encode, sent), strict=True)
    made = decoder("cardinal")
    arrays = made.arrays(pa.array(keys), pa.array(data), None)
    found = {field.name: array.to_pylist() for field, array in zip(made.fields, arrays, strict=True)}
    assert found["path"] == [None, "e\ufffd", "f\ufffd", None]
    assert found["values"] == [[("a\ufffd", b"1")], None, None, [("h\ufffd", b"w")]]
    assert found["deletes"] == [["b\ufffd"], None, None, ["g\ufffd"]]
    assert (found["counts"][0], found["sub_batches"][0]) == ([("c\ufffd", 2)], [("d\ufffd", TWO)])


@pytest.mark.parametrize(
    ("seconds", "produced"),
    [(2**64 - 1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)), (2**63 - 1, None), (2**63, None)],
)
def test_a_block_of_any_time_is_decoded(seconds: int, produced: datetime | None) -> None:
    """Goal: the time of a block is signed, and one that no column can have is null. Method: a header with each."""
    item = make_header(7, (0, 1, 2), seconds, 0)
    mark = bare.encode(BlockMark(7, 0, 1, 1, len(item), b"r"))
    headers = pa.array([[{"key": MARK_HEADER, "value": mark}]], HEADERS)
    made = decoder("block")
    arrays = made.arrays(pa.nulls(1, pa.binary()), pa.array([bytes_field(1, item)]), headers)
    found = {field.name: array.to_pylist()[0] for field, array in zip(made.fields, arrays, strict=True)}
    assert (found["produced"], found["hapi_version"], found["problem"]) == (produced, "0.1.2", None)


@pytest.mark.parametrize(
    "mark",
    [BlockMark(2**63, 0, 1, 1, 5, b"r"), BlockMark(1, 0, 2**31, 1, 5, b"r"), BlockMark(1, 0, 1, 1, 2**63, b"r")],
)
def test_a_mark_that_no_column_can_have_is_none(mark: BlockMark) -> None:
    """Goal: such a message is a problem of its own row, and no block of a pipeline, whose columns would be null."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from spark_export.pipeline.silver import decode_mark

    headers = [{"key": MARK_HEADER, "value": bare.encode(mark)}]
    assert decode_mark(headers) is None
    made = decoder("block", "block_number BIGINT, problem STRING")
    arrays = made.arrays(pa.nulls(1, pa.binary()), pa.array([b"x"]), pa.array([headers], HEADERS))
    assert [array.is_valid().to_pylist() for array in arrays] == [[False], [True]]


def test_a_small_message_of_cbor_has_few_values() -> None:
    """Goal: references within a message make no billions of values of some kilobytes. Method: arrays that refer to one
    array (tags 28 and 29), and to one string (tags 256 and 25), again and again."""
    pytest.importorskip("cbor2", reason="the extra `export` is not installed")
    count = (300).to_bytes(2, "big")
    arrays = b"\xa1\x61a\x99" + count + b"\xd8\x1c\x99" + count + b"\1" * 300 + b"\xd8\x1d\0" * 299
    texts = b"\xd9\1\0\xa1\x61b\x99" + count + b"\x79" + count + b"x" * 300 + b"\xd8\x19\0" * 299
    made = decoder("cbor", "a ARRAY<ARRAY<INT>>, b ARRAY<STRING>")
    found = made.arrays(pa.nulls(2, pa.binary()), pa.array([arrays, texts]), None)
    assert [array.to_pylist() for array in found] == [[None, None], [None, None]]


def test_threads_that_share_a_decoder_keep_their_problems_apart() -> None:
    """Goal: a problem is told of its own message, also where the threads of an export share one decoder.

    Method: a message stops in the middle, after its first problem; meanwhile another thread decodes a good message.
    """
    reached, go_on = threading.Event(), threading.Event()

    class Stopping(dict[str, Any]):
        def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
            yield "x", "bad"
            reached.set()
            go_on.wait(10)

    def load(message: bytes) -> Mapping[str, Any]:
        return {"place": Stopping() if message == b"bad" else {"x": 1}}

    fields = [pa.field("place", pa.struct({"x": pa.int32()})), pa.field("_problem", pa.string())]
    made = ObjectDecoder(fields, DecodeOptions(), lambda: load)
    problems: dict[bytes, Any] = {}

    def decode(message: bytes) -> None:
        problems[message] = made.arrays(pa.nulls(1, pa.binary()), pa.array([message]), None)[1].to_pylist()

    other = threading.Thread(target=decode, args=(b"bad",))
    other.start()
    assert reached.wait(10)
    decode(b"good")
    go_on.set()
    other.join()
    assert problems == {b"good": [None], b"bad": ["x: 'bad' is no INT"]}
