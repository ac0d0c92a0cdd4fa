"""Goal: the log of an ordinary day answers an operator's questions, and what repeats does not fill it.

Method: a real node with rules and two clients with tokens, whose log file is read after it has stopped; a mirror whose
source is killed; and the counting of repeated events against a clock of the test.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog

from ockam.identity.rules.tokens import create_token
from ockam.identity.token import Token
from stream_client import blocking
from stream_client.errors import ClientError
from stream_node import __version__
from stream_node.node.logs import FIRST_S, LONGEST_S, RepeatedEvents
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine

RULES = """
[[rule]]
name = "alice"
who = ["token:alice"]
may = ["all"]
on = [""]
[[rule]]
name = "bob reads"
who = ["token:bob"]
may = ["read"]
on = ["orders"]
"""


def read_log(node: NodeProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.log_file.read_text().splitlines()]


def test_a_day_answers_who_deleted_why_refused_and_who_sends_most(tmp_path: Path) -> None:
    rules, tokens = tmp_path / "access.toml", tmp_path / "data" / "tokens.json"
    rules.write_text(RULES)
    alice, bob = (Token(create_token(tokens, name, int(time.time()))[0]) for name in ("alice", "bob"))
    settings = {"STREAM_NODE_RETENTION_INTERVAL_S": "60"}
    with NodeProcess(tmp_path / "data", arguments=["--access-rules", str(rules)], environment=settings) as node:
        with blocking.connect(node.address, token=alice) as client:
            client.create("orders").push(bytes(100_000))
            client.create("old").delete()
        with blocking.connect(node.address, token=bob) as client:
            stream = client.get_stream("orders")
            with pytest.raises(ClientError, match="access denied"):
                stream.push(b"x")
        assert node.stop() == 0
    lines = read_log(node)

    def only(event: str, **fields: str) -> dict[str, Any]:
        (found,) = [each for each in lines if each["event"] == event and fields.items() <= each.items()]
        return found

    assert only("stream_created", stream="old")["identity"] == "token:alice"
    assert only("stream_deleted", stream="old")["identity"] == "token:alice"
    refused = only("access_refused", identity="token:bob")
    assert (refused["right"], refused["name"]) == ("write", "orders")
    assert "no rule allows it" in refused["reason"]
    assert only("busiest_clients")["clients"][0].startswith("token:alice sent 100")
    # The start says with what, and the last line is short.
    started = only("started")
    assert (started["version"], started["addresses"]) == (__version__, [node.address])
    assert f"access_rules={rules} (--access-rules)" in started["settings"]
    assert "retention_interval_s=60.0 (STREAM_NODE_RETENTION_INTERVAL_S)" in started["settings"]
    assert len(json.dumps(lines[-1])) < 400
    assert lines[-1]["event"] == "stopped"
    # The audit log has who made the stream and who deleted it, too.
    audit = [json.loads(line) for line in (tmp_path / "data" / "audit.jsonl").read_text().splitlines()]
    acts = [(each["identity"], each["right"]) for each in audit if each.get("name") == "old"]
    assert acts == [("token:alice", "create"), ("token:alice", "delete")]


@pytest.mark.slow
def test_a_source_that_is_down_is_said_at_growing_intervals(command: CommandLine, tmp_path: Path) -> None:
    """The mirror tries many times; its log says so in a few lines, and the last one has the number."""
    with NodeProcess(tmp_path / "source") as source, NodeProcess(tmp_path / "mirror") as mirror:
        with blocking.connect(source.address) as client:
            client.create_partitioned("orders", 8)
        at = ("--node", mirror.address)
        assert command("mirror", "add", "orders", "--from", source.address, *at).code == 0
        source.kill()
        deadline_s = time.monotonic() + 30
        while (count := sum(each.get("repeated", 1) for each in read_log(mirror) if each["level"] == "warning")) < 20:
            assert time.monotonic() < deadline_s, count
            time.sleep(0.2)
        assert mirror.stop() == 0
    warnings = [each for each in read_log(mirror) if each["level"] == "warning"]
    assert len(warnings) < 15, warnings


def test_repeated_events_are_counted_exactly(tmp_path: Path) -> None:
    """Two events at random times of a day: what is written says together how often each came, at growing intervals."""
    now_s = 0.0
    repeated = RepeatedEvents(lambda: now_s)
    written: list[tuple[float, dict[str, Any]]] = []

    class Logger:
        """Puts events through the processor, as structlog does."""

        def warning(self, event: str, **fields: Any) -> None:
            try:
                written.append((now_s, dict(repeated(None, "warning", {"event": event, **fields}))))
            except structlog.DropEvent:
                return

    logger = Logger()
    for second in range(20_000):
        now_s = float(second)
        logger.warning("down", peer=f"a:{second}", reason=f"try {second}")
        if second % 7 == 0:
            logger.warning("down", peer="b:1", reason="try", partition=second % 2)
        repeated.tell(logger)
    repeated.tell(logger, is_end=True)
    for host, count in (("a", 20_000), ("b", 2_858)):
        times = [at_s for at_s, each in written if each["peer"].startswith(host)]
        assert sum(each.get("repeated", 1) for _, each in written if each["peer"].startswith(host)) == count
        assert len(times) < 45
    gaps = [after - before for before, after in pairwise(times)]
    assert min(FIRST_S, *gaps) >= 0
    assert max(gaps) <= 2 * LONGEST_S
    # After a quiet time the event is a new one; an event of another level is always written.
    now_s += 10 * LONGEST_S
    repeated.tell(logger)
    logger.warning("down", peer="a:1", reason="try")
    assert "repeated" not in written[-1][1]
    assert repeated(None, "info", {"event": "down"}) == repeated(None, "info", {"event": "down"})
