"""Named places of a run where a crash test may end the process, as a power cut would: no cleanup, no flush.

`STREAM_NODE_EXPORT_FAILPOINT=written` kills there. Read once, when imported. Executors never come to one.
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
    """End the process here, where a test has asked for it. site: one of SITES."""
    if _armed == site:
        os.kill(os.getpid(), signal.SIGKILL)
