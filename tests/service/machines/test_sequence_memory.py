"""Goal: what the node forgets of publishers never makes it store a message twice that it still remembers.

Method: the pure machine, with more publishers than it remembers.
"""

from __future__ import annotations

import pytest

from stream_service.workers import sequence_machine
from stream_service.workers.sequence_machine import Duplicate, New, OutOfOrder, PublisherSequences


def test_a_message_is_known_longer_than_its_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_machine, "PUBLISHERS_MAX", 3)
    machine = PublisherSequences()
    machine.remember((b"p%d" % number, 7, number) for number in range(5))
    assert machine.decide(b"p0", 7, 0) == Duplicate(index=0)
    assert machine.decide(b"p0", 8, 0) == New()
    assert machine.decide(b"p4", 9, 1) == OutOfOrder(8)


def test_a_number_whose_index_is_forgotten_is_a_duplicate_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_machine, "RECENT_MAX", 2)
    machine = PublisherSequences()
    machine.remember((b"p", number, 10 + number) for number in range(5))
    assert [machine.decide(b"p", number, 0) for number in (0, 3, 4)] == [
        Duplicate(index=None),
        Duplicate(index=13),
        Duplicate(index=14),
    ]
