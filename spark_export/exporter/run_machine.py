"""The life of a run, and what is done about one that a crash left behind. Pure: it touches no file and no ledger.

    planned ──▶ writing ──▶ written ──▶ published ──▶ saved
       └───────────┴────────────┴──▶ abandoned

planned: the ranges are in the ledger. writing: tasks may write into the run's staging folder. written: every file is
whole, synced, and in the ledger with its checksum. published: the table has the run. saved: the node knows the
position. Only a published or saved run counts, so whatever is undone of an earlier one is exported by a later run.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_export.exporter.model import RunState

TRANSITIONS: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.PLANNED: frozenset({RunState.WRITING, RunState.ABANDONED}),
    RunState.WRITING: frozenset({RunState.WRITTEN, RunState.ABANDONED}),
    RunState.WRITTEN: frozenset({RunState.PUBLISHED, RunState.ABANDONED}),
    RunState.PUBLISHED: frozenset({RunState.SAVED}),
    RunState.SAVED: frozenset(),
    RunState.ABANDONED: frozenset(),
}

COUNTED: Final = frozenset({RunState.PUBLISHED, RunState.SAVED})
"""States of runs whose rows are in the table."""
ENDED: Final = frozenset({RunState.SAVED, RunState.ABANDONED})
"""States of runs about which nothing is left to be done."""


class IllegalTransition(Exception):
    """A mistake of ours: a run was to go where its state does not lead."""


@dataclass(frozen=True)
class Found:
    """What the disk says of a run. in_table: the table has it. staged_whole: staging has all its files, as written."""

    in_table: bool
    staged_whole: bool


class Recovery(enum.Enum):
    """What is done about a run that was left behind."""

    NOTHING = "nothing"
    ABANDON = "abandon"
    PUBLISH = "publish"
    RECORD_PUBLISHED = "record published"
    SAVE = "save"
    REFUSE = "refuse"


def check_transition(state: RunState, to: RunState) -> None:
    """Raises IllegalTransition."""
    if to not in TRANSITIONS[state]:
        raise IllegalTransition(f"a run that is {state} cannot become {to}")


def recover(state: RunState, found: Found) -> Recovery:
    """What to do about a run in that state when nobody works on it any more.

    The table decides whether a run was published, not the ledger: a crash can come between the two.
    """
    if state in ENDED:
        return Recovery.NOTHING
    if found.in_table and state in (RunState.PLANNED, RunState.WRITING):
        # The table gets no run before the ledger has its files: this ledger is older than the table.
        return Recovery.REFUSE
    if state is RunState.PUBLISHED:
        return Recovery.SAVE
    if state is RunState.WRITTEN:
        if found.in_table:
            return Recovery.RECORD_PUBLISHED
        return Recovery.PUBLISH if found.staged_whole else Recovery.ABANDON
    return Recovery.ABANDON
