"""Keeps a note in the data directory: the time that the node trusted, and its offset from the machine's steady clock.
The next start of the node reads the note. If the machine has not restarted since, the note shows whether the wall clock
has jumped; after a restart, whether the wall clock is earlier than a time that the node trusted. A power cut may
destroy the note. Without a note, the node uses the time of the newest stored message."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from ockam.files.durable_files import create_private, with_seal, without_seal
from ockam.files.parsing import parse_json
from stream_storage.directory_lock import boot_id

FILE_NAME = "clock.json"

logger = structlog.get_logger(__name__)


class Note(msgspec.Struct, frozen=True):
    """The note about a trusted time."""

    boot_id: str  # the id of the machine's last boot; empty if the system has none
    time_us: int  # the trusted time, in microseconds since 1970
    offset_us: int  # `time_us` minus the steady clock `since_boot_s`


class Known(NamedTuple):
    """The time that a starting node knows, as arguments for `stream_service.workers.clock.Clock`."""

    newest_us: int  # in microseconds since 1970: an earlier wall clock is not trusted; 0: no such limit
    offset_us: int | None  # the trusted time minus the steady clock; None if it is unknown


def since_boot_s() -> float:
    """Returns the time of a clock that never jumps. If possible, it also counts while the machine sleeps."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


def read_known(directory: Path, stored_us: int, wall_us: int) -> Known:
    """Reads the note, and returns what it tells about the present time. All times are in microseconds since 1970.
    stored_us: the time of the newest stored message, which may be wrong. It is used if there is no note, or if the wall
    clock is earlier than the note."""
    try:
        note = parse_json(without_seal((directory / FILE_NAME).read_bytes()), Note)
    except (OSError, ValueError):
        return Known(stored_us, None)
    # If the steady clock is earlier than in the note, this is a virtual machine that went on from a snapshot.
    is_steady = since_boot_s() * 1_000_000 >= note.time_us - note.offset_us
    if note.boot_id and note.boot_id == boot_id().decode() and is_steady:
        return Known(0, note.offset_us)
    if wall_us >= note.time_us:
        # Stored messages may have later times, because the clock was wrong once. The node corrected its time before it
        # wrote the note.
        return Known(0, None)
    return Known(max(stored_us, note.time_us), None)


def find_problem(directory: Path) -> str | None:
    """Returns the mistake in the note; None if the note is right, or missing. A start passes over a wrong note."""
    try:
        parse_json(without_seal((directory / FILE_NAME).read_bytes()), Note)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"{directory / FILE_NAME}: {error}; the next start passes it over"
    return None


def write_note(directory: Path, offset_us: int) -> None:
    """Writes the note. A failure is only logged, because the node works without the note."""
    note = Note(boot_id().decode(), offset_us + int(since_boot_s() * 1_000_000), offset_us)
    beside = directory / f"{FILE_NAME}.new"
    try:
        with create_private(beside) as writing:
            writing.write(with_seal(msgspec.json.format(msgspec.json.encode(note), indent=1)))
        beside.replace(directory / FILE_NAME)
    except OSError as error:
        logger.warning("clock_not_noted", reason=str(error))


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
