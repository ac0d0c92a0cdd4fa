"""Any order, any duplication, any interleaving: each block once and whole; one message short: never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Batch, Record, decode
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from tests.cardinal_streams.helpers import completed, receive_all
from tests.cardinal_streams.strategies import Sent, sent_blocks


def shuffled(data: st.DataObject, records: list[Record]) -> list[Record]:
    """The records in some order, some of them several times."""
    extra = data.draw(st.lists(st.sampled_from(records), max_size=2 * len(records)))
    return data.draw(st.permutations(records + extra))


def assert_equal(batch: CompleteBatch, sent: Sent) -> None:
    whole = sent.payload
    assert (batch.hash, batch.number, batch.parent) == (whole.hash, whole.number, whole.parent)
    assert batch.weight == whole.weight
    assert batch.values == sent.values
    assert batch.deletes == sent.deletes


@given(sent_blocks(), st.data())
def test_any_order_and_duplication_gives_one_equal_block(sent: Sent, data: st.DataObject) -> None:
    machine = Reassembler()
    (batch,) = completed(receive_all(machine, shuffled(data, sent.records)))
    assert_equal(batch, sent)
    assert machine.statistics().refused == 0
    assert machine.statistics().incomplete == 0


@given(sent_blocks(1), sent_blocks(2), sent_blocks(3), st.data())
def test_any_interleaving_of_blocks_and_producers(first: Sent, second: Sent, third: Sent, data: st.DataObject) -> None:
    """Two redundant producers send all three blocks, and some messages come more often."""
    sent = {each.payload.hash: each for each in (first, second, third)}
    records = [record for each in sent.values() for record in each.records]
    order = data.draw(st.permutations(records + records))
    machine = Reassembler()
    batches = completed(receive_all(machine, order))
    assert sorted(batch.hash for batch in batches) == sorted(sent)
    for batch in batches:
        assert_equal(batch, sent[batch.hash])
    assert machine.low_water() == {}


@given(sent_blocks(), st.data())
def test_one_message_short_is_never_emitted_and_its_lack_is_named(sent: Sent, data: st.DataObject) -> None:
    short = data.draw(st.sampled_from(sent.records))
    rest = [record for record in sent.records if record != short]
    machine = Reassembler()
    order = shuffled(data, rest) if rest else []
    assert completed(receive_all(machine, order)) == []
    missing = machine.why_incomplete(sent.payload.hash)
    if isinstance(decode(*short), Batch):
        assert missing.early_messages == len(rest)
    else:
        assert missing.messages >= 1
        assert missing.prefixes or missing.headers or missing.items
    (batch,) = completed(receive_all(machine, [short]))
    assert_equal(batch, sent)


@given(sent_blocks(), st.data())
def test_a_tracked_part_is_that_part_of_the_whole(sent: Sent, data: st.DataObject) -> None:
    machine = Reassembler(Tracked(["^a/", "^q/"]))
    (batch,) = completed(receive_all(machine, shuffled(data, sent.records)))
    assert batch.values == {key: value for key, value in sent.values.items() if key[:2] in ("a/", "q/")}
    assert batch.deletes == {key for key in sent.deletes if key[:2] in ("a/", "q/")}
    assert machine.statistics().refused == 0
