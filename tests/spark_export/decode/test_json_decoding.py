"""Goal: the row of a JSON message depends on this message alone, and is that of Spark's `from_json`.

Method: pages cut at random against each message alone; Spark itself, row by row. What differs from Spark on purpose is
`DIFFERENT`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import random
import re
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, MapType, StructType

from spark_export.decode.decoding import json_reader
from spark_export.decode.values import Malformed
from spark_export.errors import OptionError
from tests.spark_export.decode.json_messages import FLAT, NESTED, ODD, TEXTS, WIDE, message, schema
from tests.spark_export.decoded import arrays_of, make_decoder

pytestmark = pytest.mark.spark

DIFFERENT = {
    b'{"t":"T10:00"}': ("a time without a date, which Spark puts on the day of the query", schema(t="timestamp")),
    b'{"y":"20260105"}': ("a number of days since 1970 as text", schema(y="date")),
    b'{"a":128}': ("a number above 127, which Spark makes negative", schema(a="byte")),
    b'{"t":1700000000000000000}': ("seconds beyond the range of a timestamp, which Spark wraps", schema(t="timestamp")),
    b'{"a":1,"a":"x"}': ("a member that occurs twice, of which Spark takes the last that fits", schema(a="integer")),
    b"{'a':1}": ("single quotes, which JSON does not have", schema(a="integer")),
    b'{"a":1,"s":"it\\\'s"}': ("an escape that JSON does not have", schema(a="integer")),
    b'{"a":1,"d":-INF}': ("a word that neither JSON nor Python has", schema(a="integer")),
    b'{"t":"2026-01-05T10:00:00PST"}': ("a zone of three letters, which stands for several", schema(t="timestamp")),
}
"""Messages of which Spark makes a value that is wrong, chance or no JSON, and `decode=json` makes null, and why."""

REFUSED = re.compile(rb'"y"\s*:\s*"[+-]?[0-9]{1,3}"|"t"\s*:\s*-?[0-9]{13,}|\'|(?<!")[+-]INF|\+Infinity|PST|\xed\xa0')
"""What random messages have of these, and bytes of a surrogate, for which Java has another number of U+FFFD."""


def comparable(array: pa.Array) -> list[Any]:
    """Times and days as numbers, because Python's have fewer years; NaN equal to itself."""
    if pa.types.is_timestamp(array.type):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_date(array.type):
        return list(array.cast(pa.int32()).to_pylist())
    return [repr(value) for value in array.to_pylist()]


def rows(arrays: list[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*map(comparable, arrays), strict=True))


def decoded(messages: list[bytes], columns: StructType, **options: str) -> list[tuple[Any, ...]]:
    return rows(arrays_of(make_decoder("json", columns, **options), messages))


def alone(each: bytes, columns: StructType) -> tuple[Any, ...]:
    (row,) = decoded([each], columns)
    return row


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *'{}[],:"',
            "'",
            '"a"',
            '"s"',
            '"d":',
            '{"a":5}',
            '{"a":',
            '"b":true',
            "1",
            "-0",
            "1.5",
            "null",
            "tru",
            "\n",
            " ",
        ]
    ),
    max_size=9,
).map(lambda parts: "".join(parts).encode())
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-(2**33), 2**33) | st.none(),
        "s": st.text(max_size=9) | st.sampled_from(TEXTS),
        "d": st.floats() | st.integers(-5, 5),
        "t": st.datetimes().map(lambda time: time.isoformat() + "Z"),
        "y": st.dates().map(str),
        "m": st.decimals(-(10**9), 10**9, places=2).map(float),
        "f": st.floats(width=32),
        "o": st.fixed_dictionaries({}, optional={"a": st.integers(0, 9), "r": st.lists(st.none() | st.integers(0, 9))}),
        "r": st.lists(st.fixed_dictionaries({}, optional={"a": st.integers(0, 9), "z": st.just([1])}) | st.none()),
        "other": st.recursive(st.none() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2), max_leaves=5),
    },
)
PLAIN = st.tuples(OBJECTS, st.booleans()).map(
    lambda each: json.dumps(each[0], ensure_ascii=each[1]).encode(errors="replace")
)
RANDOM = st.integers(0, 2**32).map(lambda seed: message(random.Random(seed)))
MESSAGES = st.lists(PLAIN | FRAGMENTS | RANDOM | st.sampled_from(ODD) | st.binary(max_size=5), min_size=1, max_size=25)


@given(MESSAGES, st.data())
@settings(deadline=None)
def test_a_row_depends_on_its_message_alone(messages: list[bytes], data: st.DataObject) -> None:
    """Goal: wherever pages are cut, and whoever is in the page. Method: cuts at random against one message a page."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=4)))
    for columns in (FLAT, WIDE, NESTED):
        wanted = [alone(each, columns) for each in messages]
        pages = zip([0, *cuts], [*cuts, len(messages)], strict=True)
        assert [row for start, end in pages for row in decoded(messages[start:end], columns)] == wanted


def test_messages_that_are_one_text_together_stay_apart() -> None:
    """Goal: two objects in a message are not two rows, and brackets of one message do not close in another."""
    assert decoded([b'{"a":5} {"a":6}', b""], schema(a="integer")) == [("5",), ("None",)]
    assert decoded([b'{"a":1,"z":[', b']}{"a":3}'], schema(a="integer")) == [("None",), ("None",)]
    found = decoded([b'[{"a":5} {"a":6}', b"]", b'{"a":1}\n{"a":2}', b"", b'{"a":7'], schema(a="integer"))
    assert found == [("None",), ("None",), ("1",), ("None",), ("None",)]


def test_one_bad_message_among_many_costs_its_own_values() -> None:
    """Goal: 1,999 decimals and times of 2,000 are right. Method: one message of another type."""
    messages = [b'{"m":%d.25,"t":"2026-01-05T10:00:00Z"}' % at for at in range(2000)]
    messages[77] = b'{"m":"?","t":"never"}'
    found = decoded(messages, schema(m="decimal(10,2)", t="timestamp"))
    assert found.pop(77) == ("None", None)
    assert {row[1] for row in found} == {1767607200_000000}
    assert [row[0] for row in found] == [repr(Decimal(at) + Decimal("0.25")) for at in range(2000) if at != 77]


def test_half_of_a_surrogate_pair_is_kept_where_it_can_be() -> None:
    """Goal: an object as text has the escape, from which a reader makes the same value; a text alone cannot have it."""
    messages = [b'{"s":{"x":"\\ud800","\\udfff":"\\ud83d\\ude00"}}', b'{"s":["a\\udc00"]}', b'{"s":"\\ud800"}']
    found = [row[0] for row in decoded(messages, schema(s="string"))]
    assert found == [repr('{"x":"\\uD800","\\uDFFF":"\\uD83D\\uDE00"}'), repr('["a\\uDC00"]'), repr("?")]
    assert json.loads(ast.literal_eval(found[0])) == json.loads(messages[0])["s"]


def test_a_message_that_is_nested_without_end_is_bad() -> None:
    """Goal: it costs its own row, and no task. Method: more levels than any stack has, of arrays and of objects."""
    messages = [b'{"a":1}', b'{"a":1,"z":' + b"[" * 10**6, b'{"a":' * 10**6, b'{"a":2}']
    assert [row[0] for row in decoded(messages, schema(a="integer"))] == ["1", "None", "None", "2"]


def test_the_message_and_its_problem_are_kept_where_asked() -> None:
    """Goal: the text or the bytes of a message that is not decoded, and why, under names that the user may choose."""
    messages = [b'{"a":1}', b'{"a":"x"}', b"\xff", b"", b'{"a":2']
    assert decoded(messages, schema(a="integer", _corrupt_record="string", _problem="string")) == [
        ("1", "None", "None"),
        ("None", repr('{"a":"x"}'), repr("a: 'x' is no INT")),
        ("None", repr("\ufffd"), repr("the message is not one JSON object")),
        ("None", "None", "None"),
        ("None", repr('{"a":2'), repr("the message is not JSON: Expecting ',' delimiter: line 1 column 7 (char 6)")),
    ]
    names = {"columnNameOfCorruptRecord": "raw", "columnNameOfProblem": "why"}
    assert decoded(messages[1:3], schema(raw="binary", why="string"), **names)[1][0] == repr(b"\xff")
    with pytest.raises(OptionError, match="the column '_corrupt_record' is the message as it is"):
        make_decoder("json", schema(_corrupt_record="integer"))
    with pytest.raises(OptionError, match="the column 'k': messages cannot be decoded into the type"):
        make_decoder("json", schema(k=MapType(IntegerType(), IntegerType())))


def comparable_messages(chance: random.Random, count: int) -> list[bytes]:
    made = (*ODD, *(message(chance) for _ in range(count)))
    return [each for each in made if REFUSED.search(each) is None and not has_a_name_twice(each)]


def has_a_name_twice(each: bytes) -> bool:
    found = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    with contextlib.suppress(ValueError):
        json.JSONDecoder(object_pairs_hook=members).raw_decode(each.decode(errors="replace").lstrip())
    return any(found)


def from_json(
    spark: Any, messages: list[bytes], columns: StructType, zone: str = "UTC", *, bad: bool = False
) -> list[tuple[Any, ...]]:
    """The rows that Spark makes. With `bad` the last column is whether the record is bad, since Spark's text of one may
    be bytes that are no text."""
    from pyspark.sql import functions as F

    frame = spark.createDataFrame([(at, bytearray(each)) for at, each in enumerate(messages)], "i INT, data BINARY")
    parsed = F.from_json(F.col("data").cast("string"), columns, {"timeZone": zone}).alias("row")
    found = frame.select("i", parsed).orderBy("i").select("row.*")
    if bad:
        found = found.withColumn("_corrupt_record", F.col("_corrupt_record").isNotNull())
    return rows([column.combine_chunks() for column in found.toArrow().columns])


def is_malformed(each: bytes) -> bool:
    try:
        json_reader()(each)
    except Malformed:
        return True
    return False


@pytest.mark.parametrize("columns", [FLAT, WIDE, NESTED], ids=["flat", "wide", "nested"])
def test_rows_are_those_of_spark(spark: Any, columns: StructType) -> None:
    """Goal: what `from_json` makes of the same messages with the same schema. Method: both, picked and random ones.

    Of a message that is no JSON, Spark makes nulls mostly, but sometimes values of what it was reading. Here it is
    always nulls, and Spark says which messages these are, with a schema of which no message has a column.
    """
    chance = random.Random(len(columns))
    messages = comparable_messages(chance, 5000)
    spoilt = [
        bad == "True" for _, bad in from_json(spark, messages, schema(zz="integer", _corrupt_record="string"), bad=True)
    ]
    assert [(each, bad) for each, bad in zip(messages, spoilt, strict=True) if bad != is_malformed(each)] == []
    nulls = alone(b"", columns)
    theirs = [nulls if bad else row for bad, row in zip(spoilt, from_json(spark, messages, columns), strict=True)]
    compared = zip(messages, theirs, decoded(messages, columns), strict=True)
    assert [each for each in compared if each[1] != each[2]] == []
    assert sum(row != nulls for row in theirs) > 400


def test_bad_records_are_those_of_spark(spark: Any) -> None:
    """Goal: the same messages are bad records, whatever is bad in them, with the same text."""
    chance = random.Random(5)
    messages = comparable_messages(chance, 2000)
    columns = schema(a="integer", o=WIDE["o"].dataType, r=WIDE["r"].dataType, _corrupt_record="string")
    assert [row[-1] for row in decoded(messages, columns)] == [
        repr(each.decode(errors="replace")) if bad == "True" else "None"
        for each, (*_, bad) in zip(messages, from_json(spark, messages, columns, bad=True), strict=True)
    ]


def test_times_of_another_zone_are_those_of_spark(spark: Any) -> None:
    """Goal: `timeZone` is the zone of texts without one, around changes of the clock too. Method: Spark's option."""
    messages = [
        json.dumps({"t": text, "y": text, "n": text}).encode() for text in TEXTS if len(text) > 3 and "PST" not in text
    ]
    columns, zone = schema(t="timestamp", y="date", n="timestamp_ntz"), "America/New_York"
    assert decoded(messages, columns, timeZone=zone) == from_json(spark, messages, columns, zone)


def test_bytes_are_those_of_spark(spark: Any) -> None:
    """Goal: base64 as Spark reads it. Method: one member; after wrong base64 Spark reads no further one."""
    texts = ["", "aGk=", "aGk", "aA==", "hi", "  aGk=", "aG k=", "äöü="]
    messages = [json.dumps({"x": text}).encode() for text in texts]
    columns = schema(x="binary")
    assert decoded(messages, columns) == from_json(spark, messages, columns)
    assert decoded([b'{"x":"hi","a":1}'], schema(x="binary", a="integer")) == [("None", "1")]


@pytest.mark.parametrize("each", DIFFERENT, ids=[why for why, _ in DIFFERENT.values()])
def test_what_differs_from_spark_is_null(spark: Any, each: bytes) -> None:
    """Goal: the list of what differs is true: Spark has a value, and this decoder has null."""
    _, columns = DIFFERENT[each]
    (theirs,), (ours,) = from_json(spark, [each], columns), decoded([each], columns)
    assert theirs[0] not in (None, "None")
    assert ours[0] in (None, "None")
