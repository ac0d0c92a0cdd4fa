"""Goal: what a start knows of the time. Method: notes of this start of the machine, of another one, and none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stream_node.node.clock_note import FILE_NAME, Known, Note, read_known, since_boot_s, write_note
from stream_storage import directory_lock

YEAR_2036_US = 2_082_758_400_000_000
NOW_US = 1_800_000_000_000_000


@pytest.fixture
def boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "boot_id"
    file.write_text("first\n")
    monkeypatch.setattr(directory_lock, "BOOT_ID_FILE", file)
    return file


def test_a_note_of_this_start_of_the_machine_is_all_that_counts(tmp_path: Path, boot_id: Path) -> None:
    assert read_known(tmp_path, YEAR_2036_US, NOW_US) == Known(YEAR_2036_US, None), "no note: what is stored stands in"
    write_note(tmp_path, 5)
    assert read_known(tmp_path, YEAR_2036_US, NOW_US) == Known(0, 5)


@pytest.mark.parametrize("system_tells", [True, False])
def test_after_a_start_of_the_machine_the_noted_time_is_the_least(
    tmp_path: Path, boot_id: Path, system_tells: bool
) -> None:
    if not system_tells:
        boot_id.unlink()
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(Note("another" if system_tells else "", NOW_US, 5)))
    assert read_known(tmp_path, YEAR_2036_US, NOW_US + 1) == Known(0, None), "a wrong year that was settled is no doubt"
    assert read_known(tmp_path, 7, NOW_US - 1) == Known(NOW_US, None)
    assert read_known(tmp_path, NOW_US + 7, NOW_US - 1) == Known(NOW_US + 7, None)


def test_a_steady_clock_that_has_fallen_since_the_note_dates_nothing(tmp_path: Path, boot_id: Path) -> None:
    """A virtual machine that goes on from a snapshot has the same boot, and the steady clock of the snapshot."""
    noted_us = NOW_US - int(since_boot_s() * 1_000_000) - 10_000_000
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(Note("first", NOW_US, noted_us)))
    assert read_known(tmp_path, 7, NOW_US - 1) == Known(NOW_US, None)


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot_id": "first"}', b"[]"])
def test_a_damaged_note_is_none(tmp_path: Path, boot_id: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert read_known(tmp_path, 7, NOW_US) == Known(7, None)


def test_a_note_that_cannot_be_written_ends_nothing(tmp_path: Path, boot_id: Path) -> None:
    write_note(tmp_path / "nowhere", 5)
