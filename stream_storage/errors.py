"""The errors of storage. The text of every error says what happened and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NO_ROOM = "no room to write"
"""The beginning of the text of every DiskFull. Clients find the text in the reason of a node that failed."""


class StorageError(Exception):
    """The base class of all errors of this package."""

    retriable = False  # whether the operation can succeed later, as when the disk has room or the database is free
    fatal = False  # whether the connection must not write any more, and the node must be stopped
    in_doubt = False  # whether the operation is perhaps on disk in spite of the error; if False, none of it is


class StorageBusy(StorageError):
    """The error of an operation that another process blocked for longer than the busy timeout."""

    retriable = True


class DiskFull(StorageError):
    """The error of a write that found no room: the disk is full, or a quota or a limit on file sizes is reached."""

    retriable = True


class DiskFailed(StorageError):
    """The error of a disk that failed in a write, a sync or otherwise. Even earlier writes can be missing on it."""

    fatal = True


class WriteFailed(DiskFailed):
    """The error of a failed write whose cause is not known yet (`stream_storage.sqlite.disk_diagnosis.diagnose`)."""


class DiskReadFailed(StorageError):
    """The error of an operation for which the disk cannot read a part of the database. Other operations continue."""


class CommitInDoubt(DiskFailed):
    """The error of a commit that was written to the write-ahead log before the disk failed in the sync. No reader sees
    it before the next start, which finds out whether the log has the whole transaction."""

    in_doubt = True

    def __init__(self, failure: StorageError) -> None:
        super().__init__(f"what was being stored may or may not be there after the next start, since {failure}")
        self.failure = failure


class StorageReadOnly(StorageError):
    """The error of writing to a data directory or database that is read-only."""


class DatabaseInUse(StorageError):
    """The error of opening a data directory, or the folder of a chain store, that is in use. pid: the process that uses
    it, perhaps this one; None if it is not known."""

    def __init__(self, pid: int | None, path: Path) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        text = f"the data directory {path} is in use by {owner}; stop it, or choose another data directory"
        # Whoever reads this must not be told to stop his own program.
        if pid == os.getpid():
            text = f"the folder {path} is in use by this process, which has opened it before; close that use of it "
            text += "first, or choose another folder"
        super().__init__(text)
        self.pid = pid
        self.path = path


class DatabaseTooNew(StorageError):
    """The error of opening a database that a later version of this program has written. backup: a backup from
    before the upgrade, which this program can restore; None if there is none."""

    def __init__(self, found: int, supported: int, backup: Path | None = None) -> None:
        text = f"the database has schema version {found}, this program knows versions up to {supported}; "
        text += "install the newer program that wrote it, or choose another data directory"
        if backup is not None:
            text += f", or go back to before the upgrade and lose what was stored since: stream-node restore {backup} "
            text += f"--data-dir {backup.parent} --over"
        super().__init__(text)
        self.found = found
        self.supported = supported
        self.backup = backup


class DatabaseTooOld(StorageError):
    """The error of opening a database of an earlier schema version when it must not be brought up to date."""

    def __init__(self, found: int, wanted: int, migrating: str = "makes a backup first") -> None:
        """migrating: what `--migrate` does, for the text of the error."""
        super().__init__(
            f"the database has schema version {found}, this program uses version {wanted}, and migrating is off; start "
            f"with --migrate, which {migrating}, or install the program that wrote the database"
        )
        self.found = found
        self.wanted = wanted


class DatabaseLost(StorageError):
    """The error of an operation during which the connection to the database server broke, or whose time was up before a
    server could be reached."""

    retriable = True

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the connection to the database server was lost: {reason}; check that it runs and can be reached"
        )


class ServerRefused(DatabaseLost):
    """The error of a connection that the server does not accept: a wrong role, database or password, or its rules."""

    def __init__(self, reason: str) -> None:
        StorageError.__init__(
            self, f"the database server refused the node: {reason}; correct the URL or the password, or let the role in"
        )


class StandbyMissing(DatabaseLost):
    """The error of an operation that had to wait for a commit, while that commit waited for a standby."""

    def __init__(self) -> None:
        StorageError.__init__(
            self,
            "a commit of the database server waits for a standby; start the standby, or set "
            "synchronous_standby_names on the server to nothing",
        )


class CommitUnsettled(StorageError):
    """The answer to a commit was lost, and within the time limit of an operation no database server could be asked
    whether the commit is stored. The node goes on asking, and writes again when it knows."""

    in_doubt = True

    def __init__(self, failure: StorageError) -> None:
        super().__init__(f"the node does not know yet whether this was stored, since {failure}")


class PartFailed(StorageError):
    """The error of a commit that was sent together with its statements, one of which failed. Nothing of the transaction
    is stored. The operations are then done one by one, so that only the bad one fails."""

    def __init__(self, failure: StorageError) -> None:
        super().__init__(f"an operation of the transaction failed: {failure}")


class NodeReplaced(StorageError):
    """The error of writing after another node has taken over the database."""

    fatal = True

    def __init__(self) -> None:
        super().__init__("another node has taken over this database; stop this node, or give it another database")


class MemberFenced(NodeReplaced):
    """The error of writing after another member of the cluster, or a new process of this member, has taken over."""

    def __init__(self) -> None:
        StorageError.__init__(
            self,
            "another node has taken over what this member of the cluster served, since it did not write in time or a "
            "new process has its name; start it again, and it joins as a new member",
        )


class ConfirmedLost(StorageError):
    """The error of writing to a new primary that lacks `lost` confirmed transactions: a standby that was behind."""

    fatal = True

    def __init__(self, lost: int) -> None:
        super().__init__(
            f"the database lacks the last {lost} transactions that this node has confirmed; it was a standby that was "
            "behind: set synchronous_standby_names, and start this node again to go on with what is there"
        )


class DatabaseTaken(StorageError):
    """The error of starting a node on a database that another node uses. holder: what is known of the other node."""

    found = "another node uses this database"
    advice = "stop that node, or choose another database"

    def __init__(self, holder: str) -> None:
        super().__init__(f"{self.found}: {holder}; {self.advice}")
        self.holder = holder


class ClusterThere(DatabaseTaken):
    """The error of starting a node without a cluster on a database that the members of a cluster use."""

    found = "a cluster, or a node with several workers, uses this database"
    advice = "give this node a name in that cluster (--cluster NAME), or choose another database"


class LoneNodeThere(DatabaseTaken):
    """The error of starting a member of a cluster on a database that a node without a cluster uses."""

    found = "a node that is not in a cluster uses this database"
    advice = "stop that node and start it with a name of its own, too (--cluster NAME), or choose another database"


class MemberNameTaken(DatabaseTaken):
    """The error of starting a member of a cluster with the name of a member that runs."""

    def __init__(self, holder: str, name: str) -> None:
        self.found = f"the cluster of this database has a member named {name!r} already"
        self.advice = "give this node a name of its own (--cluster NAME), or stop the other one"
        super().__init__(holder)


class UnsafeDatabase(StorageError):
    """The error of a database server that can lose confirmed messages, since its settings allow a confirm before the
    sync, or since a crash of the server empties tables (UNLOGGED)."""

    def __init__(self, settings: Sequence[str]) -> None:
        super().__init__(
            f"the database server can lose what it has confirmed ({', '.join(settings)}); set settings to on and "
            "tables to LOGGED, or start with the setting `database_unsafe` if that may happen"
        )


class RightsMissing(StorageError):
    """The error of starting a node whose role lacks rights in the database."""

    def __init__(self, rights: Sequence[str]) -> None:
        super().__init__(
            f"the role of the node lacks rights in the database: {'; '.join(rights)}; grant them, or start the node "
            "once with the role that owns the tables (docs/scale.md, 'The rights of the role')"
        )
        self.rights = rights


class NoRoomToUpgrade(DiskFull):
    """The error of an upgrade that was not begun, because the disk has no room for its backup. Nothing was changed."""

    def __init__(self, directory: Path, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"the database in {directory} has an older schema version, and the backup before its upgrade needs "
            f"{needed_bytes} bytes of free disk, of which {free_bytes} are there; free space, or move the data "
            "directory to a larger disk, then start again; nothing was changed"
        )
        self.needed_bytes = needed_bytes


class MigrationFailed(StorageError):
    """The error of a revision that has a mistake, or does not fit the database. It changed nothing."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(
            f"the database cannot be brought to schema version {version}: {reason}; it is as it was before this step: "
            "start the program that wrote it, run `stream-node verify`, and report this"
        )


class NoLocks(StorageError):
    """The error of a data directory on a file system that has no locks, such as NFS that is mounted without them."""

    def __init__(self, directory: Path, reason: str | None) -> None:
        super().__init__(
            f"the file system of {directory} has no locks ({reason}), and SQLite needs them; put the data directory on "
            "a local disk, or mount the file system with locks"
        )


class DatabaseCorrupt(StorageError):
    """The error of a database that is damaged, or that another program has made."""


class MessagesBehind(NamedTuple):
    """The messages `first` up to, not including, `end` of a stream-partition, in a write-ahead log after its damage."""

    name: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        name = self.name if self.name.isprintable() else ascii(self.name)
        last = f" to {self.end - 1}" if self.end > self.first + 1 else ""
        return f"{name}/{self.partition} at {self.first}{last}"


class WalDamaged(DatabaseCorrupt):
    """The error of a write-ahead log that is damaged in the middle, with confirmed messages after the damage."""

    def __init__(
        self,
        directory: Path,
        *,
        bad: int,  # the number of the first damaged frame
        frames: int,  # the number of frames from `bad` to the last commit
        commits: int,  # the number of commits in these frames
        lost: int,  # how many of these frames cannot be recovered
        behind: Sequence[MessagesBehind] | None,  # the messages after the damage; None if they cannot be read
        kept: Path | None,  # a copy of the log
    ) -> None:
        text = f"the write-ahead log in {directory} is damaged: its frame {bad} does not fit, and from there on stand "
        text += f"{frames} frames with {commits} commits"
        if behind is None:
            text += "; which streams they belong to cannot be told"
        elif behind:
            named = ", ".join(map(str, behind[:NAMED_MAX]))
            more = f" and {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
            text += f", with messages of {named}{more}"
        text += "; nothing was changed"
        if kept is not None:
            text += f", and a copy of the log is in {kept.name}"
        super().__init__(f"{text}; see what `stream-node repair --data-dir {directory}` can recover")
        self.bad = bad
        self.frames = frames
        self.lost = lost
        self.behind = behind
        self.kept = kept


NAMED_MAX = 10
"""The largest number of streams that the text of a WalDamaged error names."""


class IndexConflict(StorageError):
    """The error of an append whose first index, `found`, is not the next index of its stream, `expected`."""

    def __init__(self, stream_id: int, expected: int, found: int) -> None:
        super().__init__(f"stream {stream_id} continues at index {expected}, not {found}; read the stream's end again")
        self.stream_id = stream_id
        self.expected = expected
        self.found = found


class UnknownStreamId(StorageError):
    """The error of using a stream id that no stream has: the stream was never created, or was deleted."""

    def __init__(self, stream_id: int) -> None:
        super().__init__(f"there is no stream {stream_id}; it may have been deleted: create it again by name")
        self.stream_id = stream_id


class StorageClosed(StorageError):
    """The error of an operation that was submitted after the storage was closed, or after a fatal error."""


class ReadLate(StorageError):
    """The error of a read that the database has not answered in time. It may still end, and nobody waits for it."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"a read has not ended within {waited_s:g} s; look at the disk or the database server")


class OperationFailed(StorageError):
    """The error of an operation with a bug, which no disk or file has caused."""


def system_error(error: OSError) -> StorageError:
    reason = f"{error.strerror or error}: {error.filename}" if error.filename else f"{error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"{NO_ROOM}: {reason}; free space or raise the quota, then repeat")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageReadOnly(f"the data directory cannot be written: {reason}; make it writable for this user")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        what = f"{error.filename} is" if error.filename else "a part of its path is"
        return StorageReadOnly(f"the data directory cannot be used: {what} no directory; choose another")
    return DiskFailed(f"the data directory cannot be used: {reason}; check the disk and the path")


def no_database(directory: Path) -> str:
    return (
        f"there is no database in {directory}; say where the node keeps its data. The streams of a node with the "
        "setting `database` are in PostgreSQL: back them up with pg_basebackup, and check them with pg_amcheck"
    )


def damaged_message(stream_id: int, index: int) -> str:
    return f"message {index} of stream {stream_id} is not what was written (its checksum differs)"


def corrupt_text(reason: str) -> str:
    return (
        f"the database is damaged: {reason}; stop the node, keep a copy of the data directory, run "
        "`stream-node verify`, then restore a backup or start with another data directory"
    )
