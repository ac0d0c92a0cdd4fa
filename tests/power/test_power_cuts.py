"""Goal: every answer to a client stays true after a power cut at any moment, and no deleted message comes back.

Method: a node under a mixed load is recorded, with all answers to its clients (`load.py`). From the recording, disks
are rebuilt that keep the synced changes and any part of the others (`disks.py`). The real code opens each disk, and its
content is compared with the answers (`auditor.py`). A failure names the state, and says how to make it again.

The canaries change the recording into that of a node with a fault, and the same check must find the fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from tests.power.auditor import DATA, LAKE, Auditor
from tests.power.load import Load
from tests.power.recording import Event, Kind, need_recorder
from tests.power.states import choose_states, examine, facts_until, recorded

STATES = int(os.environ.get("POWER_STATES", "75"))
SEED = int(os.environ.get("STREAM_NODE_SEED", "1"))
CANARY_STATES = 60
SOAK_STATES = 4_000
PART_STATES = 250
"""The states of one part, about half a minute. Between two parts, CI checks whether the time for soak tests is over."""


@pytest.fixture(scope="module")
def events() -> list[Event]:
    need_recorder()
    return recorded(lambda recording: Load(recording).run())


def check(events: list[Event], states: list[tuple[int, int]], *, keep: bool = True) -> None:
    examine(events, states, lambda folder, cut: Auditor(facts_until(events, cut)).check(folder), keep=keep)


def place_of(events: list[Event], what: str) -> int:
    """The event at which a client was first told this."""
    return next(
        at
        for at, event in enumerate(events)
        if event.kind is Kind.MARK and msgspec.msgpack.decode(event.data)["what"] == what
    )


@pytest.mark.slow
def test_what_clients_were_told_outlasts_a_power_cut(events: list[Event]) -> None:
    check(events, choose_states(events, STATES, SEED))


def test_a_first_start_can_be_cut_anywhere(events: list[Event]) -> None:
    """Goal: the next start makes a database of whatever the first one left."""
    created = place_of(events, "creating")
    steps = [at for at in range(created + 1) if events[at].kind is not Kind.WRITTEN or at % 6 == 0]
    check(events, [(cut, 13 * cut + SEED) for cut in steps])


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("pyarrow", "aiosqlite"))), reason="no extra `export`")
def test_an_export_can_be_cut_anywhere(events: list[Event]) -> None:
    """Goal: each row is there once and right, and the next run goes on. Cuts where names are made and moved."""
    steps = [at for at, event in enumerate(events) if event.path.startswith(LAKE) and event.kind is not Kind.OPENED]
    check(events, [(cut, 7 * cut + number) for number, cut in enumerate(steps[SEED % 3 :: 3])])
    # Behind each step that publishes: with all that was synced, and nothing else.
    published = [at for at, event in enumerate(events) if event.kind is Kind.RENAMED and event.path.startswith(LAKE)]
    check(events, [(at + more, 0) for at in published for more in range(1, 8)])


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_STATES // PART_STATES))
def test_thousands_of_power_cuts(events: list[Event], part: int) -> None:
    check(events, choose_states(events, PART_STATES, SEED + 1 + part))


def without_syncs(events: list[Event], is_lost: Callable[[Event], bool]) -> list[Event]:
    """A trace without these syncs."""
    lost = {event.inode for event in events if event.kind is Kind.SYNCED and is_lost(event)}
    return [event for event in events if event.kind not in (Kind.BEGUN, Kind.SYNCED) or event.inode not in lost]


def confirmed_before_sync(events: list[Event]) -> list[Event]:
    """A trace of a node that confirms before it syncs: every sync of a log comes behind the next mark."""
    changed: list[Event] = []
    late: list[Event] = []
    for event in events:
        if event.kind is Kind.SYNCED and event.path.endswith("-wal"):
            late.append(event)
            continue
        changed.append(event)
        if event.kind is Kind.MARK:
            changed += late
            late = []
    return changed + late


def renamed_without_sync(events: list[Event]) -> list[Event]:
    """A trace without syncs of a folder between a rename in it and the next mark."""
    changed: list[Event] = []
    renamed = False
    for event in events:
        renamed = (renamed or event.kind is Kind.RENAMED) and event.kind is not Kind.MARK
        if not (renamed and event.kind is Kind.SYNCED and not Path(event.path).suffix):
            changed.append(event)
    return changed


def near(events: list[Event], what: str, count: int) -> list[tuple[int, int]]:
    """The states right after the moments in which a client was told this."""
    told = [
        at
        for at, event in enumerate(events)
        if event.kind is Kind.MARK and msgspec.msgpack.decode(event.data)["what"] == what
    ]
    return [(told[number * 7 % len(told)], number) for number in range(count)]


def test_canary_a_confirm_before_the_sync(events: list[Event]) -> None:
    faulty = confirmed_before_sync(events)
    with pytest.raises(AssertionError, match=r"was confirmed, and is not there|was given already"):
        check(faulty, near(faulty, "pushed", CANARY_STATES), keep=False)


def test_canary_a_rename_without_the_sync_of_its_folder(events: list[Event]) -> None:
    faulty = renamed_without_sync(events)
    with pytest.raises(AssertionError, match="was done and cannot be used"):
        check(faulty, near(faulty, "backed up", CANARY_STATES), keep=False)
    with pytest.raises(AssertionError, match=r"is a message of|is \('"):
        check(faulty, near(faulty, "restored", CANARY_STATES), keep=False)


def test_canary_syncs_that_keep_nothing(events: list[Event]) -> None:
    faulty = [event for event in events if event.kind not in (Kind.BEGUN, Kind.SYNCED)]
    with pytest.raises(AssertionError, match="the data directory is not there"):
        check(faulty, near(faulty, "created", 1), keep=False)
    # With the names on disk, the contents are not.
    faulty = without_syncs(events, lambda event: event.path.startswith(f"{DATA}/streams.sqlite"))
    with pytest.raises(Exception, match=r"is not there|damaged|malformed"):
        check(faulty, near(faulty, "pushed", CANARY_STATES), keep=False)


def test_canary_a_deleted_stream_that_comes_back(events: list[Event]) -> None:
    """A trace in which a client hears of the deletion before the node has done anything."""
    deleting, deleted = place_of(events, "deleting"), place_of(events, "deleted")
    told = [events[deleted], *events[deleting + 1 : deleted]]
    faulty = [*events[: deleting + 1], *told, *events[deleted + 1 :]]
    with pytest.raises(AssertionError, match="was deleted, and is there"):
        check(faulty, [(deleting + 1, seed) for seed in range(12)], keep=False)
