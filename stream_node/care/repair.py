"""Repairs a data directory whose write-ahead log is damaged, and reports which messages are recovered or lost.

The log is a sequence of frames. A frame is a changed page of the database, with a checksum, and can be damaged alone.
If the right bytes of all damaged frames can be found (`stream_storage.sqlite.wal.scan_machine.How`), the log is written
again and nothing is lost. If not, the repair keeps all messages before the damage and all undamaged messages after it,
and puts an empty message with the header node/lost/1 in the place of each lost message.

One rename replaces the log, and the database file is not changed. So an interrupted repair leaves either the old log or
the new log. A copy of the old log stays in the directory.
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
from stream_service.stored import LOST_EXTRAS
from stream_storage.contract import Append
from stream_storage.directory_lock import DirectoryLock
from stream_storage.errors import StorageError, no_database
from stream_storage.history import begin_entries
from stream_storage.seal import stream_seal
from stream_storage.sqlite.database import FILE_NAME
from stream_storage.sqlite.errors import mapped
from stream_storage.sqlite.leftovers import REPAIR_PREFIX, remove_scratch
from stream_storage.sqlite.log import SqliteLog
from stream_storage.sqlite.migrate import migrate
from stream_storage.sqlite.page import find_damage
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import find_broken, has_seal, verify
from stream_storage.sqlite.wal import check
from stream_storage.sqlite.wal.scan_machine import WalState
from stream_storage.stream_rows import SEALED_STREAM

CHUNK_BYTES: Final = 1024 * 1024
OTHERS_MAX: Final = 20
STREAM_COLUMNS: Final = "id, name, partition, first_index, next_index, size_bytes, created_us"


class RepairFailed(StorageError):
    """The directory cannot be repaired. The text says what to do."""


class Salvage(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one partition after the damage in the log: the indexes from `first` to before `end`."""

    name: str
    partition: int
    stream_id: int
    created_us: int
    first: int
    end: int
    saved: int  # the number of undamaged messages among them
    lost: tuple[tuple[int, int], ...]  # the first and last index of each run of lost messages


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The damage of a log, and the messages that a repair recovers or loses."""

    verdict: str  # a `stream_storage.sqlite.wal.scan_machine.WalState`
    frames: int  # the number of frames of the log
    bad: int  # the first damaged frame
    commits: int  # the number of commits after the damage
    # For each damaged frame, its number and how its bytes were found (`stream_storage.sqlite.wal.scan_machine.How`).
    how: tuple[tuple[int, str], ...] = ()
    salvage: tuple[Salvage, ...] = ()  # the partitions created or with messages after the damage
    problem: str | None = None  # why the log cannot be recovered completely
    others: tuple[str, ...] = ()  # further problems that `verify` finds

    @property
    def needed(self) -> bool:
        return self.verdict in (WalState.DAMAGED.value, WalState.COMPLETED.value)

    @property
    def lossless(self) -> bool:
        return self.problem is None


def plan_repair(directory: Path) -> RepairPlan:
    """Returns the plan of a repair, and changes nothing. Raises DatabaseInUse, RepairFailed and other StorageErrors."""
    with _locked_directory(directory) as (database, rebooted), check.examined(database, rebooted=rebooted) as log:
        return _plan(database, log)


def repair(directory: Path, *, accept_loss: bool = False) -> tuple[RepairPlan, Path | None]:
    """Repairs the directory if its log is damaged. Returns the plan, and the path of the copy of the old log, if any.
    accept_loss: whether messages may be lost. Raises DatabaseInUse, RepairFailed and other StorageErrors."""
    with _locked_directory(directory, changes=True) as (database, rebooted):
        with check.examined(database, rebooted=rebooted) as log:
            plan = _plan(database, log)
            if log is None or not plan.needed:
                return plan, None
            if not plan.lossless and not accept_loss:
                raise RepairFailed(f"{plan.problem}; nothing was changed: say --accept-loss, or restore a backup")
            kept = check.keep_copy(database)
            if plan.lossless:
                check.install_log(database, check.rebuild(log.wal, log.found))
            else:
                _install_salvage(database, log, plan)
        check.prepare_log(database, rebooted=rebooted)
        return plan, kept


@contextmanager
def _locked_directory(directory: Path, *, changes: bool = False) -> Iterator[tuple[Path, bool]]:
    """Locks the data directory while the block runs. Raises StorageError if there is no database.
    Yields the path of the database, and whether the machine may have restarted since the directory was last used.
    If the last node did not stop cleanly, its lock file still says so after the block.
    changes: whether the block may change the log; the next start then checks the database."""
    database = directory / FILE_NAME
    if not database.exists():
        raise StorageError(no_database(directory))
    lock = DirectoryLock(directory)
    try:
        with mapped():
            remove_scratch(database)
            yield database, not lock.same_boot
    finally:
        lock.release(clean=not lock.left_unclean, log_kept=lock.log_kept and not changes)


def _plan(database: Path, log: check.CheckedWal | None) -> RepairPlan:
    if log is None:
        return RepairPlan(verdict=WalState.SOUND.value, frames=0, bad=0, commits=0)
    found = log.found
    plan = RepairPlan(verdict=log.verdict.value, frames=found.frames, bad=found.bad, commits=len(found.commits))
    if not plan.needed:
        return plan
    salvage, problem, others = tuple(_survey(database, log)), None, tuple[str, ...]()
    if found.lost:
        numbers = ", ".join(str(each.frame) for each in found.lost[:10])
        what = f"page in frame {numbers}" if len(found.lost) == 1 else f"pages in {len(found.lost)} frames ({numbers})"
        problem = f"the {what} of the log cannot be recovered"
    else:
        # Only a log without lost frames can be verified as a whole.
        with check.opened_with_log(database, check.rebuild(log.wal, log.found)) as connection:
            others = verify(SqliteSession(connection, writes=False)).problems[:OTHERS_MAX]
    # The plan names how each damaged frame was recovered, also if none is lost.
    how = tuple((each.frame, each.how.value) for each in found.damaged)
    return msgspec.structs.replace(plan, how=how, problem=problem, salvage=salvage, others=others)


def _log_until(log: check.CheckedWal, frame: int) -> Iterator[bytes]:
    """Yields the log up to this frame, with the frames before it corrected."""
    return check.rewrite(log.wal, frame, {each.frame: each for each in log.found.damaged}) if frame else iter(())


def _survey(database: Path, log: check.CheckedWal) -> Iterator[Salvage]:
    """Yields a `Salvage` for each partition that was created or has messages after the damage. Raises RepairFailed."""
    start = log.found.good if not log.found.lost else log.found.known
    try:
        with check.opened_with_log(database, _log_until(log, start)) as connection:
            # The state before the damage says which messages of each stream the new log has anyway.
            before = {row[0]: row for row in _stream_rows(connection)}
        with check.opened_with_log(database, check.rebuild(log.wal, log.found)) as connection:
            # The state after the damage, as far as its frames are readable, has the messages that can be saved.
            for stream_id, name, partition, first, end, created_us in _stream_rows(connection):
                # A damaged row of a stream can be older than its messages.
                end = max(end, _highest(connection, stream_id) + 1)
                known = before.get(stream_id)
                start_index = max(first, known[4] if known else 0)
                if start_index < end or known is None:
                    saved, lost = 0, list[tuple[int, int]]()
                    for index in range(start_index, end):
                        if _find_message(connection, stream_id, index) is not None:
                            saved += 1
                        elif lost and lost[-1][1] == index - 1:
                            lost[-1] = (lost[-1][0], index)
                        else:
                            lost.append((index, index))
                    yield Salvage(
                        name=name,
                        partition=partition,
                        stream_id=stream_id,
                        created_us=created_us,
                        first=start_index,
                        end=end,
                        saved=saved,
                        lost=tuple(lost),
                    )
    except sqlite3.Error as error:
        raise RepairFailed(
            f"what stands behind the damage cannot be read: {error}; keep a copy of the data directory and restore "
            "a backup: indexes that were confirmed would else be given again"
        ) from error


def _stream_rows(connection: sqlite3.Connection) -> list[tuple[int, str, int, int, int, int]]:
    """Returns the rows of all partitions.
    Raises RepairFailed if a row is damaged: its indexes could belong to messages that never existed."""
    sealed = has_seal(connection, "streams")
    if sealed is None:
        return []
    for problem in find_broken(connection, "streams") if sealed else ():
        raise RepairFailed(f"{problem}; nothing was changed: keep a copy of the data directory and restore a backup")
    return connection.execute(
        "SELECT id, name, partition, first_index, next_index, created_us FROM streams ORDER BY name, partition"
    ).fetchall()


def _highest(connection: sqlite3.Connection, stream_id: int) -> int:
    """Returns the highest stored index of a stream; -1 if the stream has no message or cannot be read."""
    try:
        row = connection.execute("SELECT max(idx) FROM messages WHERE stream_id = ?", (stream_id,)).fetchone()
    except sqlite3.Error:
        return -1
    return -1 if row[0] is None else int(row[0])


def _find_message(connection: sqlite3.Connection, stream_id: int, index: int) -> tuple[int, bytes, bytes, bytes] | None:
    """Returns the time, key, headers and data of an undamaged message; None if it is missing or damaged."""
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


def _install_salvage(database: Path, log: check.CheckedWal, plan: RepairPlan) -> None:
    """Makes a new log for a copy of the database file, and replaces the old log by the new one.

    1. Write the old log up to the last commit before the first lost frame.
    2. Add one transaction. It has the undamaged messages, an empty message for each lost message, the saved positions,
       and fences (lease numbers) above all earlier ones. The empty messages prevent that an index is assigned twice.
    3. Check the structure of the copy.

    The database file does not change meanwhile, so the log of the copy also fits the database file itself.
    """
    folder = Path(tempfile.mkdtemp(prefix=REPAIR_PREFIX, dir=database.parent))
    try:
        copy = folder / database.name
        shutil.copyfile(database, copy)
        with check.wal_path(copy).open("wb") as file:
            # `known` is the last commit before the first lost frame, whose page cannot be recovered.
            file.writelines(_log_until(log, log.found.known))
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            migrate(connection)
            session = SqliteSession(connection, writes=True)
            session.begin()
            with check.opened_with_log(database, check.rebuild(log.wal, log.found)) as behind:
                for stream in plan.salvage:
                    _restore_partition(connection, behind, stream)
                merge_positions(session, SqliteSession(behind, writes=False))
            raise_fences(session, time.time_ns() // 1_000)
            begin_entries(session)
            session.commit()
            (structure,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if structure != "ok":
                raise RepairFailed(f"what is left is no sound database: {structure}; nothing was changed: use a backup")
            # As long as the connection is open, SQLite does not copy the log into the database file.
            with check.wal_path(copy).open("rb") as file:
                check.install_log(database, iter(lambda: file.read(CHUNK_BYTES), b""))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _restore_partition(connection: sqlite3.Connection, behind: sqlite3.Connection, stream: Salvage) -> None:
    """Adds to the new log the messages that one partition has after the damage.
    connection: the copy of the database with the new log. behind: the database with the old log."""
    log = SqliteLog(connection)
    known = log.find_stream(stream.name, stream.partition)
    if known is not None and known.stream_id != stream.stream_id:
        # The stream was deleted and created again after the damage.
        log.delete_stream(known.stream_id)
        known = None
    if known is None:
        # The stream keeps its old id, because the checksums of its messages include the id.
        row = (stream.stream_id, stream.name, stream.partition, stream.first, stream.first, 0, stream.created_us)
        connection.execute(f"INSERT INTO streams ({STREAM_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        _seal(connection, stream.stream_id)
    elif known.next_index < stream.first:
        # The messages up to `stream.first` were truncated after the damage.
        connection.execute("DELETE FROM messages WHERE stream_id = ?", (stream.stream_id,))
        connection.execute(
            "UPDATE streams SET first_index = ?1, next_index = ?1, size_bytes = 0 WHERE id = ?2",
            (stream.first, stream.stream_id),
        )
        _seal(connection, stream.stream_id)
    before = _find_message(connection, stream.stream_id, stream.first - 1)
    time_us = stream.created_us if before is None else before[0]
    for index in range(stream.first, stream.end):
        # An empty message gets the time of the message before it, because times never decrease along a stream.
        found = _find_message(behind, stream.stream_id, index)
        time_us, key, headers, data = found or (time_us, None, LOST_EXTRAS, b"")
        log.append([Append(stream.stream_id, index, time_us, [data], [key], [headers])])


def _seal(connection: sqlite3.Connection, stream_id: int) -> None:
    *columns, _ = connection.execute(SEALED_STREAM, (stream_id,)).fetchone()
    connection.execute("UPDATE streams SET seal = ? WHERE id = ?", (stream_seal(*columns), stream_id))
