"""Repairs a data directory whose write-ahead log is damaged, and says what can be saved and what cannot.

The log continues after a damaged frame, and each frame can be checked by itself. If the right bytes of every damaged
frame are known (`storage.wal.scan_machine.How`), the log is written anew and nothing is lost. If not, everything before
the damage is kept, and every whole message after it; an empty message takes the place of each lost one and says so.

One rename replaces the log, and the database file is not written to: an interrupted repair leaves the old log or the
new one. A copy of the old log stays in the directory.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from index_service.lease_storage import raise_fences
from index_service.storage import merge_positions
from storage.contract import Append
from storage.database import FILE_NAME
from storage.errors import StorageError, storage_error
from storage.leftovers import REPAIR_PREFIX, remove_scratch
from storage.lock import DirectoryLock
from storage.log import SqliteLog
from storage.migrate import migrate
from storage.page import find_damage
from storage.seal import stream_seal
from storage.session import SqliteSession
from storage.statements import SEALED_STREAM
from storage.verify import verify
from storage.wal.check import Examined, examined, install_log, keep_copy, prepare_log, wal_path
from storage.wal.rewrite import rebuild, rewrite
from storage.wal.scan_machine import Verdict
from storage.wal.survey import opened_with_log
from stream_service.stored import LOST_EXTRAS

CHUNK_BYTES: Final = 1024 * 1024
OTHERS_MAX: Final = 20
STREAM_COLUMNS: Final = "id, name, partition, first_index, next_index, size_bytes, created_us"


class RepairFailed(StorageError):
    """The directory cannot be repaired; the text says what to do."""


class Salvage(msgspec.Struct, frozen=True, kw_only=True):
    """Salvage: a partition that has messages behind a lost frame.

    These are the messages from first to end (exclusive). `saved` of them are whole; `lost` has the first and last index
    of each run of the others. stream_id, created_us: from the row of the stream behind the damage.
    """

    name: str
    partition: int
    stream_id: int
    created_us: int
    first: int
    end: int
    saved: int
    lost: tuple[tuple[int, int], ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan: what a repair would do.

    verdict: `storage.wal.scan_machine.Verdict`. how: for each damaged frame, the reason why its bytes are known.
    salvage: the streams with messages behind a lost frame. problem: why the log cannot be put back as a whole; None
    where it can. others: the first problems that `verify` finds besides.
    """

    verdict: str
    frames: int
    bad: int
    commits: int
    how: tuple[tuple[int, str], ...] = ()
    salvage: tuple[Salvage, ...] = ()
    problem: str | None = None
    others: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return self.verdict in (Verdict.DAMAGED.value, Verdict.COMPLETED.value)

    @property
    def lossless(self) -> bool:
        return self.problem is None


def plan_repair(directory: Path) -> Plan:
    """The plan of a repair. Changes nothing. Raises DatabaseInUse, RepairFailed and other StorageError."""
    with _owned(directory) as (database, rebooted), examined(database, rebooted=rebooted) as log:
        return _plan(database, log)


def repair(directory: Path, *, accept_loss: bool = False) -> tuple[Plan, Path | None]:
    """Repair the directory. Returns the plan that was carried out and the copy of the old log.

    accept_loss: go on where something is lost. Raises DatabaseInUse, RepairFailed and other StorageError.
    """
    with _owned(directory) as (database, rebooted):
        with examined(database, rebooted=rebooted) as log:
            plan = _plan(database, log)
            if log is None or not plan.needed:
                return plan, None
            if not plan.lossless and not accept_loss:
                raise RepairFailed(f"{plan.problem}; nothing was changed: say --accept-loss, or restore a backup")
            kept = keep_copy(database)
            if plan.lossless:
                install_log(database, rebuild(log.wal, log.found))
            else:
                _install_salvage(database, log, plan)
        prepare_log(database, rebooted=rebooted)
        return plan, kept


@contextmanager
def _owned(directory: Path) -> Iterator[tuple[Path, bool]]:
    """Hold the directory. Only its log is changed. It still counts as a directory whose node did not stop in good
    order."""
    database = directory / FILE_NAME
    if not database.exists():
        raise StorageError(f"there is no database in {directory}; say where the node keeps its data")
    lock = DirectoryLock(directory)
    try:
        remove_scratch(database)
        yield database, not lock.same_boot
    except (OSError, sqlite3.Error) as error:
        raise storage_error(error) from error
    finally:
        lock.release(clean=not lock.left_unclean)


def _plan(database: Path, log: Examined | None) -> Plan:
    if log is None:
        return Plan(verdict=Verdict.SOUND.value, frames=0, bad=0, commits=0)
    found = log.found
    plan = Plan(verdict=log.verdict.value, frames=found.frames, bad=found.bad, commits=len(found.commits))
    if not plan.needed:
        return plan
    plan = msgspec.structs.replace(plan, how=tuple((each.frame, each.how.value) for each in found.damaged))
    problem = None
    if found.lost:
        numbers = ", ".join(str(each.frame) for each in found.lost[:10])
        what = f"page in frame {numbers}" if len(found.lost) == 1 else f"pages in {len(found.lost)} frames ({numbers})"
        problem = f"the {what} of the log cannot be recovered"
    return msgspec.structs.replace(
        plan,
        problem=problem,
        salvage=tuple(_survey(database, log)),
        others=() if found.lost else _verify_with(database, log),
    )


def _verify_with(database: Path, log: Examined) -> tuple[str, ...]:
    """The problems that the database has although the log is repaired. Raises sqlite3.Error, StorageError."""
    with opened_with_log(database, rebuild(log.wal, log.found)) as connection:
        return verify(SqliteSession(connection, writes=False)).problems[:OTHERS_MAX]


def _known_log(log: Examined) -> Iterator[bytes]:
    """The log up to the last commit before the first loss; empty where that is its beginning."""
    corrected = {each.frame: each for each in log.found.damaged}
    return rewrite(log.wal, log.found.known, corrected) if log.found.known else iter(())


def _survey(database: Path, log: Examined) -> Iterator[Salvage]:
    """The messages behind the last known commit, for each stream. Raises RepairFailed where they cannot be read."""
    start = log.found.good if not log.found.lost else log.found.known
    corrected = {each.frame: each for each in log.found.damaged}
    base = rewrite(log.wal, start, corrected) if start else iter(())
    try:
        with opened_with_log(database, base) as connection:
            before = {row[0]: row for row in _stream_rows(connection)}
        with opened_with_log(database, rebuild(log.wal, log.found)) as connection:
            for stream_id, name, partition, first, end, created_us in _stream_rows(connection):
                end = max(end, _highest(connection, stream_id) + 1)
                known = before.get(stream_id)
                start_index = max(first, known[4] if known else 0)
                if start_index < end or known is None:
                    saved, lost = _check(connection, stream_id, start_index, end)
                    yield Salvage(
                        name=name,
                        partition=partition,
                        stream_id=stream_id,
                        created_us=created_us,
                        first=start_index,
                        end=end,
                        saved=saved,
                        lost=lost,
                    )
    except sqlite3.Error as error:
        raise RepairFailed(
            f"what stands behind the damage cannot be read: {error}; keep a copy of the data directory and restore "
            "a backup: indexes that were confirmed would else be given again"
        ) from error


def _stream_rows(connection: sqlite3.Connection) -> list[tuple[int, str, int, int, int, int]]:
    if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'streams'").fetchone()[0]:
        return []
    return connection.execute(
        "SELECT id, name, partition, first_index, next_index, created_us FROM streams ORDER BY name, partition"
    ).fetchall()


def _highest(connection: sqlite3.Connection, stream_id: int) -> int:
    """The highest stored index of a stream; -1 where there is none or it cannot be read."""
    try:
        row = connection.execute("SELECT max(idx) FROM messages WHERE stream_id = ?", (stream_id,)).fetchone()
    except sqlite3.Error:
        return -1
    return -1 if row[0] is None else int(row[0])


def _find_message(connection: sqlite3.Connection, stream_id: int, index: int) -> tuple[int, bytes, bytes, bytes] | None:
    """Time, key, headers and data of a message that is whole; None for one that is not."""
    try:
        row = connection.execute(
            "SELECT time_us, checksum, key, headers, data FROM messages WHERE stream_id = ? AND idx = ?",
            (stream_id, index),
        ).fetchone()
    except sqlite3.Error:
        return None
    if row is None or find_damage(stream_id, index, *row) is not None:
        return None
    return row[0], row[2], row[3], row[4]


def _check(
    connection: sqlite3.Connection, stream_id: int, first: int, end: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The number of whole messages, and the first and last index of each run of the others."""
    saved, lost = 0, list[tuple[int, int]]()
    for index in range(first, end):
        if _find_message(connection, stream_id, index) is not None:
            saved += 1
        elif lost and lost[-1][1] == index - 1:
            lost[-1] = (lost[-1][0], index)
        else:
            lost.append((index, index))
    return saved, tuple(lost)


def _install_salvage(database: Path, log: Examined, plan: Plan) -> None:
    """Make the new log beside the old one, on a copy of the database file, and put it in place:

    1. the log up to the last known commit;
    2. one transaction behind it: the messages that are whole, empty ones for those that are lost, so that no index is
       given twice, positions as far as they were saved, and fences above all that were given;
    3. the structure of the copy is sound.

    The file was not written to meanwhile, so the copy's log is a log of the file itself.
    """
    folder = Path(tempfile.mkdtemp(prefix=REPAIR_PREFIX, dir=database.parent))
    try:
        copy = folder / database.name
        shutil.copyfile(database, copy)
        with wal_path(copy).open("wb") as file:
            for piece in _known_log(log):
                file.write(piece)
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute("BEGIN IMMEDIATE")
            migrate(connection)
            with opened_with_log(database, rebuild(log.wal, log.found)) as behind:
                for stream in plan.salvage:
                    _put_back(connection, behind, stream)
                merge_positions(connection, behind)
            raise_fences(connection, time.time_ns() // 1_000)
            connection.execute("COMMIT")
            (structure,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if structure != "ok":
                raise RepairFailed(f"what is left is no sound database: {structure}; nothing was changed: use a backup")
            # While the connection is open nothing has been copied from the log into the file.
            with wal_path(copy).open("rb") as file:
                install_log(database, iter(lambda: file.read(CHUNK_BYTES), b""))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_back(connection: sqlite3.Connection, behind: sqlite3.Connection, stream: Salvage) -> None:
    """Write one stream up to its end behind the damage."""
    log = SqliteLog(connection)
    known = log.find_stream(stream.name, stream.partition)
    if known is not None and known.stream_id != stream.stream_id:
        # It was deleted and made anew behind the damage.
        log.delete_stream(known.stream_id)
        known = None
    if known is None:
        # Under the id that it had: the checksums of its messages begin with it.
        row = (stream.stream_id, stream.name, stream.partition, stream.first, stream.first, 0, stream.created_us)
        connection.execute(f"INSERT INTO streams ({STREAM_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        _seal(connection, stream.stream_id)
    elif known.next_index < stream.first:
        # What lay between was truncated behind the damage.
        connection.execute("DELETE FROM messages WHERE stream_id = ?", (stream.stream_id,))
        connection.execute(
            "UPDATE streams SET first_index = ?1, next_index = ?1, size_bytes = 0 WHERE id = ?2",
            (stream.first, stream.stream_id),
        )
        _seal(connection, stream.stream_id)
    before = _find_message(connection, stream.stream_id, stream.first - 1)
    time_us = stream.created_us if before is None else before[0]
    for index in range(stream.first, stream.end):
        # An empty message has the time of the one before it: times never fall along a stream.
        found = _find_message(behind, stream.stream_id, index)
        time_us, key, headers, data = found or (time_us, None, LOST_EXTRAS, b"")
        log.append([Append(stream.stream_id, index, time_us, [data], [key], [headers])])


def _seal(connection: sqlite3.Connection, stream_id: int) -> None:
    *columns, _ = connection.execute(SEALED_STREAM, (stream_id,)).fetchone()
    connection.execute("UPDATE streams SET seal = ? WHERE id = ?", (stream_seal(*columns), stream_id))
