"""The states of a run of the exporter, and how a run is recovered that a crash interrupted.

This module does no input or output.

    planned ──▶ writing ──▶ written ──▶ published ──▶ saved
       └───────────┴────────────┴──▶ abandoned

The states are in the ledger, a database that records all runs.

- planned: the ledger has the index ranges of the run.
- writing: tasks write into the run's staging folder.
- written: every file is complete, synced, and in the ledger with its checksum.
- published: readers of the table see the rows of the run.
- saved: the node has saved the end indexes of the run.
- abandoned: the run has no rows in the table, and a later run exports its messages.
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
"""The states of a run whose rows are in the table according to the ledger."""
ENDED: Final = frozenset({RunState.SAVED, RunState.ABANDONED})


class IllegalTransition(Exception):
    """A bug in the exporter: a run cannot change from its state to the requested state."""


@dataclass(frozen=True)
class RunFiles:
    """The files of an interrupted run on disk: whether readers see its rows, and whether it can still be published."""

    in_table: bool
    staged_whole: bool


class Recovery(enum.Enum):
    """What to do with a run that a crash interrupted.

    NOTHING: nothing, since the run has ended. ABANDON: remove the files of the run. PUBLISH: add the files to the
    table, then do as for SAVE. RECORD_PUBLISHED: record that the table has the run, then do as for SAVE. SAVE: save the
    end indexes of the run at the node. REFUSE: raise an error, since the record of runs (the ledger) is older than the
    table.
    """

    NOTHING = "nothing"
    ABANDON = "abandon"
    PUBLISH = "publish"
    RECORD_PUBLISHED = "record published"
    SAVE = "save"
    REFUSE = "refuse"


def check_transition(state: RunState, to: RunState) -> None:
    if to not in TRANSITIONS[state]:
        raise IllegalTransition(f"a run that is {state} cannot become {to}")


def recover(state: RunState, found: RunFiles) -> Recovery:
    """Returns what to do with an interrupted run.

    `found.in_table` decides whether the run was published: a crash can occur before the ledger records the publication.
    """
    if state in ENDED:
        return Recovery.NOTHING
    if found.in_table and state in (RunState.PLANNED, RunState.WRITING):
        # The files of a run are in the ledger before the run is published. So this ledger is older than the table.
        return Recovery.REFUSE
    if state is RunState.PUBLISHED:
        return Recovery.SAVE
    if state is RunState.WRITTEN:
        if found.in_table:
            return Recovery.RECORD_PUBLISHED
        return Recovery.PUBLISH if found.staged_whole else Recovery.ABANDON
    return Recovery.ABANDON
