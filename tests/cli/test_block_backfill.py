"""`block backfill status`, `run` and `sources` against two nodes of their own, one of which has what the other lacks.

The second one looks for gaps every hour, so that what is filled is filled because it was asked to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.process import NodeProcess
from tests.cli.block_schemas import BackfillRun, BackfillSources, BackfillStatus, BlocksPublished, ChainGenerated
from tests.cli.command import CommandLine

QUIET = ("--log-level", "error")


@pytest.fixture
def nodes(tmp_path: Path, command: CommandLine) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A node with six blocks, and one that has none and knows the first one and a node that is not there."""
    with NodeProcess(tmp_path / "one", arguments=QUIET) as one:
        command("block", "generate", tmp_path / "chain", "--blocks", "6", "--json").read(ChainGenerated)
        command("block", "publish", tmp_path / "chain", "--node", one.address, "--json").read(BlocksPublished)
        environment = {
            "STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": f"{one.address},127.0.0.1:1@1",
            "STREAM_NODE_BACKFILL_SCAN_INTERVAL_SECS": "3600",
            "STREAM_NODE_BACKFILL_FETCH_TIMEOUT_SECS": "1",
        }
        with NodeProcess(tmp_path / "two", arguments=QUIET, environment=environment) as two:
            yield one, two


def test_a_run_fills_what_is_missing(nodes: tuple[NodeProcess, NodeProcess], command: CommandLine) -> None:
    one, two = nodes
    done = command("block", "backfill", "run", "--node", two.address, "--json").read(BackfillRun)
    assert (done.state, done.missing, done.queue, done.blocks_stored) == ("idle", 0, 0, 6)
    status = command("block", "backfill", "status", "--node", two.address, "--json").read(BackfillStatus)
    assert (status.blocks_fetched, status.blocks_stored, status.gaps, status.gaps_detected) == (6, 6, [], 1)
    found = command("block", "backfill", "sources", "--node", two.address, "--json").read(BackfillSources).sources
    assert [(each.source, each.priority, each.blocks) for each in found] == [(one.address, 0, 6), ("127.0.0.1:1", 1, 0)]
    assert (found[0].first_block, found[0].last_block, found[0].failures) == (0, 5, 0)
    assert found[1].failures
    assert "unreachable" in (found[1].last_error or "")
    assert "0 being fetched, 0 missing" in command("block", "backfill", "status", "--node", two.address).text
    assert one.address in command("block", "backfill", "sources", "--node", two.address).text
    metrics = command("block", "backfill", "status", "--metrics", "--node", two.address).text
    assert "# TYPE backfill_blocks_stored untyped\nbackfill_blocks_stored 6.0\n" in metrics
    assert command("block", "backfill", "run", "--node", two.address).text.startswith("0 blocks stored, 0 missing")


def test_a_node_without_sources_says_so(at_node: CommandLine) -> None:
    assert "no sources" in at_node("block", "backfill", "run").failed(1)
    status = at_node("block", "backfill", "status", "--json").read(BackfillStatus)
    assert (status.state, status.queue) == ("off", 0)
