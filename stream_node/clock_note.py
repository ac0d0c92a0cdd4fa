"""Notes in the data directory which time the node trusted, and how the machine's steady clock stood to it.

With it the next start of the node sees whether the wall clock has jumped meanwhile, as long as the machine itself has
not been started anew; and after that, whether the wall clock stands before a time that was trusted once. The note need
not outlast a power cut: without it, the newest stored message stands in.
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
    """boot_id: of the machine's start, empty where the system does not tell. time_us: the trusted time of the note;
    offset_us: that time less `since_boot_s`, in microseconds."""

    boot_id: str
    time_us: int
    offset_us: int


class Known(NamedTuple):
    """What a start knows of the time: see `stream_service.workers.clock.Clock`."""

    newest_us: int
    offset_us: int | None


def since_boot_s() -> float:
    """Seconds on a clock that never jumps and counts a machine's sleep, where the system has one."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


def read_known(directory: Path, stored_us: int, wall_us: int) -> Known:
    """What the note says, and the newest stored message, whose time may be wrong, where the note does not suffice."""
    try:
        note = msgspec.json.decode((directory / FILE_NAME).read_bytes(), type=Note)
    except (OSError, msgspec.DecodeError):
        return Known(stored_us, None)
    if note.boot_id and note.boot_id == _boot_id():
        return Known(0, note.offset_us)
    if wall_us >= note.time_us:
        # Messages may be stored with a later time, from when the clock was wrong; that has been settled.
        return Known(0, None)
    return Known(max(stored_us, note.time_us), None)


def write_note(directory: Path, offset_us: int) -> None:
    """A failure is logged: the note only helps."""
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
