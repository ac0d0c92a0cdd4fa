"""What is wrong with a recording or a list of batches is found and told."""

from __future__ import annotations

from cardinal_streams.inspection import PROBLEMS_REPORTED_MAX, summarise_deliveries, summarise_payloads
from cardinal_streams.transports.transport import Delivery
from tests.cardinal_streams.chains import APPLICATION
from tests.cardinal_streams.helpers import hash_of, payload

WHOLE = payload("a", "g", 1, updates={"a/1": b"text", "b/1": b"1"}, deletes={"x"})


def deliveries(*payloads: object) -> list[Delivery]:
    found: list[Delivery] = []
    for each in payloads:
        for topic, records in APPLICATION.producer().add_block(each).items():  # type: ignore[arg-type]
            found += [Delivery(topic, 0, len(found), key, value) for key, value in records]
    return found


def test_a_whole_one() -> None:
    summary = summarise_deliveries(APPLICATION, deliveries(WHOLE))
    assert (summary.blocks, summary.values, summary.deletes, summary.messages) == (1, 2, 1, 3)
    assert (summary.first_number, summary.last_number, summary.problems) == (1, 1, 0)
    assert [(each.topic, each.partitions, each.messages) for each in summary.topics] == [
        ("default", 1, 1),
        ("ta", 1, 1),
        ("tb", 1, 1),
    ]


def test_a_missing_message_is_named() -> None:
    summary = summarise_deliveries(APPLICATION, deliveries(WHOLE)[1:])
    assert (summary.blocks, summary.incomplete, summary.problems) == (0, 1, 1)
    assert hash_of("a").hex() in summary.told[0]
    assert "a/" in summary.told[0]


def test_what_is_no_message_and_what_does_not_fit() -> None:
    found = deliveries(WHOLE, payload("c", "a", 2, updates={"a/2": b"\xff"}))
    junk = Delivery("ta", 3, 9, b"\x03", b"")
    extra = Delivery("ta", 0, 10, b"\x03" + hash_of("c") + b"b/7", b"")
    summary = summarise_deliveries(APPLICATION, [found[-1], extra, junk, *found])
    assert summary.problems == 3
    assert any(text.startswith("ta:3 at 9: ") for text in summary.told)
    assert any("b/7 does not fit" in text for text in summary.told)
    assert any("a/2: no text" in text for text in summary.told)


def test_problems_are_counted_to_the_end_and_told_in_part() -> None:
    junk = [Delivery("ta", 0, offset, b"\x03", b"") for offset in range(100)]
    summary = summarise_deliveries(APPLICATION, junk)
    assert (summary.problems, len(summary.told)) == (100, PROBLEMS_REPORTED_MAX)


def test_payloads() -> None:
    wrong = payload("b", "a", 2, weight=1 << 256)
    summary = summarise_payloads(APPLICATION, [WHOLE, WHOLE, wrong])
    assert (summary.blocks, summary.messages, summary.duplicates, summary.problems) == (1, 3, 1, 1)
    assert summarise_payloads(APPLICATION, []).first_number is None
