"""Failpoints: named places in a run where a crash test can end the process without cleanup or flush, as a power cut
does.

`STREAM_NODE_EXPORT_FAILPOINT=written` ends the process at the place `written`. The variable is read once, at import.
Executors pass no failpoint.
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
"""A state's name is the place just behind its commit; `writing` is when the first rows of a run are in a file."""

_armed = os.environ.get(ENVIRONMENT_VARIABLE)
if _armed and _armed not in SITES:
    raise ValueError(f"{ENVIRONMENT_VARIABLE}={_armed!r}: one of {', '.join(sorted(SITES))}")


def failpoint(site: str) -> None:
    """Ends the process if a test has asked for this place. site: one of SITES."""
    if _armed == site:
        os.kill(os.getpid(), signal.SIGKILL)
