"""A note in the data directory: the time that the node trusted, and how the steady clock of the machine stood to it.

With the note, the next start of the node sees whether the wall clock has jumped in between, if the machine itself was
not restarted. After a restart of the machine the note still shows whether the wall clock is before a time that was
trusted once. The note need not survive a power cut: without it, the time of the newest stored message is used.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

FILE_NAME = "clock.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

logger = structlog.get_logger(__name__)


class Note(msgspec.Struct, frozen=True):
    """Note: one trusted time.

    boot_id: the id of the start of the machine; empty where the system has none. time_us: the trusted time. offset_us:
    that time less `since_boot_s`, in microseconds.
    """

    boot_id: str
    time_us: int
    offset_us: int


class Known(NamedTuple):
    """Known: what a start knows of the time, see `stream_service.workers.clock.Clock`."""

    newest_us: int
    offset_us: int | None


def since_boot_s() -> float:
    """The seconds of a clock that never jumps and that counts while the machine sleeps, where the system has such a
    clock."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


def read_known(directory: Path, stored_us: int, wall_us: int) -> Known:
    """Read the note, and the newest stored message where the note does not suffice. The time of that message may be
    wrong."""
    try:
        note = msgspec.json.decode((directory / FILE_NAME).read_bytes(), type=Note)
    except (OSError, msgspec.DecodeError):
        return Known(stored_us, None)
    if note.boot_id and note.boot_id == _boot_id():
        return Known(0, note.offset_us)
    if wall_us >= note.time_us:
        # Stored messages may have later times, from when the clock was wrong. The node has dealt with that before it
        # wrote the note.
        return Known(0, None)
    return Known(max(stored_us, note.time_us), None)


def write_note(directory: Path, offset_us: int) -> None:
    """Write the note. A failure is only logged: the node works without the note."""
    note = Note(_boot_id(), offset_us + int(since_boot_s() * 1_000_000), offset_us)
    beside = directory / f"{FILE_NAME}.new"
    try:
        beside.write_bytes(msgspec.json.encode(note))
        beside.replace(directory / FILE_NAME)
    except OSError as error:
        logger.warning("clock_not_noted", reason=str(error))


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
