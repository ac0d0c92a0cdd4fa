"""Goal: the demo's proof finds each broken promise, and the demo kills its store while pushes are on their way.

Method: the proof is pure, so each promise is broken once in a small log that keeps them all; then the real
command.
"""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream_node.demo.parts import DemoProof, prove, run_guarded

TEXT = Path(email.__file__).parent
UNDER_WAY = 1


class Evidence(msgspec.Struct):
    """What `prove` compares. Two partitions; in the first, one push is stored again, as its confirm was lost."""

    confirmed: dict[int, list[tuple[int, bytes]]]
    stored: dict[int, dict[int, bytes]]
    consumed: list[tuple[int, int, bytes]]

    def prove(self, under_way: int = UNDER_WAY) -> DemoProof:
        return prove(self.confirmed, self.stored, self.consumed, under_way)


@pytest.fixture
def evidence() -> Evidence:
    stored = {0: {0: b"a", 1: b"b", 2: b"b", 3: b"c"}, 1: {0: b"x", 1: b"y"}}
    confirmed = {0: [(0, b"a"), (2, b"b"), (3, b"c")], 1: [(0, b"x"), (1, b"y")]}
    consumed = [(partition, index, data) for partition, kept in stored.items() for index, data in kept.items()]
    return Evidence(deepcopy(confirmed), deepcopy(stored), consumed)


def test_kept_promises_are_counted(evidence: Evidence) -> None:
    assert evidence.prove() == DemoProof(5, 6, 1, 6, 0, ())


def test_a_message_read_twice_breaks_nothing(evidence: Evidence) -> None:
    evidence.consumed.append((1, 0, b"x"))
    assert evidence.prove() == DemoProof(5, 6, 1, 6, 1, ())


def test_a_confirmed_message_that_is_lost(evidence: Evidence) -> None:
    del evidence.stored[1][1]
    evidence.consumed.remove((1, 1, b"y"))
    assert evidence.prove().broken == ("partition 1 index 1: confirmed, but not stored as pushed",)


def test_a_confirmed_message_that_is_stored_otherwise(evidence: Evidence) -> None:
    evidence.stored[1] = {0: b"x", 1: b"x"}
    evidence.consumed[-1] = (1, 1, b"x")
    assert evidence.prove().broken == ("partition 1 index 1: confirmed, but not stored as pushed",)


def test_confirms_out_of_order(evidence: Evidence) -> None:
    evidence.confirmed[1].reverse()
    assert evidence.prove().broken == ("partition 1: confirmed out of order",)


def test_one_index_confirmed_twice(evidence: Evidence) -> None:
    evidence.confirmed[1].append((1, b"y"))
    assert evidence.prove().broken == ("partition 1: confirmed out of order",)


def test_a_message_that_nobody_pushed(evidence: Evidence) -> None:
    evidence.stored[0][1] = b"stranger"
    evidence.consumed[1] = (0, 1, b"stranger")
    assert evidence.prove().broken == ("partition 0: 1 stored messages that nobody pushed",)


def test_a_hole(evidence: Evidence) -> None:
    del evidence.stored[0][1]
    evidence.consumed.remove((0, 1, b"b"))
    assert evidence.prove().broken == ("partition 0: holes between the stored indexes",)


def test_a_stored_message_that_was_not_consumed(evidence: Evidence) -> None:
    evidence.consumed.remove((0, 3, b"c"))
    assert evidence.prove().broken == ("1 stored messages were not consumed, the first at (0, 3)",)


def test_a_message_consumed_with_other_data(evidence: Evidence) -> None:
    evidence.consumed[0] = (0, 0, b"z")
    assert evidence.prove().broken == ("partition 0 index 0: what was consumed is not what is stored",)


def test_more_stored_again_than_were_on_their_way(evidence: Evidence) -> None:
    proof = evidence.prove(under_way=0)
    assert proof.broken == ("1 messages are stored again, and 0 were on their way at the kill",)


def run_demo(input_dir: Path) -> tuple[dict[str, Any], int]:
    """The proof, and how many pushes were on their way at the kill."""
    command = [sys.executable, "-m", "stream_node", "demo", "--no-export", "--json", "--input-dir", str(input_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = re.search(r"([\d,]+)\s+on\s+their\s+way", done.stderr)
    assert said is not None, done.stderr
    proof: dict[str, Any] = json.loads(done.stdout)["proof"]
    return proof, int(said[1].replace(",", ""))


@pytest.mark.soak
def test_the_demo_of_one_line(tmp_path: Path) -> None:
    """So little that nothing would be on its way at the kill, were it not held back until then."""
    (tmp_path / "one.txt").write_text("the only line\n")
    proof, under_way = run_demo(tmp_path)
    assert (proof["broken"], proof["confirmed"], under_way) == ([], 1, 1)


def test_the_part_with_tls_and_rules(tmp_path: Path) -> None:
    """The reader gets all messages, also empty ones; each intruder is refused for its own reason, and audited."""
    found = run_guarded(tmp_path, [b"a line", b"", bytes(10_000)] * 100)
    assert found.broken == ()
    assert (found.messages, found.read, found.audited) == (300, 300, 3)
    for reason, expected in zip(found.refused, ("write on", "certificate:eve", "client certificate"), strict=True):
        assert expected in reason


def test_an_intruder_who_is_let_in_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stream_node.demo.parts.RULES", (("publisher", ("create", "write")), ("reader", ("read", "write")))
    )
    assert "the reader pushed" in run_guarded(tmp_path, [b"a line"]).broken[0]
