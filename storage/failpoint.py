"""Named places where a crash test may end the process, as a power cut would: no cleanup, no flush.

`STREAM_NODE_FAILPOINT=name` kills at the first visit of a place, `name:3` at the third. Read once, when
imported.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ENVIRONMENT_VARIABLE = "STREAM_NODE_FAILPOINT"

SITES: Final = frozenset(
    {
        "before_begin",
        "after_rows_before_commit",
        "after_commit_before_confirm",
        "before_checkpoint",
        "after_checkpoint",
        "before_close",
    }
)


class _Armed:
    """One site and how many more visits it allows."""

    def __init__(self, setting: str) -> None:
        self.site, _, visits = setting.partition(":")
        if self.site not in SITES or not (visits or "1").isdecimal() or int(visits or "1") == 0:
            sites = ", ".join(sorted(SITES))
            raise ValueError(
                f"{ENVIRONMENT_VARIABLE}={setting!r}: say name or name:count, where name is one of {sites}"
            )
        self._visits_left = int(visits or "1")

    def visit(self) -> None:
        self._visits_left -= 1
        if self._visits_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


_setting = os.environ.get(ENVIRONMENT_VARIABLE)
_armed = None if not _setting else _Armed(_setting)


def failpoint(site: str) -> None:
    """End the process here, where a test has asked for it. site: one of SITES."""
    if _armed is not None and _armed.site == site:
        _armed.visit()
