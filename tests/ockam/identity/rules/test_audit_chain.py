"""Goal: a changed, lost or moved line of the audit log is told, and what a crash, a full disk, a rotation or an older
version leaves is not told as such.

Method: real files; every byte is changed, every line removed, every two neighbours swapped. Restarts and rotations are
as the node and logrotate do them. What is told is compared with what was done.
"""

from __future__ import annotations

import gzip
import json
import re
import resource
from pathlib import Path
from zlib import crc32

import pytest

from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import AuditContent, Entry, audit_files, examine_audit
from stream_node.care.doctor_access import check_audit
from stream_node.node.config import Config
from tests.support.data_dir import overwrite

OLD = b'{"time":"2026-01-01T00:00:00.000Z","event":"admitted","identity":"token:a","count":3}\n'
"""A line of a version without seals."""


class Clock:
    """A second passes at each look, so files are in the order of their lines."""

    us = 1_790_000_000_000_000

    def __call__(self) -> int:
        Clock.us += 1_000_000
        return Clock.us


def write(file: Path, *events: str, chain: str = "w00") -> None:
    """What one run of a process writes, which stops in good order."""
    audit = Audit(file, Clock(), chain)
    for event in events:
        audit.note(Entry(event, "token:a", name='a ","seal":"w00:9:00000000:00000000"}'))
    audit.close()


def examined(file: Path) -> AuditContent:
    return examine_audit(audit_files(file))


def counts(file: Path) -> tuple[int, int, int, int]:
    found = examined(file)
    return found.problem_count, found.sealed, found.unsealed, found.cut


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three runs: a single process, then two workers whose lines alternate, then one that has no line in the end."""
    file = tmp_path / "audit.jsonl"
    write(file, "one", "two")
    first, second = Audit(file, Clock(), "w00"), Audit(file, Clock(), "w01")
    for event in ("three", "four"):
        for each in (first, second):
            each.refused(Entry(event))
            each.refused(Entry(event))
            each.end_interval()
    first.close()
    second.close()
    write(file, "five")
    assert counts(file) == (0, 11, 0, 0)
    return file


def test_one_changed_byte_anywhere_is_told(tmp_path: Path) -> None:
    """Also in the last line of a process that has ended."""
    file = tmp_path / "audit.jsonl"
    for event, chain in (("one", "w00"), ("two", "w01"), ("three", "w00")):
        write(file, event, chain=chain)
    content = file.read_bytes()
    for offset, byte in enumerate(content):
        for other in {byte ^ 1, ord("\n"), ord('"')} - {byte}:
            overwrite(file, content[:offset] + bytes([other]) + content[offset + 1 :])
            found = examine_audit([file])
            assert 1 <= found.problem_count <= 2, (offset, other, found)


def test_a_line_that_is_removed_is_told_unless_it_is_the_last_of_its_chain(file: Path) -> None:
    content = file.read_bytes().splitlines(keepends=True)
    last_of_w01 = max(place for place, line in enumerate(content) if b"w01:" in line)
    for place in range(len(content)):
        left = content[:place] + content[place + 1 :]
        overwrite(file, b"".join(left))
        is_last = place in (last_of_w01, len(content) - 1)
        assert examined(file).problem_count == (0 if is_last else 1), place


def test_two_lines_that_are_swapped_are_told(file: Path) -> None:
    content = file.read_bytes().splitlines(keepends=True)
    chain = re.compile(rb'"seal":"(w0\d):(\d+)')
    swapped = 0
    for place in range(len(content) - 1):
        one, two = content[place : place + 2]
        overwrite(file, b"".join([*content[:place], two, one, *content[place + 2 :]]))
        is_one_chain = chain.findall(one)[0][0] == chain.findall(two)[0][0]
        # Lines of two processes have no order.
        assert bool(examined(file).problem_count) is is_one_chain, place
        swapped += is_one_chain
    assert swapped >= 4


def test_the_last_lines_of_an_earlier_run_are_missed(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    write(file, "one", "two", "three")
    write(file, "four")
    content = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(content[0] + content[3])
    found = examined(file)
    assert found.problems == [f"{file}, line 2: lines of w00 that are missing before it: 2"]


def test_lines_that_are_taken_from_a_running_node_are_missed_at_its_next_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    for event in ("one", "two", "three"):
        audit.note(Entry(event))
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    audit.note(Entry("four"))
    audit.close()
    assert counts(file) == (1, 2, 0, 0)


def test_a_copied_line_and_one_without_a_seal_are_told(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content + content.splitlines(keepends=True)[1])
    assert examined(file).problem_count == 1
    file.write_bytes(content + OLD)
    assert "has no seal" in examined(file).problems[0]


def test_lines_of_an_older_version_come_before_the_chain(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(2 * OLD)
    write(file, "one", "two")
    assert counts(file) == (0, 2, 2, 0)


@pytest.mark.parametrize("left", [1, 5, 60, -3, -1])
def test_a_line_that_a_crash_has_cut_is_no_damage_and_the_chain_goes_on(tmp_path: Path, left: int) -> None:
    file = tmp_path / "audit.jsonl"
    write(file, "one", "two")
    content = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(content[0] + content[1][:left])
    is_whole = left == -1
    assert counts(file) == (0, 1 + is_whole, 0, not is_whole)
    write(file, "three")
    assert counts(file) == (0, 2 + is_whole, 0, not is_whole)
    assert json.loads(file.read_bytes().splitlines()[-1])["event"] == "three"


@pytest.mark.parametrize("room", [0, 10, "all but the end"])
def test_a_full_disk_leaves_no_gap(tmp_path: Path, room: int | str) -> None:
    """The limit on the size of files is the operating system's, as a full disk would be."""
    file = tmp_path / "audit.jsonl"
    audit, other = Audit(file, Clock()), Audit(file, Clock(), "w01")
    audit.note(Entry("one"))
    size = file.stat().st_size
    audit.note(Entry("two"))
    bytes_max = 2 * file.stat().st_size - size - 1 if isinstance(room, str) else file.stat().st_size + room
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        for _ in range(2):
            audit.note(Entry("end"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # The other process does not know that the last line is torn.
    other.note(Entry("other"))
    audit.note(Entry("three"))
    for each in (audit, other):
        each.close()
    assert examined(file).problems == []
    assert b'"event":"audit_lost"' in file.read_bytes()


def test_rotated_files_are_one_chain(tmp_path: Path) -> None:
    """Renamed while the node runs, and compressed. A file that is lost between others is told; the oldest may go."""
    file = tmp_path / "audit.jsonl"
    processes = [Audit(file, Clock(), chain) for chain in ("w00", "w01")]
    for day in range(4):
        for each in processes:
            each.note(Entry(f"day {day}"))
        for number in range(day, 0, -1):
            (tmp_path / f"audit.jsonl.{number}").rename(tmp_path / f"audit.jsonl.{number + 1}")
        file.rename(tmp_path / "audit.jsonl.1")
        processes[0].note(Entry("late", reason="the node is not told yet"))
        for each in processes:
            each.reopen()
            each.note(Entry("begin"))
            # A hangup without a rotation changes nothing.
            each.reopen()
    for each in processes:
        each.close()
    oldest, middle = tmp_path / "audit.jsonl.4", tmp_path / "audit.jsonl.2"
    (tmp_path / "audit.jsonl.3.gz").write_bytes(gzip.compress((tmp_path / "audit.jsonl.3").read_bytes()))
    (tmp_path / "audit.jsonl.3").unlink()
    (tmp_path / "audit.jsonl.bak").write_text("a file of somebody else")
    assert counts(file) == (0, 20, 0, 0)
    oldest.unlink()
    assert examined(file).problems == []
    lines = middle.read_bytes()
    middle.unlink()
    assert examined(file).problem_count == 2, "one for each process"
    middle.write_bytes(lines)
    # The first line of the oldest file.
    third = gzip.decompress((tmp_path / "audit.jsonl.3.gz").read_bytes()).splitlines(keepends=True)
    (tmp_path / "audit.jsonl.3.gz").write_bytes(gzip.compress(b"".join(third[1:])))
    assert ["the lines before it are missing" in each for each in examined(file).problems] == [True]
    (tmp_path / "audit.jsonl.3.gz").write_bytes(gzip.compress(b"".join(third))[:-9])
    assert check_audit(Config(data_dir=str(tmp_path))).status == "wrong"


def test_a_file_that_was_moved_away_while_the_node_was_stopped_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    write(file, "one", "two")
    file.rename(tmp_path / "audit.jsonl-20261128")
    write(file, "three", "four")
    assert counts(file) == (0, 4, 0, 0)
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[1])
    assert examined(file).problem_count == 1


def test_a_log_that_is_no_file_is_written_and_not_examined() -> None:
    write(Path("/dev/null"), "one")
    assert audit_files(Path("/dev/null")) == audit_files(Path("/nowhere/audit.jsonl")) == []


def test_a_seal_with_a_number_that_nobody_wrote_is_a_changed_line(file: Path) -> None:
    """Claim: somebody who forges a line cannot make the check of the log fail, nor the start of a node. Method: a
    number with more digits than `int` takes, under its correct checksum."""
    head = b'{"time":"9","seal":"w00:%s:00000000:' % (b"1" * 5_000)
    with file.open("ab") as opened:
        opened.write(b'%s%08x"}\n' % (head, crc32(head)))
    assert examined(file).problems == [f"{file}, line 12: it is not what was written"]
    write(file, "more")
