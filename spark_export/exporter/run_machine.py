"""The states of a run, and the recovery of a run that a crash left behind. This module is pure: it touches no file and
no ledger.

    planned ──▶ writing ──▶ written ──▶ published ──▶ saved
       └───────────┴────────────┴──▶ abandoned

planned: the ranges are in the ledger. writing: tasks may write into the run's staging folder. written: every file is
complete, synced, and in the ledger with its checksum. published: the table has the run. saved: the node has the
position. Only runs in state published or saved count; messages of an abandoned run are exported by a later run.
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
    """A mistake of ours: the run's state does not allow this transition."""


@dataclass(frozen=True)
class Found:
    """The traces of a run on disk. in_table: the table has the run. staged_whole: all files of the run are complete in
    staging."""

    in_table: bool
    staged_whole: bool


class Recovery(enum.Enum):
    """The way in which a run that a crash left behind is ended."""

    NOTHING = "nothing"
    ABANDON = "abandon"
    PUBLISH = "publish"
    RECORD_PUBLISHED = "record published"
    SAVE = "save"
    REFUSE = "refuse"


def check_transition(state: RunState, to: RunState) -> None:
    """Raises IllegalTransition if the table has no such transition."""
    if to not in TRANSITIONS[state]:
        raise IllegalTransition(f"a run that is {state} cannot become {to}")


def recover(state: RunState, found: Found) -> Recovery:
    """The way to end a run in this state on which no exporter works any more.

    The table decides whether a run was published, not the ledger: a crash can come between the two.
    """
    if state in ENDED:
        return Recovery.NOTHING
    if found.in_table and state in (RunState.PLANNED, RunState.WRITING):
        # The table gets a run only after the ledger has its files. So this ledger is older than the table.
        return Recovery.REFUSE
    if state is RunState.PUBLISHED:
        return Recovery.SAVE
    if state is RunState.WRITTEN:
        if found.in_table:
            return Recovery.RECORD_PUBLISHED
        return Recovery.PUBLISH if found.staged_whole else Recovery.ABANDON
    return Recovery.ABANDON
