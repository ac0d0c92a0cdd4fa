"""Goal: a run's states follow each other as documented, and what a crash leaves is always brought to an end.

Method: every state against every other; every state with every finding; a walk through crashes at any point.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_export.exporter.model import RunState
from spark_export.exporter.runs.run_machine import (
    COUNTED,
    TRANSITIONS,
    IllegalTransition,
    Recovery,
    RunFiles,
    check_transition,
    recover,
)

ENDED = {RunState.SAVED, RunState.ABANDONED}


@pytest.mark.parametrize(("state", "to"), list(product(RunState, RunState)))
def test_only_the_documented_transitions_are_allowed(state: RunState, to: RunState) -> None:
    if to in TRANSITIONS[state]:
        check_transition(state, to)
    else:
        with pytest.raises(IllegalTransition, match=state):
            check_transition(state, to)


@pytest.mark.parametrize("found", [RunFiles(a, b) for a, b in product((True, False), repeat=2)])
@pytest.mark.parametrize("state", RunState)
def test_a_run_that_the_table_has_is_never_abandoned_or_published_again(state: RunState, found: RunFiles) -> None:
    """Such a run is written at least: the table gets nothing before the ledger has the files."""
    action = recover(state, found)
    if found.in_table and state in (RunState.WRITTEN, RunState.PUBLISHED):
        assert action in (Recovery.RECORD_PUBLISHED, Recovery.SAVE)
    if found.in_table and state in (RunState.PLANNED, RunState.WRITING):
        assert action is Recovery.REFUSE, "the ledger is older than the table"
    if state in ENDED:
        assert action is Recovery.NOTHING
    if not found.in_table and not found.staged_whole and state is RunState.WRITTEN:
        assert action is Recovery.ABANDON


class Disk:
    """A run, its table and its ledger, with a crash wherever `lives` says. Each life does so many steps."""

    def __init__(self) -> None:
        self.state = RunState.PLANNED
        self.in_table = False
        self.published = 0

    def go(self, to: RunState) -> None:
        check_transition(self.state, to)
        self.state = to

    def publish(self) -> None:
        self.published += 1
        self.in_table = True


@given(st.lists(st.integers(0, 6), max_size=8), st.booleans())
def test_whatever_the_crashes_a_run_is_published_at_most_once(lives: list[int], staged: bool) -> None:
    disk = Disk()
    script: list[Callable[[], None]] = [
        lambda: disk.go(RunState.WRITING),
        lambda: disk.go(RunState.WRITTEN),
        disk.publish,
        lambda: disk.go(RunState.PUBLISHED),
        lambda: disk.go(RunState.SAVED),
    ]
    for step in script[: lives[0] if lives else len(script)]:
        step()
    for steps in [*lives[1:], 6]:
        action = recover(disk.state, RunFiles(disk.in_table, staged))
        plan: list[Callable[[], None]] = {
            Recovery.NOTHING: [],
            Recovery.ABANDON: [lambda: disk.go(RunState.ABANDONED)],
            Recovery.PUBLISH: script[2:],
            Recovery.RECORD_PUBLISHED: script[3:],
            Recovery.SAVE: script[4:],
        }[action]
        for step in plan[:steps]:
            step()
    assert disk.state in ENDED
    assert disk.published == (disk.state in COUNTED)
