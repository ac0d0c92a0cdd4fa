"""Uses disks that are full, limited or read-only: errors say what to do, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_storage.errors import StorageReadOnly
from stream_storage.sqlite.database import Database
from tests.stream_storage.crash_samples import need_mounts, run_child


def _check_filled(status: int, lines: list[dict[str, object]]) -> None:
    """Check that a large and a small batch failed with DiskFull, and that the last one was stored."""
    assert status == 0
    errors = [line for line in lines if "error" in line]
    assert [line["error"] for line in errors] == ["DiskFull"] * 2
    assert all("free space or raise the quota" in str(line["text"]) for line in errors)
    confirmed = [line["confirmed"] for line in lines if "confirmed" in line]
    assert len(confirmed) > 5
    assert lines[-1] == {"done": confirmed[-1]}


def test_a_full_disk_refuses_until_there_is_room(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=2m none {tmp_path} && exec "$@"'
    status, lines = run_child("fill", tmp_path, prefix=(*need_mounts(), "sh", "-c", mount, "sh"))
    _check_filled(status, lines)


def test_a_limit_on_the_size_of_files_refuses_until_it_is_raised(tmp_path: Path) -> None:
    _check_filled(*run_child("limit", tmp_path))
    database = Database.open(tmp_path)
    session = database.read_session()
    record = session.log.find_stream("two", 0)
    assert record is not None
    page = session.log.read(record.stream_id, record.next_index - 1, 1, 100)
    assert page[0][1] == b"after"
    session.close()
    database.close()


def test_a_disk_too_small_for_an_empty_database_is_refused(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=8k none {tmp_path} && exec "$@"'
    status, lines = run_child("open", tmp_path, prefix=(*need_mounts(), "sh", "-c", mount, "sh"))
    assert status == 0
    assert [line["error"] for line in lines] == ["DiskFull"]


@pytest.mark.parametrize("existing", [True, False])
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, existing: bool) -> None:
    if existing:
        Database.open(tmp_path).close()
    mount = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && exec "$@"'
    for directory in (tmp_path, tmp_path / "below"):
        status, lines = run_child("open", directory, prefix=(*need_mounts(), "sh", "-c", mount, "sh"))
        assert status == 0
        assert [line["error"] for line in lines] == ["StorageReadOnly"]
        assert "writable for this user" in lines[0]["text"]


def test_a_file_that_only_the_system_may_write_is_refused() -> None:
    with pytest.raises(StorageReadOnly, match=r"cannot be written|is no directory"):
        Database.open(Path("/proc/self/status"))
