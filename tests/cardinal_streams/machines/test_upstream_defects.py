"""Inputs that make the real producer or consumer hang, crash, grow without bound or emit what is wrong (facts, sections
1.1 to 1.5), one test each. Several are also in the recorded scenarios; here they are named."""

from __future__ import annotations

import pytest

from cardinal_streams.errors import MessageError, OutOfRange, PayloadOutOfRange, TruncatedMessage, UnknownPrefixByte
from cardinal_streams.limits import ChainLimits, ReassemblyLimits
from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.events import (
    ChainUpdate,
    MissingState,
    ReassemblyEvent,
    Receipt,
    Refused,
    Start,
)
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    decode,
    encode,
)
from cardinal_streams.message.messages import SubBatchMsg as Item
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from cardinal_streams.produce.producer import Producer
from tests.cardinal_streams.helpers import block, completed, hash_of, names, payload, receive_all, records_of

H, ID = hash_of("block"), hash_of("id")


def feed(machine: Reassembler, *messages: Message) -> list[ReassemblyEvent]:
    """Everything through its bytes, as it would arrive."""
    return receive_all(machine, [encode(message) for message in messages])


def batch_of(**contents: dict[str, int] | dict[str, bytes]) -> Batch:
    return Batch(H, 1, hash_of("parent"), 1, **contents)  # type: ignore[arg-type]


def only(events: list[ReassemblyEvent]) -> CompleteBatch:
    (batch,) = completed(events)
    return batch


class TestCrashes:
    @pytest.mark.parametrize("size", range(33))
    def test_a_key_shorter_than_a_hash(self, size: int) -> None:
        for prefix in range(7):
            with pytest.raises(TruncatedMessage):
                decode(bytes([prefix])[:size] + bytes(max(0, size - 1)), b"")

    @pytest.mark.parametrize("size", range(33, 66))
    def test_an_items_key_without_an_index(self, size: int) -> None:
        with pytest.raises(TruncatedMessage):
            decode(b"\x02" + bytes(size - 1), b"\0\0")

    def test_an_index_at_and_beyond_the_count(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of(sub_batches={"b/s": ID}), SubBatchHeader(H, ID, 1))
        for index in (1, 2, (1 << 31) - 1):
            (event,) = feed(machine, Item(H, ID, index))
            assert isinstance(event, Refused)
            assert event.outcome is Receipt.NO_SUCH_ITEM
        assert only(feed(machine, Item(H, ID, 0))).hash == H

    def test_a_negative_index(self) -> None:
        with pytest.raises(OutOfRange):
            decode(b"\x02" + H + ID + b"\x01", b"\0\0")

    def test_a_negative_item_count(self) -> None:
        with pytest.raises(OutOfRange):
            decode(b"\x01" + H + ID, b"\x01")

    def test_an_item_count_of_two_thousand_million_allocates_nothing(self) -> None:
        machine = Reassembler()
        feed(machine, batch_of(sub_batches={"b/s": ID}), SubBatchHeader(H, ID, (1 << 31) - 1))
        assert machine.statistics().incomplete_bytes < 1_000

    def test_a_message_over_its_count(self) -> None:
        """FailedReconstructPanic: the real one panics, or counts a failure."""
        machine = Reassembler()
        feed(machine, batch_of(counts={"a/": 1, "b/": 1}))
        (event,) = feed(machine, BatchMsg(H, "a/1", b"1"), BatchDeleteMsg(H, "a/2"))
        assert event == Refused(H, Receipt.OVER_COUNT, "a/2")
        assert only(feed(machine, BatchMsg(H, "b/1", b"1"))).values == {"a/1": b"1", "b/1": b"1"}

    def test_a_child_of_no_weight_before_its_parent_of_none(self) -> None:
        machine = ChainOrder(Start(hash_of("a"), 0, 0), 128)
        assert machine.receive(block("y", "x", 2, 0)) == []
        (event,) = machine.receive(block("x", "a", 1, 0))
        assert isinstance(event, ChainUpdate)
        assert names(event.added) == ["x", "y"]


class TestHangs:
    @pytest.mark.parametrize("key", ["/", "//", "/x", "/a/b"])
    def test_an_unannounced_key_that_begins_with_a_slash(self, key: str) -> None:
        machine = Reassembler()
        feed(machine, batch_of(counts={"a/": 1}))
        assert feed(machine, BatchMsg(H, key, b"")) == [Refused(H, Receipt.UNANNOUNCED, key)]
        assert only(feed(machine, BatchMsg(H, "a/1", b""))).values == {"a/1": b""}

    def test_a_counted_prefix_without_a_slash_completes(self) -> None:
        batch = only(
            feed(Reassembler(), batch_of(counts={"pre": 2}), BatchMsg(H, "pre1", b""), BatchMsg(H, "pre2", b""))
        )
        assert batch.values.keys() == {"pre1", "pre2"}

    def test_a_key_that_is_in_a_sub_batch_too_still_counts(self) -> None:
        """The real one drops it when the sub batch came first, and waits forever."""
        machine = Reassembler()
        feed(machine, batch_of(counts={"b/": 1}, sub_batches={"b/s": ID}))
        feed(machine, SubBatchHeader(H, ID, 1), Item(H, ID, 0, (), {"b/1": b"sub"}))
        assert only(feed(machine, BatchMsg(H, "b/1", b"own"))).values == {"b/1": b"sub"}


class TestWrongEmissions:
    @pytest.mark.parametrize("cut", [*range(1, 40)])
    def test_a_truncated_batch_is_not_an_empty_block(self, cut: int) -> None:
        key, value = encode(batch_of(counts={"a/": 1}))
        with pytest.raises(MessageError):
            decode(key, value[:-cut])

    def test_junk_is_not_an_empty_block(self) -> None:
        with pytest.raises(MessageError):
            decode(b"\0" + H, bytes.fromhex("818283"))

    def test_an_empty_value_outside_all_prefixes_arrives(self) -> None:
        records = records_of(Producer("default", {"a/": "ta"}).add_block(payload("b", "a", 1, updates={"x/1": b""})))
        assert only(receive_all(Reassembler(), records)).values == {"x/1": b""}

    def test_a_missing_item_is_named(self) -> None:
        """The real one says that the block is ready."""
        machine = Reassembler()
        feed(machine, batch_of(sub_batches={"b/s": ID}), SubBatchHeader(H, ID, 2), Item(H, ID, 0))
        missing = machine.why_incomplete(H)
        assert (missing.state, missing.items) == (MissingState.PARTS, {ID: (1,)})

    def test_numbers_and_weights_keep_their_sign_and_size(self) -> None:
        for number, weight in ((-5, 1), (1 << 63, 1), (1, -7), (1, 1 << 256)):
            with pytest.raises(PayloadOutOfRange):
                Producer("default", {}).add_block(payload("b", "a", number, weight))

    def test_counts_beyond_32_bits_are_not_cut(self) -> None:
        for count in (1 << 31, (1 << 32) - 1, 1 << 32):
            with pytest.raises(PayloadOutOfRange):
                encode(SubBatchHeader(H, ID, count))

    def test_hashes_are_not_padded_or_cropped(self) -> None:
        for wrong in (b"", b"\1", bytes(31), bytes(33)):
            with pytest.raises(PayloadOutOfRange):
                encode(Reorg(wrong, 1))


class TestGrowth:
    def test_messages_of_blocks_whose_batch_never_comes_are_given_up(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(incomplete_max=10))
        feed(machine, *(BatchMsg(hash_of(number), "a/1", b"") for number in range(1_000)))
        assert machine.statistics().incomplete == 10

    def test_old_blocks_are_not_remembered_without_bound(self) -> None:
        machine = Reassembler(limits=ReassemblyLimits(finished_max=10))
        for number in range(1_000):
            feed(machine, Batch(hash_of(number), number, hash_of(number - 1 if number else 0), number))
        assert sum(machine.why_incomplete(hash_of(n)).state is MissingState.NOTHING for n in range(1_000)) == 10

    def test_banned_blocks_are_not_remembered_without_bound(self) -> None:
        limits = ChainLimits(remembered_max=10, waiting_max=10)
        machine = ChainOrder(Start(hash_of("a"), 0, 0), 8, wanted={1: hash_of("good")}, limits=limits)
        for number in range(1_000):
            machine.receive(block(f"bad{number}", "a", 1, 1))
            machine.receive(block(f"child{number}", f"bad{number}", 2, 2))
        assert machine.statistics().waiting <= 10

    def test_messages_of_unknown_types_are_not_kept(self) -> None:
        with pytest.raises(UnknownPrefixByte):
            decode(b"\x07" + H, b"\1")

    def test_a_reorg_complete_is_not_kept(self) -> None:
        machine = Reassembler()
        assert feed(machine, ReorgComplete(H, 1)) == [ReorgComplete(H, 1)]
        assert machine.statistics().incomplete == 0

    def test_a_header_for_an_unannounced_id_is_told_and_dropped(self) -> None:
        machine = Reassembler(Tracked([".*"]))
        feed(machine, batch_of(counts={"a/": 1}))
        assert feed(machine, SubBatchHeader(H, ID, 5)) == [Refused(H, Receipt.UNANNOUNCED, ID.hex())]


class TestStuckChains:
    def test_a_fork_from_a_start_block_that_is_not_replayed(self) -> None:
        machine = ChainOrder(Start(hash_of("a"), 0, 0), 128)
        machine.receive(block("b", "a", 1, 1))
        (event,) = machine.receive(block("c", "a", 1, 2))
        assert isinstance(event, ChainUpdate)
        assert (names(event.removed), names(event.added)) == (["b"], ["c"])

    def test_numbers_with_gaps(self) -> None:
        machine = ChainOrder(Start(hash_of("a"), 0, 0), 128)
        for each in (block("b", "a", 5, 5), block("c", "b", 10, 10), block("d", "a", 7, 7)):
            machine.receive(each)
        (event,) = machine.receive(block("e", "d", 1_000, 20))
        assert isinstance(event, ChainUpdate)
        assert (names(event.removed), names(event.added)) == (["b", "c"], ["d", "e"])

    def test_an_orphan_at_the_start_is_not_added_before_its_parent(self) -> None:
        machine = ChainOrder(None, 128)
        assert len(machine.receive(block("b", "a", 1, 1))) == 1
        assert machine.receive(block("d", "c", 3, 3)) == []
        (event,) = machine.receive(block("c", "b", 2, 2))
        assert isinstance(event, ChainUpdate)
        assert names(event.added) == ["c", "d"]
