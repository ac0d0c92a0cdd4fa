"""The values that the plan of an export, its tasks and the log of its table exchange: index ranges, positions, files.

The data classes need only the standard library, because Spark sends them to executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from spark_export.tables.errors import PositionsMoved, RangeIncomplete

if TYPE_CHECKING:
    import pyarrow as pa

UNITS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
"""The parts of a time by which a table can be partitioned, the longest first, and the formats of their values."""
NO_NAME = "__HIVE_DEFAULT_PARTITION__"
"""The value that Hive writes in a folder's name for a value that is null or empty."""
NAME_BYTES_MAX = 255
"""The longest name of a folder, in bytes, on common file systems."""


class Incarnation(NamedTuple):
    """One partition of one stream, from its creation to its deletion. A stream of the same name that is created later
    is another incarnation, whose indexes begin at 0 again.

    era: the number of earlier incarnations in the table. created_us: when the stream was created, in microseconds.
    """

    stream: str
    partition: int
    era: int
    created_us: int

    @property
    def place(self) -> tuple[str, int]:
        return self.stream, self.partition


@dataclass(frozen=True)
class TablePosition:
    """The position up to which the table has one incarnation: `end` is the next index to export.

    last_us: when the node stored the last exported message, in microseconds; 0 if unknown. It shows whether a node that
        was restored from a backup has another message at this index.
    """

    end: int
    last_us: int = 0


Positions = Mapping[Incarnation, TablePosition]


@dataclass(frozen=True)
class IndexRange:
    """The indexes from `begin` to `end` (exclusive) of one incarnation, which a run or a task exports.

    size_bytes: the estimated size of the messages. last_us: as in TablePosition; 0 before the range was read.
    lost: the number of messages directly before `begin` that retention removed before they could be exported.
    """

    of: Incarnation
    begin: int
    end: int
    size_bytes: int = 0
    lost: int = 0
    last_us: int = 0

    @property
    def rows(self) -> int:
        return self.end - self.begin

    def cut(self, begin: int, end: int) -> IndexRange:
        """Returns the part of the range from `begin` to `end`. Only the part at its beginning records the loss."""
        size = self.size_bytes * (end - begin) // max(1, self.rows)
        return replace(self, begin=begin, end=end, size_bytes=size, lost=self.lost if begin == self.begin else 0)


@dataclass(frozen=True)
class DataFile:
    """A complete Parquet file that a task has written, and that no reader sees before it is in the table's log.

    path: relative to `FilesPlan.root`. partition: the values of the columns by which the table is partitioned.
    data_bytes, file_bytes: the sizes of the messages' data and of the file. stats: the JSON of Delta's log.
    """

    path: str
    stream: str
    era: int
    partition: Mapping[str, str]
    rows: int
    data_bytes: int
    file_bytes: int
    stats: str = ""


@dataclass(frozen=True)
class PartitionField:
    """A column or transform by which a table is partitioned, with its name in the table's log and in names of folders.

    source: one of `stream`, `partition`, `era` and `timestamp`. unit: for `timestamp` one of UNITS, otherwise empty.
    """

    name: str
    source: str
    unit: str = ""


@dataclass(frozen=True)
class FilesPlan:
    """How the tasks of a run write files. Spark sends it to executors.

    root: the folder of the files: a path that each executor has, or an address on a store.
    options: the options of the store, see `spark_export.tables.address`. schema: the columns in the files.
    partition_by: how the table is partitioned. folders: whether a file's path has a folder NAME=VALUE for each.
    convert: adds columns to a batch of rows, such as decoded ones. forgotten, version: those of `TableState`.
    plan_id: an id that no other plan has. The table's log has it with the run, so that a run whose commit was not
        answered can be told from a run of another exporter with the same messages.
    """

    root: str
    schema: pa.Schema
    partition_by: Sequence[PartitionField]
    options: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    forgotten: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    folders: bool = True
    version: int = 0
    plan_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class LeftOutStream:
    """A stream that an export leaves out. `reason` says what happened and what the user can do."""

    stream: str
    reason: str


@dataclass(frozen=True)
class Written:
    """What one task, or all tasks of a run, have written. Pickling gives the same value, so executors can return it.

    left_out: the streams that could not be read completely. `files` and `ranges` have nothing of these streams.
    """

    files: Sequence[DataFile] = ()
    ranges: Sequence[IndexRange] = ()
    left_out: Sequence[LeftOutStream] = ()

    @classmethod
    def together(cls, parts: Sequence[Written]) -> Written:
        left_out = {each.stream: each for part in parts for each in part.left_out}
        return cls(
            [each for part in parts for each in part.files],
            [each for part in parts for each in part.ranges if each.of.stream not in left_out],
            list(left_out.values()),
        )


@dataclass(frozen=True)
class Commit:
    """A commit of an export in a table. run: the number of the run, counted from 1 in each table. plan_id: that of its
    `FilesPlan`; empty if an earlier version made the commit."""

    run: int
    ranges: Sequence[IndexRange]
    plan_id: str = ""


@dataclass(frozen=True)
class TableState:
    """The state of an export by the table's log, at one moment.

    version: the number of the latest commit, by any program. run: the number of the latest run, 0 before the first one.
    forgotten: the messages that must not be in the table any more: for each stream, the SHA-256 of the key in hex (an
        empty text stands for every message), and the time in microseconds until which they are forgotten.
    """

    version: int
    run: int = 0
    positions: Positions = field(default_factory=dict)
    forgotten: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def latest(self) -> dict[tuple[str, int], tuple[Incarnation, TablePosition]]:
        """Returns the latest incarnation of each partition, and its position."""
        return {of.place: (of, position) for of, position in sorted(self.positions.items())}

    def forget(self, stream: str, key: bytes | None, until_us: int) -> TableState:
        keys = {**self.forgotten.get(stream, {}), key_digest(key): until_us}
        return replace(self, forgotten={**self.forgotten, stream: keys})

    def after(self, ranges: Iterable[IndexRange]) -> TableState:
        moved = {each.of: TablePosition(each.end, each.last_us) for each in ranges}
        return replace(self, version=self.version + 1, run=self.run + 1, positions={**self.positions, **moved})


def key_digest(key: bytes | None) -> str:
    """Returns the name of a key in `TableState.forgotten`; None stands for every message."""
    return "" if key is None else sha256(key).hexdigest()


def join(ranges: Iterable[IndexRange]) -> list[IndexRange]:
    """Returns one range for each incarnation. Raises RangeIncomplete if ranges overlap or leave a gap between them."""
    joined: dict[Incarnation, IndexRange] = {}
    for each in sorted(ranges, key=lambda one: (one.of, one.begin)):
        if (before := joined.get(each.of)) is not None:
            if before.end != each.begin - each.lost:
                raise RangeIncomplete(
                    f"{each.of.stream}/{each.of.partition}: the tasks exported up to {before.end}, and then from "
                    f"{each.begin}; nothing is published"
                )
            size_bytes, lost = before.size_bytes + each.size_bytes, before.lost + each.lost
            each = replace(each, begin=before.begin, size_bytes=size_bytes, lost=lost)
        joined[each.of] = each
    return list(joined.values())


def check_next(state: TableState, ranges: Iterable[IndexRange]) -> None:
    """Raises PositionsMoved unless all ranges follow the positions of the table, which another exporter may have
    moved."""
    latest = state.latest()
    for each in ranges:
        of, position = latest.get(each.of.place, (None, TablePosition(0)))
        is_next = position.end == each.begin - each.lost if of == each.of else each.of.era == (of.era + 1 if of else 0)
        if not is_next:
            raise PositionsMoved(
                f"another exporter has exported messages of {each.of.stream}/{each.of.partition} meanwhile, and the "
                f"table has them up to {position.end}; nothing of this run ({each.begin} to {each.end}) is in the "
                "table, and the next run continues behind the table's position"
            )


def hive_folder(partition: Mapping[str, str]) -> str:
    """Returns the folders `stream=…/date=…/`, escaped as in Hive and Spark. Only ASCII is escaped, because Spark
    decodes each escaped byte as one character."""
    escaped = {
        name: "".join(each if ord(each) > 127 else quote(each, safe=" ,;@&+$!()~") for each in value)
        for name, value in partition.items()
    }
    return "".join(f"{name}={value or NO_NAME}/" for name, value in escaped.items())
