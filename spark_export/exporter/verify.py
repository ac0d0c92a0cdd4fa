"""Verification: checks that the table has every exported index exactly once. It needs neither the node nor Spark.

Verification compares the ledger, the record of all runs, with the files. Of each file, it checks the size, the SHA-256
over all bytes, and the columns `partition` and `index`. Verification repairs nothing; `run` and `compact` recover from
a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_export.exporter.intervals import Interval, compare, merge, subtract, total
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import Account, Loss, Range, RunFile
from spark_export.exporter.tables.layout import Layout
from spark_export.exporter.tables.table import Table, make_table
from spark_export.store.paths import FilePath

CHUNK_BYTES = 1024 * 1024
PROBLEMS_MAX = 100
"""The largest number of described problems; further ones are only counted."""


@dataclass(frozen=True)
class VerificationResult:
    """The result of a verification.

    lost: the messages that retention removed before they could be exported, and the rows in `given_up`.
    given_up: the exported rows that repairs gave up: their file was damaged, and the node no longer had them.
    problems: descriptions of the first PROBLEMS_MAX of `problem_count` problems.
    """

    runs: int
    partitions: int
    rows: int
    files: int
    file_bytes: int
    lost: int
    given_up: int
    problems: tuple[str, ...]
    problem_count: int

    @property
    def sound(self) -> bool:
        return self.problem_count == 0


async def verify(
    layout: Layout,
    ledger: Ledger,
    *,
    checksums: bool = True,
    on_file: Callable[[int, int], None] | None = None,
) -> VerificationResult:
    """Verifies the whole export, as the ledger describes it at one moment. An exporter can work at the same time.

    checksums: whether to check the SHA-256 of each file, which reads all bytes.
    """
    table = make_table(layout, ledger.identity.format, ledger.identity.table_id)
    generation, listed, staged, account = await _look(layout, table, ledger)
    files = account.files
    # Files of a run in state written may be in the table already, since table and ledger cannot change in one step.
    accounted = {table.locate(file).resolve() for file in (*files, *account.pending)}
    problems: list[str] = []
    there: dict[tuple[str, int, int], list[Interval]] = defaultdict(list)
    whole: set[FilePath] = set()
    for number, file in enumerate(files):
        found = await asyncio.to_thread(check_file, table.locate(file), file, there, checksums)
        problems += found
        if not found:
            whole.add(table.locate(file).resolve())
        if on_file is not None:
            on_file(number + 1, len(files))
    problems += _check_indexes([each for _, each in account.ranges], there, account.losses)
    problems += [f"{path} is in the table, and no run wrote it" for path in sorted(listed - accounted)]
    problems += await _find_unlisted(table, whole - listed, generation)
    at_work = {layout.run_staging(run_id) for run_id in account.unfinished}
    if account.rewrite is not None:
        at_work.add(layout.rewrite_staging(account.rewrite))
    problems += _find_orphans(path for path in staged if not at_work & set(path.parents))
    given_up = sum(each.end_index - each.start_index for each in account.losses)
    return VerificationResult(
        runs=len({run_id for run_id, _ in account.ranges}),
        partitions=len({(each.stream, each.partition) for _, each in account.ranges}),
        rows=sum(file.entry.rows for file in files),
        files=len(files),
        file_bytes=sum(file.entry.file_bytes for file in files),
        lost=sum(each.lost for _, each in account.ranges) + given_up,
        given_up=given_up,
        problems=tuple(problems[:PROBLEMS_MAX]),
        problem_count=len(problems),
    )


async def _find_unlisted(table: Table, lacking: set[FilePath], generation: int) -> list[str]:
    """Returns a problem for each undamaged file that the table does not list, unless the generation has changed."""
    if not lacking:
        return []
    # The ledger was read after the list, so it may know files of a run that was published between the two.
    again = await asyncio.to_thread(lambda: {path.resolve() for path in table.list_files()})
    if await asyncio.to_thread(lambda: table.generation) != generation:
        return []
    return [
        f"{path} is a file of a published run, and the table does not list it: its rows were "
        "deleted, or the table was put back to an earlier state"
        for path in sorted(lacking - again)
    ]


async def _look(layout: Layout, table: Table, ledger: Ledger) -> tuple[int, set[FilePath], list[Path], Account]:
    """Returns the table's generation, the files that readers read, the staged files, and the ledger's contents.

    Each file is in the ledger before it is in the table. So the ledger is read last, and then knows all listed files.
    Everything is read again if a compaction replaces the table's files meanwhile.
    """
    while True:
        generation = await asyncio.to_thread(lambda: table.generation)
        staged = await asyncio.to_thread(_list_files, layout.staging)
        listed = await asyncio.to_thread(lambda: {path.resolve() for path in table.list_files()})
        account = await ledger.load_account(generation)
        if await asyncio.to_thread(lambda: table.generation) == generation:
            return generation, listed, staged, account


def _list_files(folder: Path) -> list[Path]:
    return sorted(Path(root, name) for root, _, names in os.walk(folder) for name in names)


def check_file(
    path: FilePath, file: RunFile, there: dict[tuple[str, int, int], list[Interval]], checksums: bool
) -> list[str]:
    """Returns descriptions of all problems of one file. Adds its indexes to `there`."""
    return list(_problems_of(path, file, there, checksums))


def _problems_of(
    path: FilePath, file: RunFile, there: dict[tuple[str, int, int], list[Interval]], checksums: bool
) -> Iterator[str]:
    entry, name = file.entry, f"run {file.run_id}: {path.name}"
    try:
        size = path.stat().st_size
        if size != entry.file_bytes:
            yield f"{name} has {size} bytes, {entry.file_bytes} were written"
            return
        if checksums and _sha256(path) != entry.sha256:
            yield f"{name}: the SHA-256 is not that of what was written"
            return
        rows = 0
        for partition, interval in read_intervals(path):
            there[entry.stream, entry.era, partition].append(interval)
            rows += interval[1] - interval[0]
        if rows != entry.rows:
            yield f"{name} has {rows} rows, {entry.rows} were written"
    except FileNotFoundError:
        yield f"{name} is missing: {path}"
    except (OSError, pa.ArrowException) as error:
        yield f"{name} cannot be read: {error}"


def read_intervals(path: FilePath) -> Iterator[tuple[int, Interval]]:
    with path.open("rb") as opened, pq.ParquetFile(opened) as file:
        for batch in file.iter_batches(batch_size=256 * 1024, columns=["partition", "index"]):
            yield from batch_intervals(batch)


def batch_intervals(batch: pa.RecordBatch) -> Iterator[tuple[int, Interval]]:
    """Yields the indexes in a batch as pairs of a partition and an interval of consecutive indexes."""
    partition, index = batch.column("partition"), batch.column("index")
    if not batch.num_rows:
        return
    jumps = pc.or_(
        pc.not_equal(pc.pairwise_diff(index), 1), pc.not_equal(pc.pairwise_diff(partition.cast(pa.int64())), 0)
    )
    starts = [0, *pc.indices_nonzero(jumps.fill_null(False)).to_pylist()]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield partition[start].as_py(), (index[start].as_py(), index[end - 1].as_py() + 1)


def _check_indexes(
    ranges: Sequence[Range], there: dict[tuple[str, int, int], list[Interval]], losses: Sequence[Loss]
) -> Iterator[str]:
    """Yields a description of each difference between the exported indexes and those in the files.

    The files must have each exported index exactly once, except those in `losses`, and no other index. Each range must
    begin where the partition's previous range ended, or later by as many indexes as retention removed.
    """
    wanted: dict[tuple[str, int, int], list[Interval]] = defaultdict(list)
    for each in ranges:
        known = wanted[each.stream, each.era, each.partition]
        if known and known[-1][1] + each.lost != each.start_index:
            yield (
                f"{each.stream}/{each.partition}: a run took {each.start_index} on, the one before it ended at "
                f"{known[-1][1]}"
            )
        known.append((each.start_index, each.end_index))
    for place in sorted(wanted.keys() | there.keys()):
        stream, era, partition = place
        name = f"{stream}/{partition}" + (f" (made anew {era} times)" if era else "")
        given_up = merge((each.start_index, each.end_index) for each in losses if _place(each) == place)[0]
        found = compare(subtract(merge(wanted[place])[0], given_up), there[place])
        for what, intervals in zip(("missing", "not exported by any run", "there twice"), found, strict=True):
            if intervals:
                first = intervals[0]
                yield f"{name}: {total(intervals)} indexes are {what}, the first from {first[0]} to {first[1] - 1}"


def _place(loss: Loss) -> tuple[str, int, int]:
    return loss.stream, loss.era, loss.partition


def _find_orphans(staged: Iterable[Path]) -> Iterator[str]:
    """Yields a problem for each file that an ended run left in the staging folder."""
    for path in staged:
        if path.exists():
            yield f"{path} is an orphan; the next run removes it"


def _sha256(path: FilePath) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
