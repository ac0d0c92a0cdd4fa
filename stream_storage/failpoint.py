"""Failpoints: named sites in the code where a crash test can kill the process, without cleanup or flush.

`STREAM_NODE_FAILPOINT=name` kills the process when that site is first reached, `name:3` when it is reached for the
third time. `STREAM_NODE_SYNC_DELAY_MS=5` makes every commit 5 ms longer, like a slow disk. Both variables are read at
the import of this module."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

ENVIRONMENT_VARIABLE = "STREAM_NODE_FAILPOINT"
DELAY_VARIABLE = "STREAM_NODE_SYNC_DELAY_MS"
DELAYED_SITE = "after_rows_before_commit"

EXPORT_SITES: Final = frozenset(
    {"planned", "writing", "tasks_done", "before_commit", "committed", "saved", "rewrite_written", "rewritten"}
)
"""The sites of an exporter. `writing` is reached when the first rows of a run are in a file, and `saved` when the node
knows the positions. `before_commit` and `committed` enclose the commit of a run, `rewrite_written` and `rewritten` that
of a compaction or of forgetting. In Delta, the latter commit is one call of deltalake, which also writes files."""
PIPELINE_SITES: Final = frozenset({"pipeline_taken", "pipeline_written", "pipeline_published"})
"""The sites of a pipeline's step: after its first table, before its publication, and after its publication."""
SITES: Final = frozenset(
    {
        *EXPORT_SITES,
        *PIPELINE_SITES,
        "before_begin",
        "after_rows_before_commit",
        "after_commit_before_confirm",
        "before_checkpoint",
        "after_checkpoint",
        "before_close",
        "within_upgrade_backup",
        "before_upgrade_backup_named",
        "after_upgrade_backup",
        "before_revision_commit",
        "after_revision_commit",
        "promotion_begun",
        "promotion_noted",
        "promotion_source_demoted",
        "promotion_copied",
        "promotion_fences_raised",
        "promotion_partition_taken",
        "promotion_give_back_noted",
        "promotion_source_restored",
    }
)

_setting = os.environ.get(ENVIRONMENT_VARIABLE) or ""
_site, _, _visits = _setting.partition(":")
if _setting and (_site not in SITES or not (_visits or "1").isdecimal() or int(_visits or "1") == 0):
    raise ValueError(
        f"{ENVIRONMENT_VARIABLE}={_setting!r}: say name or name:count, where name is one of {', '.join(sorted(SITES))}"
    )
_visits_left = int(_visits or "1")
_delay_ms = os.environ.get(DELAY_VARIABLE) or "0"
if not _delay_ms.isdecimal():
    raise ValueError(f"{DELAY_VARIABLE}={_delay_ms!r}: say a whole number of milliseconds")
_sync_delay_s = int(_delay_ms) / 1000


def failpoint(site: str) -> None:
    """Kills the process or waits, if an environment variable demands this for `site`, one of SITES."""
    global _visits_left
    if site == _site:
        _visits_left -= 1
        if _visits_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if _sync_delay_s and site == DELAYED_SITE:
        time.sleep(_sync_delay_s)
