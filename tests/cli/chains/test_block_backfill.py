"""`block backfill status`, `run` and `sources` against nodes of their own: one has what the other lacks, and a third
one knows only a source that is not there.

They look for gaps every hour, so that what is filled is filled because it was asked to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised

QUIET = ("--log-level", "error")


@pytest.fixture
def nodes(tmp_path: Path, command: CommandLine) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A node with six blocks, and one that has none and knows the first one."""
    with NodeProcess(tmp_path / "one", arguments=QUIET) as one:
        command("block", "generate", tmp_path / "chain", "--blocks", "6", "--json").read(promised.ChainGenerated)
        command("block", "publish", tmp_path / "chain", "--node", one.address, "--json").read(promised.BlocksPublished)
        environment = {
            "STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": one.address,
            "STREAM_NODE_BACKFILL_SCAN_INTERVAL_SECS": "3600",
        }
        with NodeProcess(tmp_path / "two", arguments=QUIET, environment=environment) as two:
            yield one, two


def test_a_run_fills_what_is_missing(nodes: tuple[NodeProcess, NodeProcess], command: CommandLine) -> None:
    one, two = nodes
    done = command("block", "backfill", "run", "--node", two.address, "--json").read(promised.BackfillRun)
    assert (done.state, done.missing, done.queue, done.blocks_stored) == ("idle", 0, 0, 6)
    status = command("block", "backfill", "status", "--node", two.address, "--json").read(promised.BackfillStatus)
    assert (status.blocks_fetched, status.blocks_stored, status.gaps, status.gaps_detected) == (6, 6, [], 1)
    found = (
        command("block", "backfill", "sources", "--node", two.address, "--json").read(promised.BackfillSources).sources
    )
    assert [(each.source, each.priority, each.blocks) for each in found] == [(one.address, 0, 6)]
    assert (found[0].first_block, found[0].last_block, found[0].failures) == (0, 5, 0)
    assert "0 being fetched, 0 missing" in command("block", "backfill", "status", "--node", two.address).text
    assert one.address in command("block", "backfill", "sources", "--node", two.address).text
    metrics = command("block", "backfill", "status", "--metrics", "--node", two.address).text
    assert "# TYPE backfill_blocks_stored counter\nbackfill_blocks_stored 6.0\n" in metrics
    assert command("block", "backfill", "run", "--node", two.address).text.startswith("0 blocks stored, 0 missing")


def test_a_source_that_is_not_there_is_told(tmp_path: Path, command: CommandLine) -> None:
    """No source of this node answers, so that a short time to wait for one spoils nothing."""
    environment = {
        "STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": "127.0.0.1:1@1",
        "STREAM_NODE_BACKFILL_SCAN_INTERVAL_SECS": "3600",
        "STREAM_NODE_BACKFILL_FETCH_TIMEOUT_SECS": "0.1",
    }
    with NodeProcess(tmp_path / "node", arguments=QUIET, environment=environment) as node:
        done = command("block", "backfill", "run", "--node", node.address)
        assert done.code == 1
        assert done.text == "0 blocks stored, unknown how many are missing\n"
        assert "unknown how many are missing: 127.0.0.1:1: " in done.stderr
        status = command("block", "backfill", "status", "--node", node.address, "--json").read(promised.BackfillStatus)
        assert (status.state, status.missing, status.blocks_stored) == ("error", None, 0)
        assert "unreachable" in (status.problem or "")
        metrics = command("block", "backfill", "status", "--metrics", "--node", node.address).text
        assert "backfill_failing 1.0\n" in metrics
        assert "backfill_missing_blocks " not in metrics.replace("# TYPE backfill_missing_blocks ", "").replace(
            "# HELP backfill_missing_blocks ", ""
        )
        (found,) = (
            command("block", "backfill", "sources", "--node", node.address, "--json")
            .read(promised.BackfillSources)
            .sources
        )
        assert (found.source, found.priority, found.blocks, found.first_block) == ("127.0.0.1:1", 1, 0, None)
        assert found.failures
        assert "unreachable" in (found.last_error or "")


def test_a_node_without_sources_says_so(at_node: CommandLine) -> None:
    assert "no sources" in at_node("block", "backfill", "run").failed(1)
    status = at_node("block", "backfill", "status", "--json").read(promised.BackfillStatus)
    assert (status.state, status.queue, status.missing) == ("off", 0, None), "nobody has looked"
    assert "\nbackfill_missing_blocks " not in at_node("block", "backfill", "status", "--metrics").text
