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
    {"planned", "writing", "tasks_done", "before_commit", "committed", "saved", "rewrite_written", "rewritten"}
)
"""The names of all failpoints. `writing` comes when the first rows of a run are in a file, `before_commit` and
`committed` around the commit of a run, `saved` after the node knows the positions, `rewrite_written` and `rewritten`
around the commit of a compaction or of forgetting."""

_armed = os.environ.get(ENVIRONMENT_VARIABLE)
if _armed and _armed not in SITES:
    raise ValueError(f"{ENVIRONMENT_VARIABLE}={_armed!r}: one of {', '.join(sorted(SITES))}")


def failpoint(site: str) -> None:
    """Kills the process if the environment variable names this failpoint. site: one of SITES."""
    if _armed == site:
        os.kill(os.getpid(), signal.SIGKILL)
