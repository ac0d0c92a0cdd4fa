"""Goal: what is in messages becomes columns, and what is no such thing becomes nulls. Method: arrays; no session."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from stream_client import Header
from stream_service.extensions import RichMessage
from tests.support.blocks import join_block

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import bare
from block_node.blocks.generator import START_SECONDS, BlockShape, ChainGenerator, SigningKeys
from block_node.persist.mark import MARK_HEADER, BlockMark, key_of
from cardinal_streams.message.messages import Batch, BatchMsg, Message, Reorg, SubBatchMsg, encode
from spark_export.decode.ddl import parse_ddl
from spark_export.decode.decoding import decoder
from spark_export.errors import OptionError
from spark_export.source.options import read_options
from spark_export.source.readers import BatchReader, full_schema
from spark_export.source.schema import batch_of_messages
from spark_export.tables.columns import HEADERS
from tests.spark_export.decode.json_messages import schema
from tests.spark_export.decoded import arrays_of

pytestmark = pytest.mark.spark

FIELDS = [pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("c", pa.list_(pa.float64()))]


NAMES = st.sampled_from("abcdfstmyxork")
ALL_TYPES = schema(
    **{"a": "integer", "b": "boolean", "c": "byte", "d": "double", "f": "float", "s": "string", "t": "timestamp"},
    **{"m": "decimal(9,2)", "y": "date", "x": "binary", "o": schema(a="long", s="string")},
    **{"r": ArrayType(StringType()), "k": MapType(StringType(), DoubleType()), "_problem": "string"},
)


def columns(kind: str, messages: list[bytes], fields: Sequence[pa.Field] = FIELDS) -> list[list[Any]]:
    return [array.to_pylist() for array in arrays_of(decoder(kind, fields), messages)]


def test_cbor_maps_become_columns() -> None:
    """Goal: members of maps; nulls for what is none, and for values of another type, alone."""
    cbor2 = pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    messages = [
        cbor2.dumps({"a": 1, "b": "x", "c": [0.5]}),
        *(b"\xff", b"", cbor2.dumps([1]), b"\x81" * 2000),
        cbor2.dumps({"a": "no", "b": "y"}),
        cbor2.dumps({"a": 1.0, "b": 7, "c": [1, "x"]}),
    ]
    assert columns("cbor", messages) == [
        [1, *[None] * 6],
        ["x", *[None] * 4, "y", "7"],
        [[0.5], *[None] * 6],
    ]


def test_cbor_values_keep_their_types() -> None:
    """Goal: times, dates, decimals and bytes of CBOR fit columns of these types; what does not fit is null alone."""
    cbor2 = pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    time = datetime(2026, 1, 5, 10, tzinfo=UTC)
    good = {"t": time, "y": date(2026, 1, 5), "m": Decimal("1.005"), "x": b"\0", "l": -(2**63), "k": {"q": True}}
    bad = {"t": "never", "y": 5, "m": [], "x": 1, "l": 2**63, "k": {1: True}}
    made = schema(
        t="timestamp", y="date", m="decimal(9,2)", x="binary", l="long", k=MapType(StringType(), BooleanType())
    )
    fields = list(to_arrow_schema(made, timezone="UTC"))
    found = columns("cbor", [cbor2.dumps(good), cbor2.dumps(bad), cbor2.dumps(good)], fields)
    wanted = [time, date(2026, 1, 5), Decimal("1.01"), b"\0", -(2**63), [("q", True)]]
    assert found == [[each, None, each] for each in wanted]


@pytest.mark.parametrize(
    ("number", "wanted"), [(1.5, "1.50"), (0.125, "0.13"), (-1e-9, "0.00"), (1e8, None), (float("nan"), None)]
)
def test_numbers_of_cbor_fit_decimals_as_those_of_json(number: float, wanted: str | None) -> None:
    """Goal: a binary number for DECIMAL is what the same number is in JSON. Method: one message of each kind."""
    cbor2 = pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    field = [pa.field("m", pa.decimal128(9, 2))]
    for kind, message in (("cbor", cbor2.dumps({"m": number})), ("json", json.dumps({"m": number}).encode())):
        assert columns(kind, [message], field) == [[None if wanted is None else Decimal(wanted)]]


def test_a_problem_quotes_the_value() -> None:
    """Goal: the text that does not fit is in the problem, for every type."""
    fields = [pa.field("a", pa.float64()), pa.field("b", pa.float32()), pa.field("_problem", pa.string())]
    (problem,) = columns("json", [b'{"a": "1.5", "b": "many"}'], fields)[2]
    assert problem == "a: '1.5' is no DOUBLE; b: 'many' is no DOUBLE"


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.decimals()
    | st.text(max_size=5)
    | st.sampled_from(["2026-01-05", "2026-01-05T10:00:00Z", "aGk=", "1.5"])
    | st.binary(max_size=5)
    | st.dates()
    | st.datetimes(timezones=st.just(UTC))
    | st.uuids()
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5) | st.binary(max_size=20), min_size=1, max_size=9), st.data())
@settings(deadline=None)
def test_a_row_of_cbor_depends_on_its_message_alone(made: list[Any], data: st.DataObject) -> None:
    """Goal: no value in any column ends the read or changes another row. Method: pages against each alone."""
    cbor2 = pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    messages = [each if isinstance(each, bytes) else cbor2.dumps(each) for each in made]
    # More digits than Python writes, in columns of every kind.
    messages.append(cbor2.dumps(dict.fromkeys("abcdfstmyxork", 2**60_000)))
    wanted = list(to_arrow_schema(ALL_TYPES, timezone="UTC"))

    def decoded(page: list[bytes]) -> list[Any]:
        arrays = arrays_of(decoder("cbor", wanted), page)
        return list(zip(*([str(value) for value in array] for array in arrays), strict=True))

    cut = data.draw(st.integers(0, len(messages)))
    assert decoded(messages[:cut]) + decoded(messages[cut:]) == [row for each in messages for row in decoded([each])]


def test_cbor_that_claims_much_is_read_in_no_time() -> None:
    """Goal: values that would be endless harm nobody. Method: big floats, decimals, dates, texts, arrays."""
    pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    tagged = ["c5821b7fffffffffffffff01", "c4821b7fffffffffffffff01", "c11b7fffffffffffffff", "d81e820100", "d8236128"]
    messages = [bytes.fromhex(f"a16162{each}") for each in [*tagged, "9bffffffffffffffff", "7bffffffffffffffff"]]
    assert [each is None or len(each) < 50 for each in columns("cbor", messages)[1]] == [True] * 7


def test_a_cbor_value_that_contains_itself_is_no_text() -> None:
    """Goal: an end, where a shared value refers to what it is in (tags 28 and 29)."""
    pytest.importorskip("cbor2", reason="the extra `spark` is not installed")
    assert columns("cbor", [b"\xa1\x61b\xd8\x1c\x81\xd8\x1d\x00"]) == [[None], [None], [None]]


def test_a_decoder_adds_its_columns_to_a_batch() -> None:
    """Goal: what the exporter and readers of Arrow call: all columns of the messages, and the decoded ones behind."""
    made = decoder("json", "id INT, `a b` STRUCT<x: ARRAY<DECIMAL(9, 2)>>, _problem STRING", {"timezone": "UTC"})
    for name in ("data", "value"):
        batch = pa.record_batch({"index": [5], "key": [None], name: [b'{"id":"x","a b":{"x":[1.5]}}']})
        (row,) = made(batch).to_pylist()
        (given,) = batch.to_pylist()
        assert row == {**given, "id": None, "a b": {"x": [Decimal("1.50")]}, "_problem": "id: 'x' is no INT"}


def test_decoding_needs_no_spark() -> None:
    """Goal: the small exporter and `to_arrow` decode where PySpark is not installed. Method: a process that refuses
    its import."""
    program = (
        "import sys; sys.modules['pyspark'] = None; import pyarrow as pa; from spark_export import decoder\n"
        "made = decoder('json', 'a INT'); cardinal = decoder('cardinal'); block = decoder('block')\n"
        "print(made.arrays(pa.nulls(1, pa.binary()), pa.array([b'{\"a\":7}']), None)[0].to_pylist())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout == "[7]\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a name and a type belong before 'the end'"),
        ("a", "'' is no type"),
        ("a INT b INT", "'b' stands where ',' or the end belongs"),
        ("a INT,", "a name and a type belong before 'the end'"),
        ("a DECIMAL(39,0)", "precision"),
        ("a ARRAY<INT", "'the end' stands where '>' belongs"),
        ("a STRUCT<x: INT; y: INT>", "';' stands where ',' or '>' belongs"),
        ("a INT, a LONG", "the column 'a' twice"),
        ("a INTERVAL", "'interval' is no type"),
        ("a MAP<INT, INT>", "cannot be decoded into the type map<int32, int32>"),
    ],
)
def test_schemas_that_are_none_are_refused(text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=re.escape(problem)):
        decoder("json", text)


def test_schemas_are_read_as_spark_reads_them(spark: Any) -> None:
    """Goal: the same types by the same text. Method: Spark's own parser."""
    from pyspark.sql.types import _parse_datatype_string

    text = (
        "a BOOLEAN, b TINYINT, c byte, d SmallInt, e SHORT, f INT, g INTEGER, h BIGINT, i LONG, j FLOAT, k REAL,"
        "l DOUBLE, m STRING, n BINARY, o DATE, p TIMESTAMP, q TIMESTAMP_NTZ, r DECIMAL, s DEC(7), t NUMERIC(38,18),"
        "u ARRAY<ARRAY<INT>>, v MAP<STRING,STRUCT<x:INT,`y ``z`:ARRAY<DATE>>>, `w` STRUCT<a INT, b: STRING>,_é_1 INT"
    ).replace("_é_1", "`_é_1`")
    theirs = to_arrow_schema(_parse_datatype_string(text), timezone="UTC")
    assert pa.schema(parse_ddl(text)) == theirs


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
        RichMessage(index, 1, record.key, [], record.value) for index, record in enumerate(map(encode, sent))
    ] + [RichMessage(4, 1, None, [], b"x")]
    options = read_options({"subscribe": "s", "decode": "cardinal", "columns": "stream"})
    schema = full_schema(options)
    reader = BatchReader(options, schema)
    rows = reader._projected(batch_of_messages(messages, "s", 0, reader._options)).to_pylist()
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

    def message(index: int, block: Any, data: bytes, part: int = 0, parts: int = 1) -> RichMessage:
        mark = BlockMark(block.number, part, parts, len(block.items), len(join_block(block.items)), block.root)
        return RichMessage(
            index, 1, key_of(block.number), [Header("other", b""), Header(MARK_HEADER, bare.encode(mark))], data
        )

    data, second = join_block(whole.items), join_block(large.items)
    messages = [
        message(0, whole, data),
        message(1, large, second[:50], 0, 2),
        message(2, large, second[50:], 1, 2),
        RichMessage(3, 1, None, [], data),
        message(4, whole, data[:-1]),
    ]
    options = read_options({"subscribe": "s", "decode": "block", "columns": "stream"})
    reader = BatchReader(options, full_schema(options))
    rows = reader._projected(batch_of_messages(messages, "s", 0, reader._options)).to_pylist()
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
    headers = pa.array([[mark]], HEADERS)
    found = decoder("block", fields).arrays(pa.nulls(1, pa.binary()), pa.array([b"no block"]), headers)
    assert [array.to_pylist() for array in found] == [[7], [1]]


def test_columns_that_cannot_be_had_are_refused() -> None:
    """Goal: a wrong name or type in a schema fails before anything is read."""
    options = read_options({"subscribe": "s", "columns": "stream"})
    with pytest.raises(OptionError, match="there is no column 'offset'; there are key"):
        BatchReader(options, StructType([StructField("offset", LongType())]))
    with pytest.raises(OptionError, match="the column 'partition' is int; ask for it as that"):
        BatchReader(options, StructType([StructField("partition", LongType())]))
    with pytest.raises(OptionError, match="decode='xml': it is json, cbor, avro, protobuf, cardinal, block"):
        decoder("xml", "a INT")
    with pytest.raises(OptionError, match="the column 'x' can be null in some message; leave out NOT NULL"):
        BatchReader(
            read_options({"subscribe": "s", "decode": "json"}), StructType([StructField("x", LongType(), False)])
        )
    chosen = BatchReader(options, StructType([StructField("partition", IntegerType())]))
    assert (chosen._options.include_data, chosen._options.include_headers) == (False, False)
    decoded = BatchReader(
        read_options({"subscribe": "s", "decode": "json"}), StructType([StructField("x", StringType())])
    )
    assert decoded._options.include_data
