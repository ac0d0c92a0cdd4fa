"""Goal: the audit log tells every kind of refusal, and no flood fills the disk. Method: real files, our own clock."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from access.audit import FILE_MODE, IDENTITIES_MAX, IDENTITY_LINES_MAX, LINES_MAX, Audit, Entry


class Clock:
    us = 1_790_000_000_123_456

    def __call__(self) -> int:
        return self.us


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_line_says_who_did_what_and_when(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    audit.refused(Entry("refused", "token:spark", "10.0.0.1:4711", "write", 'a "name"\n', "rule", "stream_push", "why"))
    audit.close()
    assert lines(file) == [
        {
            "time": "2026-09-21T14:13:20.123Z",
            "event": "refused",
            "identity": "token:spark",
            "peer": "10.0.0.1:4711",
            "right": "write",
            "name": 'a "name"\n',
            "rule": "rule",
            "request": "stream_push",
            "reason": "why",
        }
    ]
    assert stat.S_IMODE(file.stat().st_mode) & ~FILE_MODE == 0


def test_equal_refusals_of_one_second_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    for _ in range(1_000):
        audit.refused(Entry("refused", "anonymous", right="read", name="a"))
    audit.refused(Entry("refused", "anonymous", right="read", name="b"))
    audit.end_interval()
    audit.refused(Entry("refused", "anonymous", right="read", name="b"))
    audit.close()
    found = [(line["event"], line["name"], line.get("count", 1)) for line in lines(file)]
    assert found == [("refused", "a", 1), ("refused", "b", 1), ("refused_again", "a", 999), ("refused", "b", 1)]


def test_different_refusals_of_one_second_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    for number in range(5_000):
        host = f"10.0.{number % 100}.1"
        audit.refused(Entry("refused", "anonymous", f"{host}:{number}", right="read", name=str(number)))
    audit.end_interval()
    found = lines(file)
    assert len(found) == LINES_MAX + IDENTITIES_MAX + 1
    more = [line for line in found if line["event"] == "refused_more"]
    assert sum(int(str(line["count"])) for line in more) == 5_000 - LINES_MAX
    assert [line["identity"] for line in more] == IDENTITIES_MAX * ["anonymous"] + ["others"]
    audit.close()


def test_a_flood_of_one_identity_hides_nobody_elses_refusal(tmp_path: Path) -> None:
    """A flooding certificate, and a flooding host without one. How many of whom were left out is told."""
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    for number in range(1_000):
        audit.refused(Entry("refused", "certificate:flood", f"10.0.0.1:{number}", "read", str(number)))
        audit.refused(Entry("refused", "anonymous", f"10.0.0.2:{number}", "read", str(number)))
    audit.refused(Entry("refused", "certificate:alice", "10.0.0.1:5", "read", "a"))
    audit.refused(Entry("refused", "anonymous", "10.0.0.3:5", "read", "a"))
    audit.close()
    found = lines(file)
    peers = [line["peer"] for line in found if line["event"] == "refused"]
    assert (len(peers), peers[-2:]) == (2 * IDENTITY_LINES_MAX + 2, ["10.0.0.1:5", "10.0.0.3:5"])
    assert [(line["event"], line["identity"], line.get("peer"), line["count"]) for line in found[-2:]] == [
        ("refused_more", "certificate:flood", None, 1_000 - IDENTITY_LINES_MAX),
        ("refused_more", "anonymous", "10.0.0.2", 1_000 - IDENTITY_LINES_MAX),
    ]


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    """As logrotate does it. Until the node is told, lines go on into the moved file."""
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    audit.note(Entry("one"))
    file.rename(tmp_path / "audit.jsonl.1")
    audit.note(Entry("two"))
    audit.reopen()
    audit.note(Entry("three"))
    audit.close()
    assert [line["event"] for line in lines(tmp_path / "audit.jsonl.1")] == ["one", "two"]
    assert [line["event"] for line in lines(file)] == ["three"]


def test_a_log_that_cannot_be_opened_or_written_is_told(tmp_path: Path) -> None:
    """Opening fails loudly. A full disk later is counted, and refusing goes on."""
    with pytest.raises(OSError, match="none"):
        Audit(tmp_path / "none" / "audit.jsonl", Clock())
    audit = Audit(Path("/dev/full"), Clock())
    audit.note(Entry("one"))
    audit.note(Entry("two"))
    assert audit.failed == 2
    audit.close()
