"""Audit: writes refusals and administrative acts to a file of their own, one JSON object on each line.

`audit_lines` bounds the number of lines, and seals them. A line that cannot be written is counted and
lost, and the node goes on; the number of lost lines is in the file as soon as it can be written again."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from ockam.files.durable_files import give_to_folder
from ockam.identity.rules.audit_lines import ACTS, REFUSALS, AuditChain, AuditLines, Entry

FILE_MODE = 0o640
TEXT_CHARACTERS_MAX = 300
"""The most characters of one field. Peers choose names, and a line must not be long."""
REPORTED_INTERVALS = 60
"""While the file cannot be written, an error line comes once in this many calls of `Audit.end_interval`."""

logger = structlog.get_logger(__name__)


class Audit:
    """The audit log of a node, whose file is opened at once. Raises OSError. failed: how many lines were not written.

    file: the path of the log; None: no line is written. now_us: returns microseconds since 1970. chain: the name for
    `AuditChain`."""

    def __init__(self, file: Path | None, now_us: Callable[[], int], chain: str = "w00") -> None:
        self._file = file
        self._now_us = now_us
        self._chain = AuditChain(chain)
        self._descriptor: int | None = None
        self._refusals = AuditLines(REFUSALS, more="refused_more")
        self._acts = AuditLines(ACTS, more="admitted_more")
        self._lost = 0
        self._is_torn = False
        self._unreported_intervals = 0
        self.failed = 0
        self.reopen()

    def note(self, entry: Entry) -> None:
        if self._descriptor is not None and not (self._write_lost() and self._write(entry)):
            self.failed += 1
            self._lost += 1

    def _write_lost(self) -> bool:
        lost = self._lost
        if lost:
            if not self._write(Entry("audit_lost", reason="these lines could not be written", count=lost)):
                return False
            self._lost = self._unreported_intervals = 0
            logger.info("audit_written_again", file=str(self._file), lost=lost)
        return True

    def _write(self, entry: Entry) -> bool:
        """Writes one line. Returns False if that failed; then a part of the line can be in the file."""
        assert self._descriptor is not None, "the file is open"
        time = datetime.fromtimestamp(self._now_us() / 1e6, UTC).isoformat(timespec="milliseconds")
        fields = {name: _cut(value) for name, value in msgspec.to_builtins(entry).items()}
        line = self._chain.sealed(msgspec.json.encode({"time": time.replace("+00:00", "Z"), **fields}))
        # A part of a line that the last write has left must not become the beginning of this line.
        data = b"%s%s\n" % (b"\n" if self._is_torn else b"", line)
        try:
            # The file is opened for appending, so one write is one whole line, also beside another program.
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._report_lost(error.strerror or str(error))
            return False
        # A disk that becomes full accepts only the beginning of a line.
        if written:
            self._is_torn = written < len(data)
        # If only the line feed is missing, the line itself is in the file.
        if written < len(data) - 1:
            self._report_lost("only a part of a line was written")
            return False
        self._chain.note_written(line)
        return True

    def _report_lost(self, reason: str) -> None:
        if not self._unreported_intervals:
            self._unreported_intervals = REPORTED_INTERVALS
            logger.error("audit_not_written", file=str(self._file), reason=reason, failed=self.failed + 1)

    def refused(self, entry: Entry, party: str | None = None) -> None:
        """Writes one refusal, or only counts it (`AuditLines.take`). party: the key under which the sender counts
        (`ockam.quotas.usage.party_key`); None: the key of the entry."""
        if self._refusals.take(entry, party):
            self.note(entry)

    def admitted(self, entry: Entry, party: str | None = None) -> None:
        """Writes one administrative act, or only counts it. Acts have their own bounds: no refusals hide them."""
        if self._acts.take(entry, party):
            self.note(entry)

    def end_interval(self) -> None:
        """Writes how often lines were repeated or left out since the last call. To be called every second."""
        self._unreported_intervals = max(0, self._unreported_intervals - 1)
        for lines in (self._refusals, self._acts):
            for entry in lines.end_interval():
                self.note(entry)
        if self._descriptor is not None:
            self._write_lost()

    def reopen(self) -> None:
        """Opens the file again by its name, after a log rotation. Raises OSError; then the old file is used."""
        if self._file is None:
            return
        # The new file is opened before the old one is closed, so an error leaves the log as it was.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        give_to_folder(descriptor, self._file.parent)
        self._close_file()
        self._descriptor = descriptor
        self._is_torn = _is_torn(self._file)
        self._chain.open(self._file)

    def close(self) -> None:
        self.end_interval()
        self._close_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_torn(file: Path) -> bool:
    if not file.is_file() or not file.stat().st_size:
        return False
    with file.open("rb") as opened:
        opened.seek(-1, os.SEEK_END)
        return opened.read() != b"\n"


def _cut(value: str | int) -> str | int:
    if not isinstance(value, str):
        return value
    if len(value) > TEXT_CHARACTERS_MAX:
        value = value[:TEXT_CHARACTERS_MAX] + "…"
    # The name of a file that is not UTF-8 has lone surrogates, which JSON cannot have.
    return value.encode(errors="backslashreplace").decode()
