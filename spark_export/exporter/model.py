"""The words of the exporter: what a node has, what a run takes, what a task wrote. They do nothing themselves.

Dataclasses of the standard library: some of them go to executors, where nothing of ours has to be installed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionEnd:
    """A stream-partition as the node describes it. made_us: when it was made; another one after a deletion.

    first_index, next_index: of the earliest stored message and of the one to come. size_bytes: of the stored data.
    """

    stream: str
    partition: int
    made_us: int
    first_index: int
    next_index: int
    size_bytes: int


@dataclass(frozen=True)
class Exported:
    """How far a stream-partition is in the table. era: how often it had been deleted and made anew before."""

    era: int
    made_us: int
    end_index: int


@dataclass(frozen=True)
class Range:
    """The indexes of one stream-partition that a run takes; `end_index` is exclusive.

    lost: how many indexes before `start_index` retention took before they could be exported.
    size_bytes: of the data, estimated from the partition's average.
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
    """A part of a range; what one task reads at one go. `end_index` is exclusive. made_us: of the stream meant."""

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
    """What one Spark task exports."""

    number: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class FileEntry:
    """A whole file of rows of one stream and date. date: of publishing, in UTC, as 2026-11-21.

    path: below the folder that the context names. sha256: of the file, in hex.
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
    """How far a run is; `run_machine` has what may follow what."""

    PLANNED = "planned"
    WRITING = "writing"
    WRITTEN = "written"
    PUBLISHED = "published"
    SAVED = "saved"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class Run:
    """One run as the ledger has it. Times in microseconds since 1970. error: why it was abandoned."""

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
