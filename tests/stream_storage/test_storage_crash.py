"""Kills processes while they commit, and cuts logs short: every confirmed batch is there, and batches are whole."""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from stream_storage.contract import Append
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import WalDamaged
from stream_storage.failpoint import EXPORT_SITES, PIPELINE_SITES, SITES
from stream_storage.sqlite.database import FILE_NAME, PAGE_BYTES, Database
from tests.stream_storage.crash_samples import confirmed_of, need_strace, run_child, stored_batches
from tests.stream_storage.storage_child import STREAMS, batch_data
from tests.stream_storage.storage_samples import writing

WAL_NAME = FILE_NAME + "-wal"
KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("site", "confirmed", "stored"),
    [
        ("before_begin:4", 3, 3),
        ("after_rows_before_commit:4", 3, 3),
        ("after_commit_before_confirm:4", 3, 4),
        ("before_checkpoint:2", None, None),
        ("after_checkpoint", None, None),
        ("before_close", 9, 9),
    ],
)
def test_a_kill_at_a_site_loses_nothing_confirmed(
    tmp_path: Path, site: str, confirmed: int | None, stored: int | None
) -> None:
    environment = {"STREAM_NODE_FAILPOINT": site, "STORAGE_CHILD_CHECKPOINT_COMMITS": "2"}
    # Where the counts are not told: enough pushes for two checkpoints, also where the next one always waits already.
    pushes = 9 if stored is not None else 20
    status, lines = run_child("push", tmp_path, pushes, environment=environment)
    assert status == KILLED
    assert (tmp_path / LOCK_NAME).read_bytes() != b""
    found = stored_batches(tmp_path)
    assert confirmed_of(lines) <= found
    if confirmed is not None:
        assert (confirmed_of(lines), found) == (confirmed, stored)


def test_every_site_is_killed_at_by_a_test() -> None:
    marks = test_a_kill_at_a_site_loses_nothing_confirmed.pytestmark  # type: ignore[attr-defined]
    # The sites of upgrades are killed at in `test_upgrade`, which checks that, too.
    of_upgrades = {site for site in SITES if "upgrade" in site or "revision" in site}
    of_mirrors = {site for site in SITES if "promotion" in site}
    # Tests of spark_export take theirs from these sets.
    of_exports = EXPORT_SITES | PIPELINE_SITES
    assert {case[0].split(":")[0] for case in marks[0].args[1]} == SITES - of_upgrades - of_mirrors - of_exports


@pytest.mark.parametrize("setting", ["nowhere", "before_begin:0", "before_begin:x", ":1"])
def test_a_site_that_does_not_exist_is_refused(tmp_path: Path, setting: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, lines = run_child("push", tmp_path, 1, environment={"STREAM_NODE_FAILPOINT": setting})
    assert (status, lines) == (1, [])
    assert "say name or name:count" in capfd.readouterr().err


def test_a_kill_with_many_batches_under_way_leaves_a_prefix(tmp_path: Path) -> None:
    environment = {"STREAM_NODE_FAILPOINT": "after_commit_before_confirm:5"}
    status, lines = run_child("push", tmp_path, 400, 30, environment=environment)
    assert status == KILLED
    assert confirmed_of(lines) < stored_batches(tmp_path) < 400


def test_a_process_that_is_not_killed_leaves_all(tmp_path: Path) -> None:
    status, lines = run_child("push", tmp_path, 9, environment={"STREAM_NODE_FAILPOINT": "before_begin:100"})
    assert status == 0
    assert lines[-1] == {"done": 9}
    assert not (tmp_path / WAL_NAME).exists()
    assert (tmp_path / LOCK_NAME).read_bytes() == b""
    assert stored_batches(tmp_path) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "kills"),
    [
        *(("pwrite64", 2), ("fdatasync", 2)),
        *(pytest.param(call, 6, marks=pytest.mark.soak) for call in ("pwrite64", "fdatasync")),
    ],
)
def test_a_kill_in_the_middle_of_a_write_or_sync_loses_nothing_confirmed(tmp_path: Path, call: str, kills: int) -> None:
    """strace counts the calls of each thread apart; the process dies in whichever gets there first.

    A checkpoint after every commit, so that each run makes the same calls.
    """
    strace = need_strace(call)
    trace = tmp_path / "trace"
    environment = {"STORAGE_CHILD_CHECKPOINT_COMMITS": "0.25"}
    Database.open(tmp_path / "new").close()
    whole = shutil.copytree(tmp_path / "new", tmp_path / "whole")
    counting = (*strace, "-o", str(trace))
    assert run_child("push", whole, 5, prefix=counting, environment=environment)[0] == 0
    threads = Counter(re.findall(rf"^(\d+) +{call}\(", trace.read_text(), re.MULTILINE))
    visits = max(threads.values())
    outcomes: set[tuple[int, int]] = set()
    for visit in range(visits, 0, -max(1, visits // kills)):
        directory = shutil.copytree(tmp_path / "new", tmp_path / f"killed {visit}")
        kill = (*strace, "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={visit}")
        status, lines = run_child("push", directory, 5, prefix=kill, environment=environment)
        assert status == KILLED
        outcomes.add((confirmed_of(lines), stored_batches(directory)))
    assert all(confirmed <= stored <= confirmed + 1 for confirmed, stored in outcomes)
    assert len(outcomes) > 1


_CALL = re.compile(r"^(?P<pid>\d+) +(?:(?P<call>\w+)\((?P<arguments>.*)|<\.\.\. (?P<resumed>\w+) resumed>.*)$")


def _syncs_before_confirms(trace: str) -> list[int]:
    """For each confirm on standard output, the number of syncs of the log since the confirm before."""
    counts: list[int] = []
    syncs = 0
    under_way: set[str] = set()
    for line in trace.splitlines():
        found = _CALL.match(line)
        if found is None:
            continue
        call, arguments = found["call"] or found["resumed"], found["arguments"] or ""
        if call in ("fsync", "fdatasync"):
            begun = WAL_NAME in arguments
            if begun and "unfinished" in line:
                under_way.add(found["pid"])
            elif line.endswith("= 0") and (begun or found["pid"] in under_way):
                under_way.discard(found["pid"])
                syncs += 1
        elif "confirmed" in arguments:
            counts.append(syncs)
            syncs = 0
    return counts


@pytest.mark.parametrize("synchronous", ["2", "0"])
def test_each_confirmed_batch_was_synced_before_its_confirm(tmp_path: Path, synchronous: str) -> None:
    """With `synchronous` off there are no syncs: the test above would notice missing syncs."""
    trace = tmp_path / "trace"
    prefix = (*need_strace("fsync", "fdatasync", "write"), "-y", "-o", str(trace))
    environment = {"STORAGE_CHILD_SYNCHRONOUS": synchronous}
    status, lines = run_child("push", tmp_path / "data", 12, prefix=prefix, environment=environment)
    assert (status, confirmed_of(lines)) == (0, 12)
    counts = _syncs_before_confirms(trace.read_text())
    assert len(counts) == 12
    assert min(counts) == (1 if synchronous == "2" else 0)
    assert (sum(counts) >= 12) == (synchronous == "2")


def test_a_failed_sync_confirms_nothing_and_stops_writing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    assert run_child("push", directory, 2)[0] == 0
    failing = (*need_strace("fsync", "fdatasync"), "-o", "/dev/null", "-P", str(directory / WAL_NAME))
    inject = ("-e", "inject=fdatasync,fsync:error=EIO:when=4+")
    status, lines = run_child("push", directory, 12, prefix=(*failing, *inject))
    assert status == 0
    confirmed = confirmed_of(lines)
    errors = [line["error"] for line in lines if "error" in line]
    assert 0 < confirmed < 12
    assert errors == ["CommitInDoubt"] + ["StorageClosed"] * (11 - confirmed)
    assert "check the disk" in next(line["text"] for line in lines if "error" in line)
    assert (directory / LOCK_NAME).read_bytes() != b""
    database = Database.open(directory)
    database.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The file and the write-ahead log of a database after twelve commits, without a checkpoint."""
    directory = tmp_path_factory.mktemp("written")
    database = Database.open(directory)
    with writing(database) as session:
        ids = [session.log.ensure_stream(name, 0, 1).stream_id for name in STREAMS]
    session = database.session()
    for batch in range(12):
        data = batch_data(batch)
        session.begin()
        session.log.append([Append(stream_id, batch * len(data), batch, data) for stream_id in ids])
        session.commit()
    contents = ((directory / FILE_NAME).read_bytes(), (directory / WAL_NAME).read_bytes())
    session.close()
    database.close()
    return contents


def _batches_with_log(directory: Path, file: bytes, log: bytes) -> int:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / FILE_NAME).write_bytes(file)
    (directory / WAL_NAME).write_bytes(log)
    return stored_batches(directory)


def test_a_log_cut_anywhere_leaves_a_prefix_of_whole_batches(tmp_path: Path, written: tuple[bytes, bytes]) -> None:
    file, log = written
    header_bytes, frame_bytes = 32, 24 + PAGE_BYTES
    frames = [header_bytes + n * frame_bytes for n in range((len(log) - header_bytes) // frame_bytes + 1)]
    assert frames[-1] == len(log)
    near = [offset + step for offset in frames[::5] for step in (-1, 1)]
    inside = range(0, len(log), 8_009)
    found = []
    for cut in sorted({cut for cut in (*frames, *near, *inside) if 0 <= cut <= len(log)}):
        found.append(_batches_with_log(tmp_path / "cut", file, log[:cut]))
    assert found == sorted(found)
    assert set(found) == set(range(13))


def test_a_log_with_a_wrong_byte_is_refused_or_completed(tmp_path: Path, written: tuple[bytes, bytes]) -> None:
    """A cut log loses at most the last batch: only that one may be unconfirmed."""
    file, log = written
    refused, found = 0, set()
    for offset in range(40, len(log), len(log) // 40):
        changed = bytearray(log)
        changed[offset] ^= 0x40
        try:
            found.add(_batches_with_log(tmp_path / "changed", file, bytes(changed)))
        except WalDamaged:
            refused += 1
    assert refused > 30
    assert found <= {11, 12}
