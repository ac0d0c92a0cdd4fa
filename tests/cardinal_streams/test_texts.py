"""Resumption tokens, whole batches as JSON, and the bounded memory."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.errors import PayloadTextError, ResumptionError
from cardinal_streams.limits import RecentMap
from cardinal_streams.payload import Payload, format_payloads, parse_payloads
from cardinal_streams.transports.transport import format_token, parse_token, source_of, split_source
from tests.cardinal_streams.helpers import hash_of, vectors

TOPICS = st.text(st.characters(codec="utf-8", exclude_characters=";="), min_size=1, max_size=8)
POSITIONS = st.dictionaries(st.builds(source_of, TOPICS, st.integers(0, 99)), st.integers(0, 1 << 63), max_size=5)
HASHES = st.binary(min_size=32, max_size=32)
PAYLOADS = st.builds(
    Payload,
    hash=HASHES,
    parent=HASHES,
    number=st.integers(0, (1 << 64) - 1),
    weight=st.integers(0, (1 << 256) - 1),
    updates=st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=4),
    deletes=st.frozensets(st.text(max_size=8), max_size=4),
    sub_batches=st.dictionaries(st.text(max_size=8), HASHES, max_size=2),
)


@given(POSITIONS)
def test_tokens_come_back(position: dict[str, int]) -> None:
    assert parse_token(format_token(position)) == position


def test_tokens_as_the_real_consumer_writes_them() -> None:
    assert format_token({"ta:0": 105, "def:0": 11, "tz:3": 900}) == "def:0=11;ta:0=105;tz:3=900"
    assert parse_token("") == {}
    assert split_source("a:b:7") == ("a:b", 7)


@pytest.mark.parametrize(
    "token", ["x", "t:0", "t=1", "t:0=", "t:0=-1", "t:0=1;", ":0=1", "t:x=1", "t:0=1;t:0=2", "t:0=\u0661"]
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(ResumptionError):
        parse_token(token)


@pytest.mark.parametrize("token", ["t:0=" + "1" * 5_000, "t:" + "1" * 5_000 + "=1"])
def test_a_number_that_python_does_not_convert_is_no_token(token: str) -> None:
    """Claim: digits by the thousand are refused like any other text. Method: more of them than `int` takes."""
    with pytest.raises(ResumptionError):
        parse_token(token)


@pytest.mark.parametrize(("topic", "partition"), [("", 0), ("a;b", 0), ("a=b", 0), ("a", -1)])
def test_what_cannot_be_named(topic: str, partition: int) -> None:
    with pytest.raises(ResumptionError):
        source_of(topic, partition)


def test_batches_of_the_real_feed_are_read_and_written_byte_for_byte() -> None:
    frames = [msgspec.json.decode(frame["text"]) for frame in vectors("websocket_frames.json")["frames"][:-1]]
    results = [frame["params"]["result"] if "params" in frame else frame["result"] for frame in frames[2:]]
    batches = [result["batch"] for result in results if isinstance(result, dict) and result["type"] == "batch"]
    text = msgspec.json.encode(batches)
    payloads = parse_payloads(text)
    assert [payload.number for payload in payloads] == [10, 11, 5, 12]
    assert payloads[-1].sub_batches == {"s/": (99).to_bytes(32, "big")}
    assert format_payloads(payloads) == text


@given(st.lists(PAYLOADS, max_size=3))
def test_batches_come_back_from_json(payloads: list[Payload]) -> None:
    assert parse_payloads(format_payloads(payloads)) == payloads


GOOD = {"number": "0x1", "weight": "0x7", "hash": "0x" + hash_of(1).hex(), "parent": "0x" + hash_of(0).hex()}


def text_of(**changed: str) -> bytes:
    fields = ",".join(f'"{key}":{value}' for key, value in ({k: f'"{v}"' for k, v in GOOD.items()} | changed).items())
    return f"[{{{fields}}}]".encode()


def test_a_batch_of_the_least_fields() -> None:
    assert parse_payloads(text_of()) == [
        Payload(hash=hash_of(1), number=1, parent=hash_of(0), weight=7, deletes=frozenset())
    ]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"", "$"),
        (b"{}", "$"),
        (b"[{}]", "$"),
        (b'["\xff"]', "$"),
        (text_of(other='"x"'), "$"),
        (text_of(number='"1"'), "$[0].number"),
        (text_of(number='"0x"'), "$[0].number"),
        (text_of(number='"0x10000000000000000"'), "$[0].number"),
        (text_of(weight='"0x1' + "0" * 64 + '"'), "$[0].weight"),
        (text_of(hash='"0x00"'), "$[0].hash"),
        (text_of(hash='"00"'), "$[0].hash"),
        (text_of(parent='"0xzz"'), "$[0].parent"),
        (text_of(values='{"k":"0x0"}'), "$[0].values['k']"),
        (text_of(values='{"k":"0x 00"}'), "$[0].values['k']"),
        (text_of(values='{"k":"00"}'), "$[0].values['k']"),
        (text_of(batches='{"s":"0x00"}'), "$[0].batches['s']"),
    ],
)
def test_what_is_no_batch(text: bytes, path: str) -> None:
    with pytest.raises(PayloadTextError) as caught:
        parse_payloads(text)
    assert caught.value.path == path


def test_the_bounded_memory_forgets_the_oldest() -> None:
    memory: RecentMap[str, int] = RecentMap(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        memory.put(key, value)
    assert list(memory.items()) == [("a", 3), ("c", 4)]
    assert len(memory) == 2
    assert (memory.get("a"), memory.get("b")) == (3, None)
    memory.pop("a")
    assert "a" not in memory
    assert "c" in memory
