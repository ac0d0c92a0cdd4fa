"""The values of the exporter: the ends of partitions, the ranges of runs, and the files of tasks.

They are dataclasses of the standard library, since some of them are sent to executors, where this project need not be
installed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionEnd:
    """A partition of a stream, as the node describes it.

    made_us: the time of its creation; a stream that was deleted and made anew has another time. first_index: the index
    of the earliest stored message. next_index: the index of the next message to come. size_bytes: the size of the
    stored data.
    """

    stream: str
    partition: int
    made_us: int
    first_index: int
    next_index: int
    size_bytes: int


@dataclass(frozen=True)
class Exported:
    """The end of the exported messages of a partition. era: how often the stream was deleted and made anew before."""

    era: int
    made_us: int
    end_index: int


@dataclass(frozen=True)
class Range:
    """The indexes of one partition that a run exports; `end_index` is exclusive.

    lost: the number of messages before `start_index` that retention removed before they were exported. size_bytes: the
    size of the data, estimated from the partition's average.
    """

    stream: str
    partition: int
    era: int
    made_us: int
    start_index: int
    end_index: int
    size_bytes: int
    lost: int = 0

    @property
    def rows(self) -> int:
        return self.end_index - self.start_index


@dataclass(frozen=True)
class Piece:
    """A part of a range, which one task reads in one pass. `end_index` is exclusive. made_us: the time of the stream's
    creation."""

    stream: str
    era: int
    made_us: int
    partition: int
    start_index: int
    end_index: int

    @property
    def rows(self) -> int:
        return self.end_index - self.start_index


@dataclass(frozen=True)
class Task:
    """The pieces that one task exports."""

    number: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class FileEntry:
    """A complete file with rows of one stream and date.

    date: the date on which the messages were stored, in UTC, such as 2026-11-21. path: relative to the folder that the
    context names. sha256: the hash of the file, in hexadecimal.
    """

    path: str
    stream: str
    era: int
    date: str
    rows: int
    data_bytes: int
    file_bytes: int
    sha256: str


class RunState(enum.StrEnum):
    """The state of a run. `run_machine` has the allowed transitions."""

    PLANNED = "planned"
    WRITING = "writing"
    WRITTEN = "written"
    PUBLISHED = "published"
    SAVED = "saved"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class Run:
    """One run in the ledger. Times are in microseconds since 1970. error: the reason why the run was abandoned."""

    run_id: int
    state: RunState
    started_us: int
    finished_us: int | None
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    lost: int
    error: str | None
