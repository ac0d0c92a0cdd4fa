"""Verification: compares the rows of a table with what its log says was exported, and with the node on request.

An exported row that is missing was removed by somebody: by another program's commit, or because its key was forgotten.
The result only notes it. A row that is there twice, a damaged or missing file, and a row that differs from the node's
message are problems. Verification repairs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_export.source.plan import StreamEnds
from spark_export.tables.files import Place, forget, open_checked, split_places
from spark_export.tables.filesystem import open_filesystem
from spark_export.tables.log import UPKEEP, TableFile, TableLog
from spark_export.tables.model import Commit, IndexRange, TablePosition, TableState

PROBLEMS_MAX = 100
"""The largest number of described problems; further ones are only counted."""
PIECE_ROWS = 65_536
"""The number of indexes whose rows are compared with the node's messages by one sum."""
CREATED = "CREATE TABLE"
"""Delta's name for the first commit, which is not reported as a change by others."""
NAMES = ("stream", "partition", "era", "index", "timestamp", "key", "data")
Interval: TypeAlias = tuple[int, int]
"""Consecutive indexes: the first one, and the one after the last. Lists of intervals stand for sets of indexes."""


@dataclass(frozen=True)
class VerificationResult:
    """The result of a verification. rows, files, file_bytes: what is in the table.

    lost: the messages that retention removed before they could be exported, as far as the log still says.
    removed: the exported rows that others have removed from the table. notes: what others did to the table.
    compared: the rows that were compared with the node's messages; None without a node.
    problems: the first PROBLEMS_MAX of `problem_count` problems.
    """

    runs: int
    partitions: int
    rows: int
    files: int
    file_bytes: int
    lost: int
    removed: int
    compared: int | None
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    problem_count: int

    @property
    def sound(self) -> bool:
        return self.problem_count == 0


def verify(
    log: TableLog,
    *,
    ends: Iterable[StreamEnds] = (),
    read: Callable[[IndexRange], Iterable[pa.RecordBatch]] | None = None,
    checksums: bool = True,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> VerificationResult:
    """Verifies a table, while other programs can change it. Raises ExportError if it cannot be read.

    ends, read: the partitions of the node and a function that reads their messages, or None to ask no node.
    checksums: whether to read all bytes of all files, and to compare the checksums of their pages and footers.
    """
    # The state is read first, so that the table has all rows of this state. Later commits of exporters may add rows.
    state, commits, files = log.load(), log.commits(), log.list_files()
    problems = [] if not checksums else [*_check_files(log, files, on_file)]
    rows = TableRows(state, ends if read is not None else ())
    # The rows of damaged files would say nothing about the others.
    if not problems:
        for batch in log.read(NAMES if read is not None or state.forgotten else NAMES[:4]):
            rows.add(batch)
    # A row that is there twice is a problem, whoever wrote it.
    others = Counter(each for each in commits if isinstance(each, str) and each not in (CREATED, UPKEEP))
    notes, removed = list[str](), 0
    if others:
        notes.append("other commits: " + ", ".join(f"{count} {name}" for name, count in sorted(others.items())))
    for place in sorted(rows.there):
        if repeated := covered(rows.there[place], 2):
            problems.append(f"{_name(place)}: {total(repeated)} indexes are there twice, {_first(repeated)}")
    # Compare the indexes with those that the log says were exported.
    if not problems:
        after = log.load().positions
        for of, position in sorted(state.positions.items()):
            there = covered(rows.there.get(of[:3], []))
            # The log names the ranges of the commits that it still has. All rows before these ranges count as exported.
            ranges = [part for each in commits if isinstance(each, Commit) for part in each.ranges if part.of == of]
            first = min((each.begin for each in ranges), default=position.end)
            known = [*((each.begin, each.end) for each in ranges), *((begin, min(end, first)) for begin, end in there)]
            known = covered((begin, min(end, position.end)) for begin, end in known)
            missing, beyond = covered(known, without=there), covered(there, without=known)
            removed += total(missing)
            if missing:
                notes.append(f"{_name(of[:3])}: {total(missing)} exported rows were removed, {_first(missing)}")
            # Others may have added these rows. Rows of a run that was committed meanwhile are left out.
            if beyond := covered(beyond, without=[(position.end, after.get(of, position).end)]):
                notes.append(f"{_name(of[:3])}: {total(beyond)} rows are of no run, {_first(beyond)}")
    if rows.unforgotten:
        problems.append(
            f"{rows.unforgotten} rows are there that were forgotten: somebody restored them; `stream-node export "
            "forget` erases them again"
        )
    compared = None
    if read is not None and not problems:
        compared, different = rows.compare(read)
        problems += different
    own = [each for each in commits if isinstance(each, Commit)]
    return VerificationResult(
        runs=state.run,
        partitions=len({of.place for of in state.positions}),
        rows=rows.count,
        files=len(files),
        file_bytes=sum(each.file_bytes for each in files),
        lost=sum(part.lost for each in own for part in each.ranges),
        removed=removed,
        compared=compared,
        notes=tuple(notes),
        problems=tuple(problems[:PROBLEMS_MAX]),
        problem_count=len(problems),
    )


def _check_files(log: TableLog, files: Sequence[TableFile], on_file: Callable[[int, int], None]) -> Iterator[str]:
    """Reads every page of every file, and yields the problems. Only files of an exporter are sure to have checksums."""
    for number, each in enumerate(files):
        filesystem, path = open_filesystem(each.address, log.options)
        try:
            size = filesystem.get_file_info(path).size
            if size is not None and size != each.file_bytes:
                yield f"{each.address} has {size} bytes, {each.file_bytes} were written"
                continue
            with filesystem.open_input_file(path) as opened:
                rows = sum(batch.num_rows for batch in open_checked(opened).iter_batches())
            if each.rows not in (None, rows):
                yield f"{each.address} has {rows} rows, {each.rows} were written"
        except FileNotFoundError:
            yield f"{each.address} is missing"
        except (OSError, pa.ArrowException) as error:
            yield f"{each.address} cannot be read: {' '.join(str(error).split())}"
        on_file(number + 1, len(files))


class TableRows:
    """The rows of a table: the intervals of their indexes (`there`), and a sum of the contents for each piece of
    PIECE_ROWS indexes.

    ends: the partitions of the node whose contents are compared.
    """

    def __init__(self, state: TableState, ends: Iterable[StreamEnds]) -> None:
        self.there: dict[Place, list[Interval]] = defaultdict(list)
        self.count = 0
        self.unforgotten = 0
        self._forgotten = state.forgotten
        self._sums: dict[tuple[Place, int], int] = defaultdict(int)
        self._compared: dict[Place, IndexRange] = {}
        latest = state.latest()
        for end in ends:
            of, position = latest.get((end.stream, end.partition), (None, TablePosition(0)))
            if of is not None and of.created_us == end.created_us:
                # A piece whose first messages the node has deleted cannot be compared.
                begin = -(-end.first_index // PIECE_ROWS) * PIECE_ROWS
                self._compared[of[:3]] = IndexRange(of, begin, max(begin, min(position.end, end.next_index)))

    def add(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        for place, part in split_places(batch):
            index = part.column("index")
            self.there[place] += batch_intervals(index)
            forgotten = self._forgotten.get(place[0])
            # Without these columns, a table of the user's own does not say which rows were forgotten.
            if forgotten is not None and {"timestamp", "key"} <= {*part.schema.names}:
                self.unforgotten += part.num_rows - forget(part, forgotten).num_rows
            if (wanted := self._compared.get(place)) is not None:
                # An exporter may have added rows since the ends and the positions were read.
                is_wanted = pc.and_(pc.greater_equal(index, wanted.begin), pc.less(index, wanted.end))
                for number, value in _contents(part.filter(is_wanted)):
                    self._sums[place, number // PIECE_ROWS] += value

    def compare(self, read: Callable[[IndexRange], Iterable[pa.RecordBatch]]) -> tuple[int, list[str]]:
        """Returns how many rows were compared with the messages of the node, and the differences."""
        count, different = 0, []
        for place, wanted in self._compared.items():
            there = covered(self.there.get(place, []))
            begins, sums = [begin for begin, _ in there], defaultdict[int, int](int)
            for batch in read(wanted) if wanted.rows else ():
                for index, value in _contents(batch):
                    # Others may have removed the row from the table.
                    before = bisect_right(begins, index)
                    if before and index < there[before - 1][1]:
                        sums[index // PIECE_ROWS] += value
                        count += 1
            for piece in range(wanted.begin // PIECE_ROWS, -(-wanted.end // PIECE_ROWS)):
                if sums[piece] != self._sums[place, piece]:
                    different.append(
                        f"{_name(place)}: the rows from {piece * PIECE_ROWS} to {(piece + 1) * PIECE_ROWS - 1} are not "
                        "the messages of the node"
                    )
        return count, different


def _contents(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Yields the index of each row and a number that stands for its contents."""
    columns = [rows.column("index"), rows.column("timestamp").cast(pa.int64()), rows.column("key"), rows.column("data")]
    for index, time, key, data in zip(*(each.to_pylist() for each in columns), strict=True):
        said = b"%d %d %d " % (index, time, -1 if key is None else len(key))
        yield index, int.from_bytes(blake2b(said + (key or b"") + data, digest_size=16).digest())


def batch_intervals(index: pa.Array) -> list[Interval]:
    """Returns the indexes of a batch as intervals of consecutive indexes."""
    if not len(index):
        return []
    jumps = pc.not_equal(pc.pairwise_diff(index), 1).fill_null(False)
    starts = [0, *pc.indices_nonzero(jumps).to_pylist()]
    ends = [*starts[1:], len(index)]
    return [(index[start].as_py(), index[end - 1].as_py() + 1) for start, end in zip(starts, ends, strict=True)]


def covered(intervals: Iterable[Interval], times: int = 1, *, without: Iterable[Interval] = ()) -> list[Interval]:
    """Returns the indexes that are in at least `times` of the intervals, as ordered intervals that do not touch.

    Each interval of `without` that has an index reduces the count of the index by one.
    """
    changes = [each for begin, end in intervals if begin < end for each in ((begin, 1), (end, -1))]
    changes += [each for begin, end in without if begin < end for each in ((begin, -1), (end, 1))]
    found, count, begin = list[Interval](), 0, 0
    # Of changes at one index, the beginnings come first, so that intervals that touch are joined.
    for index, change in sorted(changes, key=lambda each: (each[0], -each[1])):
        before, count = count, count + change
        if before < times <= count:
            begin = index
        elif count < times <= before and begin < index:
            found.append((begin, index))
    return found


def total(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _name(place: Sequence[str | int]) -> str:
    stream, partition, era = place
    return f"{stream}/{partition}" + (f" (made anew {era} times)" if era else "")


def _first(intervals: Sequence[Interval]) -> str:
    return f"the first from {intervals[0][0]} to {intervals[0][1] - 1}"
