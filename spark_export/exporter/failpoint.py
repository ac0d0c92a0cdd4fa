"""Failpoints: named places in the code where a crash test can kill the process, without cleanup or flush.

`STREAM_NODE_EXPORT_FAILPOINT=written` kills the process at the place `written`. The variable is read once, at import.
No failpoint is in code that Spark executors run.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ENVIRONMENT_VARIABLE = "STREAM_NODE_EXPORT_FAILPOINT"

SITES: Final = frozenset(
    {
        "planned",
        "writing",
        "tasks_done",
        "written",
        "between_publish_and_ledger",
        "published",
        "saved",
        "compact_planned",
        "compact_written",
        "between_turn_and_ledger",
    }
)
"""The names of all failpoints.

A failpoint with the name of a run's state, such as `planned`, comes right after the ledger (the record of all runs) has
committed this state. The failpoint `writing` comes when the first rows of a run are in a file.
"""

PIPELINE_SITES: Final = frozenset({"pipeline_begun", "pipeline_taken", "pipeline_written", "pipeline_published"})

_armed = os.environ.get(ENVIRONMENT_VARIABLE)
if _armed and _armed not in SITES | PIPELINE_SITES:
    raise ValueError(f"{ENVIRONMENT_VARIABLE}={_armed!r}: one of {', '.join(sorted(SITES | PIPELINE_SITES))}")


def failpoint(site: str) -> None:
    """Kills the process if the environment variable names this failpoint. site: one of SITES or PIPELINE_SITES."""
    if _armed == site:
        os.kill(os.getpid(), signal.SIGKILL)
