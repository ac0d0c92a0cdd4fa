"""Checks whether this machine and these settings are suitable for a node. It repairs nothing and reads no messages.
Each check is a function of the facts that it judges, so tests can pass the facts of any machine. The module writes one
file only, a temporary one for measuring syncs: in the data directory, or in the nearest folder above it that exists."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from ockam.quotas.limits import share_of
from stream_node.care.doctor_access import Finding, Status, Values, examine_access, find_unwritable
from stream_node.fleet.worker_directory import check_not_lost, database_folders, worker_of
from stream_node.node.clock_note import find_problem
from stream_node.node.config import Config, ConfigError
from stream_node.node.databases import check_url
from stream_service.stored import list_stored
from stream_storage.directory_lock import owner_lives, owner_of
from stream_storage.errors import StorageError
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.migrate import version_of
from stream_storage.sqlite.schema import SCHEMA_VERSION

NETWORK_FILE_SYSTEMS = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs",
}  # fmt: skip
"""File systems that lack the shared memory or the reliable locks that a write-ahead log needs."""
PASSING_FILE_SYSTEMS = {"overlay": "a container's own layer", "ramfs": "memory", "tmpfs": "memory"}
SYNC_COUNT = 100
SYNC_BYTES = 4096
SYNC_TIME_S_MAX = 2.0
"""The maximum duration of the measurement of syncs. On a slow disk, fewer than SYNC_COUNT syncs are measured."""
SYNC_P99_MS_MAX = 100.0
SYNC_P50_MS_MIN = 0.005
"""The smallest credible median of the sync times. A faster sync does not write to a device."""
FREE_FACTOR = 4
"""The disk check warns if the free space is less than this many times the setting `free_disk_bytes_min`."""
FREE_FILES_MIN = 1_000
OTHER_FILES = 64
"""The files that a node has open besides its connections: the database, the log, listening sockets and pipes."""
EARLIEST_US = 1_767_225_600_000_000
"""The time 2026-01-01. This program was written later, so an earlier clock is wrong."""
CLOCK_SLACK_US = 1_000_000


def examine(config: Config) -> list[Finding]:
    """Runs all checks on this machine and these settings, in the order of the report. The syncs take up to 2 s."""
    directory = Path(config.data_dir)
    there = nearest_directory(directory)
    owner = check_owner(directory)
    workers, folders = check_workers(config)
    findings = []
    if config.database is None:
        findings.append(check_sqlite(sqlite3.sqlite_version_info))
        findings += of_each(folders, lambda folder: check_litestream(folder, sqlite3.sqlite_version_info))
    findings += [check_directory(directory, there), owner]
    if workers is not None:
        findings += [workers, *of_each(folders, check_owner)]
    findings.append(check_file_system(there, _mounts()))
    if config.database is None and os.access(there, os.W_OK | os.X_OK):
        findings.append(_measured(there))
    usage = os.statvfs(there)
    findings.append(check_free(shutil.disk_usage(there).free, usage.f_favail, usage.f_files, config))
    newest_us: int | None = None
    if config.database is None:
        databases = {name: check_database(folder) for name, folder in folders.items()}
        findings += [named(name, found) for name, (found, _) in databases.items()]
        newest_us = max((newest for _, newest in databases.values() if newest is not None), default=None)
    else:
        findings.append(examine_server(config.database, config))
    findings.append(check_clock(time.time_ns() // 1000, newest_us))
    notes = filter(None, map(find_problem, folders.values()))
    findings += [Finding("clock note", "warning", problem) for problem in notes]
    # A node raises its soft limit to the hard one when it starts.
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    findings += [check_open_files(open_files, config), check_connections(open_files, config)]
    return findings + examine_access(config, is_running=owner.status == "ok" and owner.values["pid"] is not None)


def check_workers(config: Config) -> tuple[Finding | None, dict[str, Path]]:
    """Reports how many workers share the streams; None if there is one process. Also returns the folder of each
    database by the name of its worker; the name is "" if there is one process."""
    directory = Path(config.data_dir)
    single = {"": directory}
    if config.database is not None:
        return None, single
    try:
        folders = database_folders(directory)
        check_not_lost(folders)
    except ConfigError as error:
        return Finding("workers", "wrong", str(error), {"workers": None}), single
    # The one database of a directory may still belong to one of several workers.
    if folders == single:
        whose = worker_of(directory)
        if whose is None:
            return None, single
        text = f"this is {whose}; no node serves it alone, but the directory that holds the folders of all workers"
        return Finding("workers", "warning", text, {"workers": whose.workers}), single
    text = f"{len(folders)}, each with a database of its own, in {', '.join(folders)}"
    return Finding("workers", "ok", text, {"workers": len(folders)}), folders


def named(name: str, finding: Finding) -> Finding:
    """Returns a finding about one worker with its name in front. The name "" stands for the whole node."""
    return msgspec.structs.replace(finding, check=f"{name} {finding.check}") if name else finding


def of_each(folders: Mapping[str, Path], check: Callable[[Path], Finding]) -> list[Finding]:
    return [named(name, check(folder)) for name, folder in folders.items()]


def check_directory(directory: Path, there: Path) -> Finding:
    """Checks that the data directory and its files can be written. there: it, or the nearest existing folder above."""
    status: Status = "wrong"
    if not there.is_dir():
        text = f"{there} is no directory; choose another one"
    elif not os.access(there, os.W_OK | os.X_OK):
        text = f"{there} cannot be written; make it writable for this user"
    elif unwritable := find_unwritable(directory):
        text = f"the node cannot write {', '.join(unwritable)}; give each to the user of the node (chown)"
    else:
        status, text = "ok", str(directory)
        text += "" if directory.absolute() == there else ", not there yet; the node makes it"
    return Finding("data directory", status, text, {"data_dir": str(directory)})


def check_owner(directory: Path) -> Finding:
    """Reports which process uses the data directory, by the process id in the lock file. Does not touch the lock."""
    try:
        pid = owner_of(directory)
    except OSError:
        pid = None
    status: Status = "ok"
    if pid is None:
        text = "none is running here, and the last one stopped in good order"
    elif owner_lives(directory):
        text = f"process {pid} is running here"
    else:
        status, text = "warning", f"process {pid} did not stop in good order"
        text += "; the next start checks the database, or run `stream-node verify`"
    return Finding("node", status, text, {"pid": pid})


def check_file_system(directory: Path, mounts: str | None) -> Finding:
    """Checks the type of the file system. mounts: the text of /proc/self/mountinfo; None on systems without it."""
    kind = file_system(directory.resolve(), mounts) if mounts is not None else None
    status: Status = "warning"
    if kind is None:
        text = "this system does not tell its type; use a local one"
    elif kind in NETWORK_FILE_SYSTEMS:
        status = "wrong"
        text = f"{kind} is a network file system, and locks and syncs on it do not hold; use a local disk"
    elif kind in PASSING_FILE_SYSTEMS:
        text = f"{kind} is {PASSING_FILE_SYSTEMS[kind]}: what is in it goes when that ends; mount a disk there"
    elif kind.startswith("fuse"):
        text = f"{kind}: whether a sync reaches a disk depends on the program behind it; use a local disk"
    else:
        status, text = "ok", kind
    return Finding("file system", status, text, {"type": kind})


def check_syncs(times_s: Sequence[float]) -> Finding:
    """Checks the speed of syncs. times_s: the duration of each write of a page and its sync."""
    ordered = sorted(times_s)
    p50_ms, p99_ms = (1000 * ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99))
    problem = ""
    if p50_ms < SYNC_P50_MS_MIN:
        problem = ": no device is so fast, a power cut would lose data"
    elif p99_ms > SYNC_P99_MS_MAX:
        problem = ": every confirm waits for one; use a faster disk"
    text = f"p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms of {len(ordered)}{problem}"
    values: Values = {"p50_ms": round(p50_ms, 3), "p99_ms": round(p99_ms, 3), "syncs": len(ordered)}
    return Finding("fsync", "warning" if problem else "ok", text, values)


def check_free(free_bytes: int, free_files: int, files: int, config: Config) -> Finding:
    """Checks the free space of the disk. files, free_files: the numbers of all and free inodes; 0 files: no limit."""
    # With a database server, the node refuses no push for the disk of its own folder.
    floor = config.free_disk_bytes_min if config.database is None else 0
    status: Status = "wrong"
    text = f"{free_bytes / 2**30:,.1f} GiB"
    if free_bytes < floor:
        text += f", below free_disk_bytes_min = {floor}: every push is refused; free space, or set a retention"
    elif files and free_files < FREE_FILES_MIN:
        text += f", but room for {free_files} more files only"
    elif free_bytes < FREE_FACTOR * floor:
        status, text = "warning", f"{text}; pushes are refused below {floor} bytes"
    else:
        status = "ok"
    return Finding("free disk", status, text, {"free_bytes": free_bytes, "floor_bytes": floor})


def check_database(directory: Path) -> tuple[Finding, int | None]:
    """Checks that the database can be opened and read. Also returns the time of its newest message, or None."""
    file = directory / FILE_NAME
    if not file.exists():
        return Finding("database", "ok", "none yet; the node makes it", {"size_bytes": None}), None
    size_bytes = file.stat().st_size
    try:
        with closing(Database.open(directory, read_only=True).read_session()) as session:
            version = version_of(session.connection)
            newest_us = max((stream.last_time_us for stream in list_stored(session, {})), default=0)
    except (StorageError, sqlite3.Error) as error:
        return Finding("database", "wrong", str(error), {"size_bytes": size_bytes}), None
    values: Values = {"size_bytes": size_bytes, "schema_version": version}
    status: Status = "ok"
    text = f"{size_bytes / 2**20:,.1f} MiB, schema version {version}"
    # The next start upgrades the database. The operator should know that before.
    if version < SCHEMA_VERSION:
        status = "warning"
        text += f"; the next start brings it to {SCHEMA_VERSION}, and needs as much free disk for a backup first"
    return Finding("database", status, text, values), newest_us or None


def check_clock(now_us: int, newest_us: int | None) -> Finding:
    """Checks the wall clock. The times are in microseconds since 1970. newest_us: that of the newest message."""
    status: Status = "wrong"
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_us // 1_000_000))
    if now_us < EARLIEST_US:
        text += " cannot be; set the clock, messages are stored with their time"
    elif newest_us is not None and newest_us > now_us + CLOCK_SLACK_US:
        behind_s = (newest_us - now_us) / 1e6
        text += f" is {behind_s:,.0f} s before the newest message; set the clock, until then nothing goes for its age"
    else:
        status = "ok"
    return Finding("clock", status, text, {"now_us": now_us, "newest_us": newest_us})


def check_open_files(limit: int, config: Config) -> Finding:
    """Checks the limit on open files of this process; a negative number means no limit."""
    needed = config.connections_max + OTHER_FILES
    values: Values = {"limit": limit, "needed": needed}
    if 0 <= limit < needed:
        text = f"{limit:,} allowed, connections_max = {config.connections_max} needs {needed:,}; raise it (ulimit -n)"
        return Finding("open files", "wrong" if limit <= OTHER_FILES else "warning", text, values)
    return Finding("open files", "ok", "no limit" if limit < 0 else f"{limit:,} allowed", values)


def check_connections(limit: int, config: Config) -> Finding:
    """Reports how many connections there can be, and how many one client can have. limit: the most open files."""
    most = config.connections_max if limit < 0 else max(1, min(config.connections_max, limit - OTHER_FILES))
    one, http = min(most, config.identity_connections_max), config.http_connections_max
    values: Values = {"most": most, "of_one": one, "http_most": http, "http_of_one": share_of(http)}
    text = f"{most:,}, of which {one:,} for one identity (identity_connections_max); over HTTP {http:,}, of which "
    text += (
        f"{share_of(http):,} for one host or certificate. All clients without a certificate or token at one address, "
    )
    return Finding("connections", "ok", text + "as behind a proxy, are one identity", values)


def measure_syncs(directory: Path, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Writes and syncs up to SYNC_COUNT pages in a temporary file. Returns the seconds of each. Raises OSError."""
    times_s: list[float] = []
    begun_s = clock()
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".stream-node-doctor-") as file:
        while len(times_s) < SYNC_COUNT and clock() - begun_s < SYNC_TIME_S_MAX:
            started_s = clock()
            os.write(file.fileno(), bytes(SYNC_BYTES))
            os.fsync(file.fileno())
            times_s.append(clock() - started_s)
    return times_s


def nearest_directory(path: Path) -> Path:
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def file_system(path: Path, mounts: str) -> str | None:
    """Returns the type of the file system of a path, if it is found. mounts: /proc/self/mountinfo, see proc(5)."""
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].encode().decode("unicode_escape"))
        # If several file systems are mounted at one path, only the last one is visible.
        if path.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = (len(point.parts), right.split()[0])
    return None if found is None else found[1]


def _measured(directory: Path) -> Finding:
    try:
        return check_syncs(measure_syncs(directory))
    except OSError as error:
        return Finding("fsync", "wrong", f"cannot write and sync in {directory}: {error.strerror or error}")


def _mounts() -> str | None:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


CONNECT_WAIT_S = 5.0
CHECK = "database"
NO_DRIVER = "psycopg is not installed; install the extra `postgres` (in a checkout: pip install '.[postgres]')"


def examine_server(url: str, config: Config) -> Finding:
    """Connects to the server of a PostgreSQL database, and reports how durable its confirms are. Changes nothing."""
    try:
        check_url(url)
        from stream_storage.postgres.durability import examine
        from stream_storage.postgres.server import PostgresPrimary

        server = PostgresPrimary(url, wait_s=CONNECT_WAIT_S, call_s=config.database_call_s)
    except ImportError:
        return Finding(CHECK, "wrong", NO_DRIVER)
    except (ConfigError, StorageError) as error:
        return Finding(CHECK, "wrong", str(error))
    try:
        version, found = examine(server)
    except StorageError as error:
        return Finding(CHECK, "wrong", f"{server.name}: {error}", {"database": server.name})
    finally:
        server.close()
    # The server can be reached. What its confirms are worth depends on its settings.
    durability = found.kept(unsafe=config.database_unsafe)
    values: Values = {"database": server.name, "version": version, "waits_for_standby": durability.waits_for_standby}
    told = f"PostgreSQL {version} at {server.name}"
    if found.unsafe:
        return Finding(CHECK, "warning" if config.database_unsafe else "wrong", f"{told}: {found.meaning}", values)
    return Finding(CHECK, "ok", f"{told}: {durability.meaning}", values)


WAL_RESET_FIXED = (3, 51, 3)
"""The first version of SQLite without the WAL-reset bug, see SQLite's wal.html."""
LITESTREAM_FOLDER = f".{FILE_NAME}-litestream"


def check_sqlite(version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    if version >= WAL_RESET_FIXED:
        return Finding("sqlite", "ok", f"{text}, no bug known here", {"version": text})
    bug = (
        "the WAL-reset bug, which damages a database that two connections checkpoint at once; "
        "in a node one alone does, so run no other program that writes to the database"
    )
    return Finding("sqlite", "warning", f"{text} has {bug}", {"version": text})


def check_litestream(directory: Path, version: tuple[int, int, int]) -> Finding:
    """Checks whether a Litestream may copy the database beside the node.
    Litestream writes to the database and makes checkpoints, so SQLite must not have the WAL-reset bug."""
    folder, sqlite = directory / LITESTREAM_FOLDER, ".".join(map(str, version))
    is_there = folder.is_dir()
    status: Status = "ok"
    if not is_there:
        text = "none copies the database"
    elif version >= WAL_RESET_FIXED:
        text = f"copies the database; SQLite {sqlite} bears a second program"
    else:
        status, fixed = "wrong", ".".join(map(str, WAL_RESET_FIXED))
        text = (
            f"{folder} is there, and SQLite {sqlite} has the WAL-reset bug: two programs that checkpoint at once can "
            f"damage the database; run the node with SQLite {fixed} or newer, or end Litestream and remove that folder"
        )
    return Finding("litestream", status, text, {"folder": str(folder) if is_there else None, "version": sqlite})
