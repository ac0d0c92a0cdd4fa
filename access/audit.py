"""Audit: writes refusals and administrative acts to a file of their own, one JSON object on each line.

Equal refusals within a second are counted instead of repeated. The number of lines in a second is limited in all, and
for each identity, so a flood of refused requests neither fills the disk nor hides the refusals of others. The file is
only ever appended to. Call `reopen` after a log rotation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from ockam.identity import ANONYMOUS

LINES_MAX = 200
"""The largest number of lines about different refusals in one second. Further refusals are only counted."""
IDENTITY_LINES_MAX = 50
"""The largest number of lines about different refusals of one identity in one second. Peers that have proved no
identity count by their host. Further refusals are counted in one line for each identity."""
IDENTITIES_MAX = 50
"""The largest number of identities with such a count of further refusals in one second. All other identities share one
count."""
FILE_MODE = 0o640
_TOO_MANY = "too many different refusals in one second"
_OTHERS = "others", ""

logger = structlog.get_logger(__name__)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the audit log without its time.

    event: "refused", "admitted" (a request for an administrative act was passed on to its worker), "limited" and
        "slowed" (a limit was exceeded: a request was refused, or reading had to wait), or an act of the node, such as
        "rules_loaded".
    identity: who sent the request.
    peer: the `host:port` of the connection.
    right: the right that was needed.
    name: the name on which the right was needed, such as that of a stream; the name of a limit.
    rule: the rule that decided.
    request: the name of the request's protocol.
    reason: the text that the sender was given.
    count: the number of equal events.
    """

    event: str
    identity: str = ""
    peer: str = ""
    right: str = ""
    name: str = ""
    rule: str = ""
    request: str = ""
    reason: str = ""
    count: int = 1


class Audit:
    """The audit log of a node.

    file: where the lines are written; None: nothing is written.
    now_us: returns the time in microseconds since 1970.
    failed: the number of lines that could not be written.
    """

    def __init__(self, file: Path | None, now_us: Callable[[], int]) -> None:
        """Opens the file. Raises OSError."""
        self._file = file
        self._now_us = now_us
        self._descriptor: int | None = None
        self._repeated: dict[Entry, int] = {}
        self._lines: Counter[str] = Counter()
        self._unlisted: Counter[tuple[str, str]] = Counter()
        self.failed = 0
        self.reopen()

    def note(self, entry: Entry) -> None:
        """Writes one line."""
        if self._descriptor is None:
            return
        time = datetime.fromtimestamp(self._now_us() / 1e6, UTC).isoformat(timespec="milliseconds")
        line = {"time": time.replace("+00:00", "Z"), **msgspec.to_builtins(entry)}
        try:
            # The file is opened for appending, so one write is one whole line, also beside another program.
            os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
        except OSError as error:
            if not self.failed:
                logger.error("audit_not_written", file=str(self._file), reason=str(error))
            self.failed += 1

    def refused(self, entry: Entry) -> None:
        """Writes one refusal. Only counts it if an equal one, or too many others, were written since the last call of
        `end_interval`."""
        who = entry.identity if entry.identity != str(ANONYMOUS) else entry.peer.rpartition(":")[0]
        if entry in self._repeated:
            self._repeated[entry] += 1
        elif len(self._repeated) < LINES_MAX and self._lines[who] < IDENTITY_LINES_MAX:
            self._repeated[entry] = 0
            self._lines[who] += 1
            self.note(entry)
        else:
            unlisted = entry.identity, who if entry.identity != who else ""
            is_full = unlisted not in self._unlisted and len(self._unlisted) >= IDENTITIES_MAX
            self._unlisted[_OTHERS if is_full else unlisted] += 1

    def end_interval(self) -> None:
        """Writes how often each refusal was repeated since the last call. Call this method every second."""
        repeated, self._repeated = self._repeated, {}
        for entry, count in repeated.items():
            if count:
                self.note(msgspec.structs.replace(entry, event=f"{entry.event}_again", count=count))
        unlisted, self._unlisted = self._unlisted, Counter()
        self._lines.clear()
        for (identity, host), number in unlisted.items():
            self.note(Entry("refused_more", identity, host, reason=_TOO_MANY, count=number))

    def reopen(self) -> None:
        """Opens the file again by its name, after a program has moved it away. Raises OSError; then the log goes on in
        the file that was open."""
        if self._file is None:
            return
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        self._close_file()
        self._descriptor = descriptor

    def close(self) -> None:
        """Writes what is still counted, and closes the file."""
        self.end_interval()
        self._close_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
