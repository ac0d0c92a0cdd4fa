"""The producer against the messages of the real one, and what the real one leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal_streams.errors import PayloadError, PayloadOutOfRange, PrefixConflict, PrefixError, UnknownSubBatch
from cardinal_streams.limits import NUMBER_ON_WIRE_MAX, WEIGHT_MAX, MessageLimits
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Batch, Record, SubBatchHeader, SubBatchMsg, decode, encode
from cardinal_streams.payload import Payload
from cardinal_streams.prefixes import TopicMap, Tracked
from cardinal_streams.produce.producer import Outgoing, Producer
from tests.cardinal_streams.helpers import TOPICS, completed, hash_of, payload, receive_all, records_of, vectors

CASES: list[dict[str, Any]] = vectors("producer_messages.json")["cases"]
BLOCKS = {case["name"]: case for case in CASES if "add_block" in case} | {
    f"chain {case['name']}": case for case in vectors("chain_reorg.json")["blocks"]
}
REFUSED = {case["name"]: case for case in CASES if "add_block_error" in case}
# The real producer drops the sign of a number and of a weight (facts, section 1.1); ours refuses both.
NEGATIVE = "negative_number_and_weight"


def producer_of(given: dict[str, Any]) -> Producer:
    return Producer(given["default_topic"], given["schema"])


def payload_of(given: dict[str, Any]) -> Payload:
    return Payload(
        hash=bytes.fromhex(given["hash"]),
        number=given["number"],
        parent=bytes.fromhex(given["parent"]),
        weight=int(given["weight"]),
        updates={key: bytes.fromhex(value) for key, value in given["updates"].items()},
        deletes=given["deletes"],
        sub_batches={path: bytes.fromhex(id_) for path, id_ in given["batches"].items()},
    )


def expected(topics: dict[str, list[dict[str, str]]]) -> Outgoing:
    return {
        topic: [Record(bytes.fromhex(message["key"]), bytes.fromhex(message["value"])) for message in messages]
        for topic, messages in topics.items()
    }


def test_all_vectors_are_used() -> None:
    rest = {case["name"] for case in CASES} - BLOCKS.keys() - REFUSED.keys()
    assert rest == {
        "new_producer_overlapping_prefixes",
        "reorg",
        "reorg_number_over_32_bits_truncated",
        "ping_key",
    }


@pytest.mark.parametrize("name", [name for name in BLOCKS if name != NEGATIVE])
def test_blocks_are_those_of_the_real_producer(name: str) -> None:
    """Byte for byte, up to the order of map entries in the Batch and of messages within a topic, which the real
    producer takes from Go's random map order. The Batch is the last message."""
    case = BLOCKS[name]
    outgoing = producer_of(case["input"]).add_block(payload_of(case["input"]))
    real = expected(case["add_block"])
    assert outgoing.keys() == real.keys()
    for topic, records in outgoing.items():
        data = {record for record in real[topic] if record.key[0] != 0}
        assert {record for record in records if record.key[0] != 0} == data
    ours, theirs = outgoing["default"][-1], real["default"][-1]
    assert ours.key == theirs.key
    assert len(ours.value) == len(theirs.value)
    assert sorted(ours.value) == sorted(theirs.value)
    assert decode(*ours) == decode(*theirs)
    if len(case["input"]["updates"]) + len(case["input"]["batches"]) <= 1:
        assert ours == theirs
    assert list(outgoing)[-1] == "default"


@pytest.mark.parametrize("name", [name for name, case in BLOCKS.items() if "send_batch" in case])
def test_sub_batches_are_those_of_the_real_producer(name: str) -> None:
    case = BLOCKS[name]
    producer = producer_of(case["input"])
    whole = payload_of(case["input"])
    producer.add_block(whole)
    for sent in case["send_batch"]:
        id_ = bytes.fromhex(sent["id"])
        updates = {key: bytes.fromhex(value) for key, value in sent["updates"].items()}
        assert producer.send_sub_batch(whole.hash, id_, sent["deletes"], updates) == expected(sent["messages"])
        with pytest.raises(UnknownSubBatch):
            producer.send_sub_batch(whole.hash, id_)


@pytest.mark.parametrize("name", [name for name, case in BLOCKS.items() if "consumed_by_real_MessageProcessor" in case])
def test_what_the_real_consumer_made_of_them_ours_does(name: str) -> None:
    case = BLOCKS[name]
    sent = case.get("send_batch", ())
    records = records_of(expected(case["add_block"]))
    records += [record for batch in sent for record in records_of(expected(batch["messages"]))]
    if name == NEGATIVE:
        with pytest.raises(ValueError, match="the number is -5"):
            decode(*records[0])
        return
    (real,) = case["consumed_by_real_MessageProcessor"]["emitted"]
    (batch,) = completed(receive_all(Reassembler(), records))
    assert batch.hash.hex() == real["hash"]
    assert batch.parent.hex() == real["parent"]
    assert (batch.number, batch.weight) == (real["number"], int(real["weight"]))
    assert batch.deletes == set(real["deletes"])
    values = {key: value.hex() for key, value in batch.values.items()}
    if name == "one_empty_value_outside_schema":
        # The real consumer loses it (facts, section 1.3); the specification's entry can be nothing but a value.
        assert (values, real["values"]) == ({"x/19": ""}, {})
    else:
        assert values == real["values"]


@pytest.mark.parametrize("name", REFUSED)
def test_conflicts_are_those_of_the_real_producer(name: str) -> None:
    given = REFUSED[name]["input"]
    with pytest.raises(PrefixConflict):
        producer_of(given).add_block(payload_of(given))


def test_overlapping_prefixes_are_refused_as_by_the_real_producer() -> None:
    for topics in ({"a/": "x", "a/b/": "y"}, {"^a/b/": "x", "a/": "y"}, {"a/": "x", "^a/": "y"}):
        with pytest.raises(PrefixError, match="overlap"):
            Producer("default", topics)


def test_a_pattern_that_python_warns_of_gives_no_warning() -> None:
    """Warnings are errors in tests, and would be lines on the terminal of whoever wrote the pattern."""
    assert TopicMap({"[[]a/": "t"}).find("[a/1") == ("[a/", "t")
    assert "[a/1" in Tracked(("[[]a/", "[a&&b]/"))


@pytest.mark.parametrize(
    "pattern",
    ["", "x*", "(a/", "a|", "[[:alpha:]]/", "x[0[:^digit:]]", "x{99999999999}", pytest.param("(" * 5_000, id="deep")],
)
def test_patterns_that_cannot_work_are_refused(pattern: str) -> None:
    with pytest.raises(PrefixError):
        TopicMap({pattern: "t"})


def test_negative_numbers_and_weights_are_refused() -> None:
    """The real producer sends -5 and drops the sign of -7 (facts, section 1.1)."""
    given = BLOCKS[NEGATIVE]["input"]
    with pytest.raises(PayloadOutOfRange):
        producer_of(given).add_block(payload_of(given))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"number": NUMBER_ON_WIRE_MAX + 1}, PayloadOutOfRange),
        ({"number": 1 << 64}, PayloadOutOfRange),
        ({"weight": WEIGHT_MAX + 1}, PayloadOutOfRange),
        ({"hash": b"short"}, PayloadOutOfRange),
        ({"parent": bytes(33)}, PayloadOutOfRange),
        ({"sub_batches": {"s": bytes(32)}}, PayloadOutOfRange),
        ({"sub_batches": {"s": hash_of(1), "t": hash_of(1)}}, PrefixConflict),
        ({"updates": {"": b""}}, PayloadOutOfRange),
        ({"updates": {"a/" + "x" * 70_000: b""}}, PayloadOutOfRange),
        ({"updates": {"x/1": b"1"}, "sub_batches": {"x/1": hash_of(1)}}, PrefixConflict),
    ],
)
def test_an_error_changes_nothing(changed: dict[str, Any], error: type[PayloadError]) -> None:
    producer = Producer("default", TOPICS)
    contents: dict[str, Any] = {"hash": hash_of(1), "number": 1, "parent": hash_of(0), "weight": 1}
    with pytest.raises(error):
        producer.add_block(Payload(**contents | changed))
    assert producer.statistics() == Producer("default", TOPICS).statistics()
    assert producer.add_block(Payload(**contents)) != {}


def test_an_oversized_value_is_refused() -> None:
    producer = Producer("default", TOPICS, limits=MessageLimits(value_bytes_max=100))
    with pytest.raises(PayloadOutOfRange, match="larger than the limits"):
        producer.add_block(payload("b", "a", 1, updates={"a/1": bytes(101)}))


def test_a_pattern_counts_the_text_that_matched() -> None:
    producer = Producer("default", {"c/1/b/[0-9a-z]+/h": "headers", "c/1/n/": "numbers"})
    outgoing = producer.add_block(payload("b", "a", 1, updates={"c/1/b/ff/h": b"1", "c/1/n/1": b"2"}))
    batch = decode(*outgoing["default"][-1])
    assert isinstance(batch, Batch)
    assert batch.counts == {"c/1/b/ff/h": 1, "c/1/n/": 1}
    assert outgoing.keys() == {"headers", "numbers", "default"}


def test_an_update_and_a_delete_of_one_key_are_two_messages_inside_a_prefix_and_a_delete_outside() -> None:
    producer = Producer("default", TOPICS)
    outgoing = producer.add_block(payload("b", "a", 1, updates={"a/1": b"1", "x/1": b"2"}, deletes=["a/1", "x/1"]))
    batch = decode(*outgoing["default"][-1])
    assert isinstance(batch, Batch)
    assert (batch.counts, batch.values, batch.deletes) == ({"a/": 2}, {}, frozenset({"x/1"}))
    assert [record.key[0] for record in outgoing["ta"]] == [3, 4]


def test_equal_blocks_of_two_producers_have_equal_bytes() -> None:
    updates = {f"x/{index}": b"v" for index in range(150)} | {"a/1": b"1", "b/1": b"2"}
    ours = Producer("default", TOPICS).add_block(payload("b", "a", 1, updates=updates))
    backwards = dict(reversed(updates.items()))
    theirs = Producer("default", TOPICS).add_block(payload("b", "a", 1, updates=backwards))
    assert ours["default"][-1] == theirs["default"][-1]


def test_a_sub_batch_of_nothing_has_a_header() -> None:
    producer = Producer("default", TOPICS)
    producer.add_block(payload("b", "a", 1, sub_batches={"b/s": hash_of(1)}))
    header = encode(SubBatchHeader(hash_of("b"), hash_of(1), 0))
    assert producer.send_sub_batch(hash_of("b"), hash_of(1)) == {"tb": [header]}


def test_deletes_come_first_and_together() -> None:
    producer = Producer("default", TOPICS)
    producer.add_block(payload("b", "a", 1, sub_batches={"zz": hash_of(1)}))
    outgoing = producer.send_sub_batch(hash_of("b"), hash_of(1), {"z/2", "z/1"}, {"z/4": b"4", "z/3": b"3"})
    assert [decode(*record) for record in outgoing["default"]] == [
        SubBatchHeader(hash_of("b"), hash_of(1), 3),
        SubBatchMsg(hash_of("b"), hash_of(1), 0, ("z/1", "z/2")),
        SubBatchMsg(hash_of("b"), hash_of(1), 1, (), {"z/3": b"3"}),
        SubBatchMsg(hash_of("b"), hash_of(1), 2, (), {"z/4": b"4"}),
    ]


def test_siblings_may_share_the_id_of_a_sub_batch() -> None:
    """In the real producer the second block overwrites the first one's (facts, section 1.3)."""
    producer = Producer("default", TOPICS)
    for name in ("b", "c"):
        producer.add_block(payload(name, "a", 1, sub_batches={"b/s": hash_of(1)}))
    for name in ("b", "c"):
        (records,) = producer.send_sub_batch(hash_of(name), hash_of(1), (), {"b/s/1": b"1"}).values()
        assert [record.key[1:33] for record in records] == [hash_of(name)] * 2


class TestRedundantProducers:
    def test_a_block_is_sent_once(self) -> None:
        producer = Producer("default", TOPICS)
        assert producer.add_block(payload("b", "a", 1)) != {}
        assert producer.add_block(payload("b", "a", 1)) == {}
        assert producer.statistics().blocks_skipped == 1

    def test_a_block_whose_batch_was_seen_is_not_sent_nor_are_its_sub_batches(self) -> None:
        first, second = Producer("default", TOPICS), Producer("default", TOPICS)
        block = payload("b", "a", 1, sub_batches={"b/s": hash_of(1)}, updates={"a/1": b"1"})
        for record in first.add_block(block)["default"]:
            second.observe(record.key)
        assert second.add_block(block) == {}
        assert second.send_sub_batch(block.hash, hash_of(1), (), {"b/s/1": b"1"}) == {}
        assert first.send_sub_batch(block.hash, hash_of(1), (), {"b/s/1": b"1"}) != {}
        assert second.statistics().messages_made == 0
        with pytest.raises(UnknownSubBatch):
            second.send_sub_batch(block.hash, hash_of(1))

    def test_a_block_sent_before_another_producers_batch_was_seen_keeps_its_sub_batches(self) -> None:
        producer = Producer("default", TOPICS)
        block = payload("b", "a", 1, sub_batches={"b/s": hash_of(1)})
        producer.add_block(block)
        producer.observe(b"\0" + block.hash)
        assert producer.add_block(block) == {}
        assert producer.send_sub_batch(block.hash, hash_of(1)) != {}

    @pytest.mark.parametrize("key", [b"", b"\0", b"\x03" + hash_of("b"), b"\0" + hash_of("b") + b"\0"])
    def test_other_keys_are_not_seen_as_blocks(self, key: bytes) -> None:
        producer = Producer("default", TOPICS)
        producer.observe(key)
        assert producer.add_block(payload("b", "a", 1)) != {}

    def test_a_forgotten_block_is_sent_again(self) -> None:
        producer = Producer("default", TOPICS)
        producer.observe(b"\0" + hash_of("b"))
        producer.forget(hash_of("b"))
        assert producer.add_block(payload("b", "a", 1)) != {}

    def test_only_the_last_blocks_are_remembered(self) -> None:
        producer = Producer("default", TOPICS, seen_max=2)
        for number, name in enumerate("bcd", 1):
            producer.add_block(payload(name, "a", number))
        assert producer.add_block(payload("c", "a", 2)) == {}
        assert producer.add_block(payload("b", "a", 1)) != {}
