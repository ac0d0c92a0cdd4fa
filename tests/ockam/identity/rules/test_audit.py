"""Goal: the audit log tells every kind of refusal, and no flood fills the disk. Method: real files, our own clock."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path

import pytest
import structlog
import structlog.testing

from ockam.identity.rules.audit import FILE_MODE, REPORTED_INTERVALS, TEXT_CHARACTERS_MAX, Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.rules.rights import Right
from stream_service.extensions import TRUNCATE, BeforeIndex, TruncateRequest
from stream_service.protocol import PULL, PullRequest
from tests.ockam.identity.rules.guarded_node import guarded, may


class Clock:
    us = 1_790_000_000_123_456

    def __call__(self) -> int:
        return self.us


def lines(file: Path) -> list[dict[str, object]]:
    """The lines without their seals."""
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert all(line.pop("seal") for line in found)
    return found


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


def test_the_name_of_a_file_that_is_not_utf_8_is_written(tmp_path: Path) -> None:
    """Goal: the reason why a file of rules is not taken names the file, whatever bytes it has. Method: such a name, as
    Python decodes it; it ended the node, whose task that watches the rules got UnicodeEncodeError."""
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    audit.note(Entry("rules_not_taken", reason=os.fsdecode(b"/r/\xff.toml is not TOML")))
    audit.close()
    assert [line["reason"] for line in lines(file)] == ["/r/\\udcff.toml is not TOML"]


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


def test_texts_of_peers_are_cut(tmp_path: Path) -> None:
    """A name of 1,024 control characters would be a line of many kilobytes."""
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    audit.refused(Entry("refused", "token:spark", name="\1" * 1024, reason="r" * 5_000))
    audit.close()
    (line,) = lines(file)
    assert line["name"] == "\1" * TEXT_CHARACTERS_MAX + "…"
    assert file.stat().st_size < 3_000


def test_a_log_that_cannot_be_opened_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        Audit(tmp_path / "none" / "audit.jsonl", Clock())


def test_a_full_disk_is_told_again_and_again() -> None:
    """Lines are lost and counted. The node's log says so at once, and then once in a minute."""
    with structlog.testing.capture_logs() as logs:
        audit = Audit(Path("/dev/full"), Clock())
        for _ in range(3 * REPORTED_INTERVALS // 2):
            audit.note(Entry("one"))
            audit.end_interval()
        audit.close()
    assert audit.failed == 3 * REPORTED_INTERVALS // 2
    told = [(line["event"], line["log_level"], line["reason"]) for line in logs]
    assert told == 2 * [("audit_not_written", "error", "No space left on device")]


def test_after_a_full_disk_the_log_says_how_many_lines_it_lost(tmp_path: Path) -> None:
    """A full disk takes the beginning of a line. The torn line stays alone, and all later lines are whole. The limit
    on the size of files is the operating system's, as a full disk would be."""
    file = tmp_path / "audit.jsonl"
    audit = Audit(file, Clock())
    audit.note(Entry("one"))
    size = file.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        for _ in range(3):
            audit.note(Entry("lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    audit.note(Entry("two"))
    audit.close()
    first, torn, lost, two = file.read_text().splitlines()
    assert (json.loads(first)["event"], torn, json.loads(two)["event"]) == ("one", '{"time":"2', "two")
    assert (json.loads(lost)["event"], json.loads(lost)["count"]) == ("audit_lost", 3)


def test_a_torn_last_line_of_an_earlier_run_stays_alone(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"event": "one"}\n{"eve')
    audit = Audit(file, Clock())
    audit.note(Entry("two"))
    audit.close()
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()[::2]] == ["one", "two"]


async def test_a_node_whose_audit_log_is_full_goes_on(tmp_path: Path) -> None:
    """Requests are refused and done as before, and the statistics count the lost lines."""
    rules = may(Right.CREATE | Right.WRITE | Right.DELETE)
    async with guarded(tmp_path, rules, audit_log="/dev/full") as node:
        peer = await node.running.peer()
        route = await peer.create("orders")
        await peer.push(route, b"one")
        assert "read" in await peer.refused(route, PULL.encode_request(PullRequest(1, 0, 1)))
        answer = await peer.ask(route, TRUNCATE.encode_request(TruncateRequest(1, BeforeIndex(1))))
        assert TRUNCATE.is_in(answer.payload)
        access = node.running.statistics().access
        assert access is not None
        # That it has started, the refusal, and the act.
        assert access.audit_failed >= 3
