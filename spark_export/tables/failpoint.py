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
PIPELINE_SITES: Final = frozenset({"pipeline_taken", "pipeline_written", "pipeline_published"})
"""The names of all failpoints. `writing` comes when the first rows of a run are in a file, `before_commit` and
`committed` around the commit of a run, `saved` after the node knows the positions, `rewrite_written` and `rewritten`
around the commit of a compaction or of forgetting; in Delta, that is one call of deltalake, which also writes files.
Of a pipeline's step, `pipeline_taken` comes after the first table, `pipeline_written` and `pipeline_published` around
the publication."""

_armed = os.environ.get(ENVIRONMENT_VARIABLE)
if _armed and _armed not in SITES | PIPELINE_SITES:
    raise ValueError(f"{ENVIRONMENT_VARIABLE}={_armed!r}: one of {', '.join(sorted(SITES | PIPELINE_SITES))}")


def failpoint(site: str) -> None:
    """Kills the process if the environment variable names this failpoint. site: one of SITES or PIPELINE_SITES."""
    if _armed == site:
        os.kill(os.getpid(), signal.SIGKILL)
