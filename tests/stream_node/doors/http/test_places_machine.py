"""Goal: no party gets more places than its share, the oldest half guest gives way, and health always gets a place.

Method: many random orders of what guests do, beside a plain list that counts the slow way.
"""

from __future__ import annotations

import random

import pytest

from ockam.quotas.limits import PARTY_SHARE
from stream_node.doors.http.places_machine import HEALTH_PLACES, Admission, Places


class Guest:
    def __init__(self, party: str, is_for_health: bool = False) -> None:
        self.party = party
        self.is_for_health = is_for_health
        self.half_since = 0
        self.unread = False

    def has_unread(self) -> bool:
        return self.unread


@pytest.mark.parametrize("seed", range(20))
def test_every_step_keeps_the_shares(seed: int) -> None:
    draw, most = random.Random(seed), 16
    places, open_ = Places[Guest](), list[Guest]()
    for step in range(1, 600):
        act = draw.choice(("enter", "enter", "enter", "received", "received", "waits", "leave"))
        if act == "enter":
            guest = Guest(draw.choice("abcdefg"))
            guest.half_since = step
            usual = [each for each in open_ if not each.is_for_health]
            share = [each for each in usual if each.party == guest.party]
            is_full = len(share) >= most // PARTY_SHARE
            rivals = [each for each in (share if is_full else usual) if each.half_since]
            is_full = is_full or len(usual) >= most
            admission, gone = places.enter(guest, guest.party, most)
            if not is_full:
                assert (admission, gone) == (Admission.USUAL, None)
            elif rivals:
                assert (admission, gone) == (Admission.USUAL, min(rivals, key=lambda each: each.half_since))
            else:
                asking = [each for each in open_ if each.is_for_health]
                halves = [each for each in asking if each.half_since]
                expected = min(halves, key=lambda each: each.half_since) if halves else None
                has_place = len(asking) < HEALTH_PLACES
                assert admission is (Admission.HEALTH if has_place or halves else Admission.REFUSED)
                assert gone is (None if has_place else expected)
            if gone is not None:
                open_.remove(gone)
            if admission is not Admission.REFUSED:
                guest.is_for_health = admission is Admission.HEALTH
                open_.append(guest)
        elif open_:
            guest = draw.choice(open_)
            if act == "received":
                places.note_received(guest)
                guest.half_since = 0
            elif act == "waits":
                places.note_received(guest)
                places.note_waits(guest)
                guest.half_since = step
            else:
                places.leave(guest)
                open_.remove(guest)
        places.check()
        assert len(places) == len(open_)


def test_a_peer_that_has_just_sent_something_is_passed_over() -> None:
    places, guests = Places[Guest](), [Guest("a"), Guest("a"), Guest("a")]
    for guest in guests[:2]:
        places.enter(guest, "a", 8)
    guests[0].unread = True
    assert places.enter(guests[2], "a", 8) == (Admission.USUAL, guests[1])
    guests[2].unread = True
    assert places.enter(Guest("a"), "a", 8) == (Admission.USUAL, guests[0])
