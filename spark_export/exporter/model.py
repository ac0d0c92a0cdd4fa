"""The data classes of the exporter: partitions, exported index ranges, tasks, files and runs.

They need only the standard library, because Spark sends some of them to executors, where this project can be missing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionEnd:
    """A partition of a stream, as the node describes it. `made_us` differs for an earlier stream of the same name."""

    stream: str
    partition: int
    made_us: int
    first_index: int
    next_index: int
    size_bytes: int


@dataclass(frozen=True)
class Exported:
    """The end of the exported messages of one partition; `end_index` is exclusive.

    era: how often the exporter has found the stream deleted and created again; 0 for never.
    """

    era: int
    made_us: int
    end_index: int


@dataclass(frozen=True)
class Range:
    """The indexes of one partition that one run exports; `end_index` is exclusive.

    era: how often the exporter has found the stream deleted and created again; 0 for never.
    made_us: when the stream was created, in microseconds since 1970.
    size_bytes: the size of the data, estimated from the partition's average.
    lost: the number of messages that retention removed before they could be exported; their indexes directly precede
        `start_index`.
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
class RangePart:
    """A part of an index range, read by one task in one pass. `end_index` is exclusive."""

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
class ExportTask:
    """A unit of parallel work in a run."""

    number: int
    pieces: tuple[RangePart, ...]


@dataclass(frozen=True)
class FileEntry:
    """A complete Parquet file with the rows of one stream and date.

    path: relative to a folder; the functions that return entries say which folder.
    date: the UTC date on which the messages were stored, such as 2026-11-21.
    data_bytes, file_bytes: the sizes of the messages' data and of the file.
    """

    path: str
    stream: str
    era: int
    date: str
    rows: int
    data_bytes: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True)
class RunFile:
    """A file of a run. The path of the entry is relative to the run's folder in the table."""

    run_id: int
    entry: FileEntry


@dataclass(frozen=True)
class Loss:
    """Exported indexes that a repair gave up, because their file was damaged and they are no longer on the node."""

    stream: str
    era: int
    partition: int
    start_index: int
    end_index: int


@dataclass(frozen=True)
class LeftOutStream:
    """A stream that an export leaves out. `reason` says what happened and what the user can do."""

    stream: str
    reason: str


class RunState(enum.StrEnum):
    """The state of a run of the exporter. `run_machine` explains the states and has the allowed transitions."""

    PLANNED = "planned"
    WRITING = "writing"
    WRITTEN = "written"
    PUBLISHED = "published"
    SAVED = "saved"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class Run:
    """One run of the exporter, as the ledger (the record of all runs) has it. Times are in microseconds since 1970.

    finished_us: None if the run has not ended.
    data_bytes: the size of the messages' data.
    file_bytes: the size of the files.
    lost: the number of messages that retention removed before they could be exported.
    error: the reason why the run was abandoned; None for other runs.
    """

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


@dataclass(frozen=True)
class Account:
    """The ledger's contents at one moment, for one generation (version) of the table.

    ranges: the exported index ranges of all runs in state published or saved, each with the run's id.
    files: the files of these runs.
    pending: the files of runs in state written; the table perhaps has these files already.
    unfinished: the ids of the runs that are neither saved nor abandoned.
    losses: exported rows that a repair gave up.
    rewrite: the generation that an unfinished compaction or repair makes, or None.
    """

    ranges: list[tuple[int, Range]]
    files: list[RunFile]
    pending: list[RunFile]
    unfinished: frozenset[int]
    losses: list[Loss]
    rewrite: int | None
