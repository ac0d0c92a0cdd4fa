"""Reassembly against the real consumer's recorded runs, and its limits."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal_streams.application import Application, Prefix
from cardinal_streams.errors import MessageError
from cardinal_streams.limits import ReassemblyLimits
from cardinal_streams.machines.events import (
    MISSING_ITEMS_SHOWN,
    Completed,
    Evicted,
    EvictionReason,
    MissingState,
    Outdated,
    ReassemblyEvent,
    Receipt,
    Refused,
)
from cardinal_streams.machines.reassembly_machine import ACTIONS, Reassembler
from cardinal_streams.message.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Ping,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    decode,
)
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from cardinal_streams.transports.transport import format_token
from tests.cardinal_streams.helpers import completed, hash_of, vectors

SCENARIOS: dict[str, dict[str, Any]] = {case["name"]: case for case in vectors("consumer_scenarios.json")["scenarios"]}
HASH = bytes(31) + b"\x04"

# What the real consumer emits and ours does not, or the other way round; facts, section 1.4. Value: our emissions,
# each as (index of the message it follows, values), and how many messages ours refuses.
DEFECTS: dict[str, tuple[list[tuple[int, dict[str, str]]], int]] = {
    # It panics at an index beyond the header's count. The item is refused, and the block completes without it.
    "subbatch_index_out_of_range": ([(3, {"b/s/k": "09"})], 1),
    # It panics at a count below 0. The header is no message.
    "subbatch_negative_count": ([], 1),
    # It panics at keys shorter than a hash. They are no messages.
    "short_key_32": ([], 1),
    "empty_key": ([], 1),
    # It emits an empty block made of junk, or of the first part of a Batch. Neither is a message.
    "garbage_batch_value": ([], 1),
    "batch_value_trailing_bytes": ([], 1),
    # It walks directories, so a prefix without a slash at its end is never found. The specification's prefixes are
    # texts that a key begins with.
    "prefix_without_trailing_slash": ([(2, {"pre1": "01", "pre2": "02"})], 0),
    # It replaces an empty value by a repeated key's. The specification discards the repetition.
    "same_key_empty_then_value": ([(3, {"a/1": "", "a/2": "02"})], 0),
}
# What the real one logs, drops or keeps forever, and ours refuses, with the same emissions.
REFUSED = {"unknown_type_7": 1, "subbatch_header_unknown_id": 1, "unmatched_key_no_slash": 1}


def run(scenario: dict[str, Any], machine: Reassembler) -> tuple[list[tuple[int, CompleteBatch]], int]:
    """Emissions with the index of the message they follow, and the number of refused messages."""
    emitted: list[tuple[int, CompleteBatch]] = []
    refused = 0
    for index, message in enumerate(scenario["messages"]):
        try:
            decoded = decode(bytes.fromhex(message["key"]), bytes.fromhex(message["value"]))
        except MessageError:
            refused += 1
            continue
        events = machine.receive(decoded, "t:0", index)
        machine.check()
        refused += sum(isinstance(event, Refused) for event in events)
        emitted += [(index, batch) for batch in completed(events)]
    return emitted, refused


def test_there_are_28_scenarios() -> None:
    assert len(SCENARIOS) == 28


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    scenario = SCENARIOS[name]
    machine = Reassembler(Tracked(scenario["tracked"]))
    emitted, refused = run(scenario, machine)
    if name in DEFECTS:
        ours, refusals = DEFECTS[name]
        found = [(index, {key: value.hex() for key, value in batch.values.items()}) for index, batch in emitted]
        assert (found, refused) == (ours, refusals)
        return
    assert refused == REFUSED.get(name, 0)
    assert len(emitted) == len(scenario["emitted"])
    for (index, batch), real in zip(emitted, scenario["emitted"], strict=True):
        assert index == real["emitted_after_index"]
        assert (batch.number, batch.weight) == (real["number"], int(real["weight"]))
        assert (batch.hash.hex(), batch.parent.hex()) == (real["hash"], real["parent"])
        assert {key: value.hex() for key, value in batch.values.items()} == real["values"]
        assert batch.deletes == set(real["deletes"])
        token = format_token(batch.resumption)
        if name == "each_doubled_reversed":
            # A message that comes twice before its Batch loses its first offset in the real one; ours keeps the
            # lowest, as the real one does for repetitions after the Batch.
            assert (token, real["resumption"]) == ("t:0=0", "t:0=1")
        else:
            assert token == real["resumption"]


@pytest.mark.parametrize(
    ("name", "state", "text"),
    [
        ("in_order", MissingState.NOTHING, "nothing is missing"),
        ("missing_1", MissingState.PARTS, "1 messages of prefix 'a/'"),
        ("missing_4", MissingState.PARTS, f"the header of sub batch {bytes(31).hex()}05"),
        # The real one answers "ready" (facts, section 1.4).
        ("missing_5", MissingState.PARTS, f"items 0 of sub batch {bytes(31).hex()}05"),
        ("reorg_complete_alone", MissingState.UNKNOWN, "nothing of this block has arrived"),
    ],
)
def test_why_a_block_is_incomplete(name: str, state: MissingState, text: str) -> None:
    machine = Reassembler(Tracked(SCENARIOS[name]["tracked"]))
    run(SCENARIOS[name], machine)
    missing = machine.why_incomplete(HASH)
    assert missing.state is state
    assert str(missing) == text


@pytest.mark.parametrize("case", vectors("resumption.json")["cases"], ids=lambda case: case["name"])
def test_resumption_tokens(case: dict[str, Any]) -> None:
    machine = Reassembler()
    tokens = []
    for message in case["messages"]:
        decoded = decode(bytes.fromhex(message["key"]), bytes.fromhex(message["value"]))
        for batch in completed(machine.receive(decoded, message["source"], message["offset"])):
            tokens.append({"number": batch.number, "resumption": format_token(batch.resumption)})
    assert tokens == case["emitted"]


def test_a_token_says_how_far_others_were_read_when_the_batch_came() -> None:
    machine = Reassembler()
    machine.receive(BatchMsg(hash_of("other"), "a/1", b""), "tz:0", 5)
    machine.receive(batch_of("b", counts={"a/": 1}), "def:0", 1)
    machine.receive(BatchMsg(hash_of("other"), "a/2", b""), "tz:0", 9)
    (batch,) = completed(machine.receive(BatchMsg(hash_of("b"), "a/1", b""), "ta:0", 3))
    assert format_token(batch.resumption) == "def:0=1;ta:0=3;tz:0=5"
    assert batch.offsets == {"def:0": 1, "ta:0": 3}


def test_blocks_encoded_by_fastavro_are_read() -> None:
    machine = Reassembler()
    emitted, refused = run(vectors("positive_counts_accepted.json"), machine)
    assert refused == 0
    ((_, batch),) = emitted
    assert batch.values == {"x/1": b"q", "a/1": b"one", "b/s/z": b"1", "b/s/w": b"2"}
    assert batch.deletes == {"a/2", "b/s/x", "b/s/y"}


def feed(machine: Reassembler, *messages: Message) -> list[ReassemblyEvent]:
    events = [event for message in messages for event in machine.receive(message)]
    machine.check()
    return events


def batch_of(name: str, number: int = 1, **contents: Any) -> Batch:
    return Batch(hash_of(name), number, hash_of("parent"), number, **contents)


class TestTable:
    def test_it_has_every_message_of_a_block(self) -> None:
        assert ACTIONS.keys() == {Batch, SubBatchHeader, SubBatchMsg, BatchMsg, BatchDeleteMsg}

    def test_late_messages_do_nothing(self) -> None:
        machine = Reassembler()
        (done,) = feed(machine, batch_of("b"))
        assert isinstance(done, Completed)
        late = (
            batch_of("b"),
            BatchMsg(hash_of("b"), "a/1", b""),
            BatchDeleteMsg(hash_of("b"), "a/1"),
            SubBatchHeader(hash_of("b"), hash_of(1), 1),
            SubBatchMsg(hash_of("b"), hash_of(1), 0),
        )
        assert feed(machine, *late) == []
        assert machine.statistics().late == len(late)
        assert machine.statistics().incomplete == 0

    def test_messages_of_no_block(self) -> None:
        machine = Reassembler()
        reorg, complete = Reorg(hash_of("a"), 1), ReorgComplete(hash_of("b"), 2)
        assert feed(machine, reorg, complete, Ping(hash_of("p"), b"")) == [reorg, complete]
        assert machine.statistics().pings == 1
        assert machine.statistics().incomplete == 0


class TestContents:
    def test_the_longest_prefix_with_room_counts(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of("b", counts={"a/": 1, "a/b/": 1}))
        assert feed(machine, BatchMsg(hash_of("b"), "a/b/1", b"1")) == []
        (done,) = completed(feed(machine, BatchMsg(hash_of("b"), "a/b/2", b"2")))
        assert done.values == {"a/b/1": b"1", "a/b/2": b"2"}

    def test_a_key_of_an_untracked_longer_prefix_is_not_wanted(self) -> None:
        machine = Reassembler(Tracked(["^a/$"]))
        feed(machine, batch_of("b", counts={"a/": 1, "a/b/": 1}))
        assert feed(machine, BatchMsg(hash_of("b"), "a/b/1", b"1")) == []
        (done,) = completed(feed(machine, BatchMsg(hash_of("b"), "a/1", b"1")))
        assert done.values == {"a/1": b"1"}

    def test_what_is_not_tracked_is_not_in_the_block(self) -> None:
        whole = batch_of(
            "b",
            values={"a/x": b"1", "b/x": b"2"},
            deletes=frozenset({"a/y", "b/y"}),
            counts={"b/": 3},
            sub_batches={"b/s": hash_of(1)},
        )
        early = (BatchMsg(hash_of("b"), "b/1", b""), SubBatchHeader(hash_of("b"), hash_of(1), 1))
        machine = Reassembler(Tracked(["^a/"]))
        (done,) = completed(feed(machine, *early, whole))
        assert (done.values, done.deletes) == ({"a/x": b"1"}, frozenset({"a/y"}))
        assert machine.statistics().untracked == 2

    def test_nothing_tracked_is_every_block_empty(self) -> None:
        (done,) = completed(feed(Reassembler(Tracked([])), batch_of("b", values={"a": b"1"}, counts={"b/": 1})))
        assert done.values == {}

    def test_a_counted_message_with_a_key_of_the_batch_counts_and_does_not_replace(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of("b", values={"a/1": b"batch"}, counts={"a/": 1}))
        (done,) = completed(feed(machine, BatchMsg(hash_of("b"), "a/1", b"message")))
        assert done.values == {"a/1": b"batch"}

    def test_a_repeated_key_does_not_replace_an_empty_value(self) -> None:
        """Specification, "BatchMsg": if the key is present, the message is discarded. Before and after the Batch."""
        empty, later = BatchMsg(hash_of("b"), "a/1", b""), BatchMsg(hash_of("b"), "a/1", b"later")
        other, batch = BatchMsg(hash_of("b"), "a/2", b"2"), batch_of("b", counts={"a/": 2})
        for messages in ((batch, empty, later, other), (empty, later, batch, other)):
            (done,) = completed(feed(Reassembler(), *messages))
            assert done.values == {"a/1": b"", "a/2": b"2"}

    def test_an_entry_of_a_counted_prefix_with_nothing_set_is_a_count_of_zero(self) -> None:
        """{count: 0} and {value: ""} are the same bytes; only the prefixes of the application tell them apart."""
        application = Application("letters", "default", (Prefix(pattern="a/", topic="ta"), Prefix(pattern="n")))
        batch = batch_of("b", values={"a/": b"", "a/1": b"", "n": b"", "x": b""})
        (done,) = completed(feed(Reassembler(application.tracked()), batch))
        assert done.values == {"a/1": b"", "n": b"", "x": b""}
        (done,) = completed(feed(Reassembler(application.tracked(Tracked(("a/",)))), batch))
        assert done.values == {"a/1": b""}

    def test_a_key_may_be_updated_and_deleted(self) -> None:
        machine = Reassembler()
        messages = (BatchDeleteMsg(hash_of("b"), "a/1"), BatchMsg(hash_of("b"), "a/1", b"1"))
        (done,) = completed(feed(machine, *messages, batch_of("b", counts={"a/": 2})))
        assert (done.values, done.deletes) == ({"a/1": b"1"}, frozenset({"a/1"}))

    @pytest.mark.parametrize("backwards", [False, True])
    def test_later_items_replace_earlier_ones_in_any_order(self, backwards: bool) -> None:
        items = [SubBatchMsg(hash_of("b"), hash_of(1), index, (), {"k": b"%d" % index}) for index in range(3)]
        batch = batch_of("b", counts={"k": 1}, sub_batches={"s": hash_of(1)})
        messages = [batch, BatchMsg(hash_of("b"), "k", b"own"), SubBatchHeader(hash_of("b"), hash_of(1), 3), *items]
        (done,) = completed(feed(Reassembler(), *(reversed(messages) if backwards else messages)))
        assert done.values == {"k": b"2"}

    def test_refusals_name_what_was_refused(self) -> None:
        machine = Reassembler()
        block, id_ = hash_of("b"), hash_of(1)
        early = (SubBatchMsg(block, id_, 7), BatchMsg(block, "zz", b""), SubBatchHeader(block, hash_of(2), 1))
        assert feed(machine, *early) == []
        batch = batch_of("b", counts={"a/": 1}, sub_batches={"s": id_})
        assert feed(machine, batch) == [
            Refused(block, Receipt.UNANNOUNCED, "zz"),
            Refused(block, Receipt.UNANNOUNCED, hash_of(2).hex()),
        ]
        assert feed(machine, SubBatchHeader(block, id_, 2)) == [
            Refused(block, Receipt.NO_SUCH_ITEM, f"item 7 of sub batch {id_.hex()}")
        ]
        assert feed(machine, SubBatchMsg(block, id_, 2), SubBatchMsg(block, hash_of(3), 0)) == [
            Refused(block, Receipt.NO_SUCH_ITEM, f"item 2 of sub batch {id_.hex()}"),
            Refused(block, Receipt.UNANNOUNCED, f"item 0 of sub batch {hash_of(3).hex()}"),
        ]
        feed(machine, BatchMsg(block, "a/1", b""))
        assert feed(machine, BatchDeleteMsg(block, "a/2")) == [Refused(block, Receipt.OVER_COUNT, "a/2")]
        assert machine.statistics().refused == 6

    def test_missing_items_are_shown_up_to_a_number(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of("b", sub_batches={"s": hash_of(1)}), SubBatchHeader(hash_of("b"), hash_of(1), 1 << 30))
        missing = machine.why_incomplete(hash_of("b"))
        assert missing.items == {hash_of(1): tuple(range(MISSING_ITEMS_SHOWN))}
        assert missing.messages == 1 << 30


class TestMemory:
    def test_the_block_touched_least_recently_is_put_off(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(incomplete_max=2))
        feed(machine, batch_of("b", counts={"a/": 2}), batch_of("c", counts={"a/": 2}))
        feed(machine, BatchMsg(hash_of("b"), "a/1", b""))
        assert feed(machine, batch_of("d", counts={"a/": 2})) == []
        assert machine.put_off.hashes == {hash_of("c")}
        assert list(machine.incomplete()) == [hash_of("b"), hash_of("d")]

    def test_where_the_oldest_stay_the_newest_without_a_batch_then_the_highest_are_put_off(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(incomplete_max=2), keeps_oldest=True)
        feed(machine, batch_of("b", 5, counts={"a/": 2}), BatchMsg(hash_of("c"), "a/1", b""))
        feed(machine, batch_of("d", 7, counts={"a/": 2}), batch_of("e", 3, counts={"a/": 2}))
        assert machine.put_off.hashes == {hash_of("c"), hash_of("d")}
        assert list(machine.incomplete()) == [hash_of("b"), hash_of("e")]

    def test_a_block_that_is_larger_than_the_bound_is_told_and_still_incomplete(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(incomplete_bytes_max=1_000))
        (evicted,) = feed(machine, batch_of("b", counts={"a/": 2}), BatchMsg(hash_of("b"), "a/1", bytes(2_000)))
        assert isinstance(evicted, Evicted)
        assert (evicted.hash, evicted.reason) == (hash_of("b"), EvictionReason.MEMORY)
        assert evicted.missing.prefixes == {"a/": 1}
        assert feed(machine, BatchMsg(hash_of("b"), "a/2", b"")) == []
        assert list(machine.incomplete()) == [hash_of("b")]
        assert machine.statistics().incomplete_bytes == 0

    def test_bytes_are_bounded_also_before_the_batch(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(incomplete_bytes_max=1_000))
        for number in range(100):
            assert feed(machine, BatchMsg(hash_of(number), "a/1", bytes(90))) == []
        assert len(machine.put_off.hashes or ()) == 100 - machine.statistics().incomplete
        assert machine.statistics().incomplete_bytes <= 1_000

    def test_an_evicted_block_that_is_delivered_again_is_emitted(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(incomplete_max=1))
        messages = (batch_of("b", counts={"a/": 1}), BatchMsg(hash_of("b"), "a/1", b"1"))
        feed(machine, messages[0], batch_of("c", counts={"a/": 1}), messages[1])
        (done,) = completed(feed(machine, *messages))
        assert done.values == {"a/1": b"1"}

    def test_idle_blocks_are_given_up(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(idle_messages_max=10))
        feed(machine, BatchMsg(hash_of("stray"), "a/1", b""))
        events = []
        for number in range(11):
            events += feed(
                machine, batch_of(f"b{number}", counts={"a/": 2}), BatchMsg(hash_of(f"b{number}"), "a/1", b"")
            )
        reasons = [(event.hash, event.reason) for event in events if isinstance(event, Evicted)]
        assert reasons[0] == (hash_of("stray"), EvictionReason.IDLE)
        assert machine.statistics().incomplete <= 6

    def test_blocks_below_the_floor_are_old_unless_they_are_heavy(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of("b", 5, counts={"a/": 1}))
        heavy = Batch(hash_of("heavy"), 5, hash_of("parent"), 100, counts={"a/": 1})
        feed(machine, heavy)
        assert machine.set_floor(6, 50) == [Outdated(hash_of("b"))]
        assert list(machine.incomplete()) == [hash_of("heavy")]
        assert feed(machine, BatchMsg(hash_of("b"), "a/1", b"")) == []
        assert feed(machine, batch_of("c", 5, counts={"a/": 1})) == [Outdated(hash_of("c"))]
        assert feed(machine, BatchMsg(hash_of("c"), "a/1", b"")) == []
        assert (machine.statistics().old, machine.statistics().late) == (2, 2)
        assert list(machine.incomplete()) == [hash_of("heavy")]

    def test_finished_blocks_are_remembered_up_to_a_number(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(finished_max=2))
        assert len(completed(feed(machine, *(batch_of(name) for name in "bcbdcb")))) == 4

    def test_a_forgotten_block_is_emitted_again(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of("b"))
        machine.forget(hash_of("b"))
        assert len(completed(feed(machine, batch_of("b")))) == 1

    def test_low_water_is_what_incomplete_blocks_need(self) -> None:
        machine = Reassembler()
        machine.receive(BatchMsg(hash_of("b"), "a/1", b""), "ta:0", 7)
        machine.receive(BatchMsg(hash_of("c"), "a/1", b""), "ta:0", 9)
        machine.receive(batch_of("c", counts={"a/": 2}), "def:0", 3)
        assert machine.low_water() == {"ta:0": 7, "def:0": 3}
        machine.receive(batch_of("b", counts={"a/": 1}), "def:0", 4)
        assert machine.low_water() == {"ta:0": 9, "def:0": 3}
        assert machine.high_water() == {"ta:0": 9, "def:0": 4}


@pytest.mark.parametrize(("offset", "is_put_off"), [(10, False), (11, True)])
def test_a_block_that_was_given_up_is_known_after_a_restart(offset: int, is_put_off: bool) -> None:
    """Goal: a message that comes after the place that was read calls for the earlier messages of its block."""
    machine = Reassembler()
    machine.resume_given_up({HASH: {"ta:0": 3}}, {"ta:0": 11})
    assert machine.given_up() == {HASH: {"ta:0": 3}}
    assert (machine.lacks([HASH]), machine.lacks([bytes(32)])) == (True, False)
    assert machine.why_incomplete(HASH).state is MissingState.UNKNOWN
    machine.receive(BatchMsg(HASH, "a/1", b""), "ta:0", offset)
    machine.check()
    assert machine.put_off.hashes == ({HASH} if is_put_off else set())
    assert machine.given_up() == ({} if is_put_off else {HASH: {"ta:0": 3}})
