"""Goal: a publisher of blocks that goes, a source that lies and a damaged block are each named within ten seconds, on
the dashboard, by `status --check` and by an alert, and nothing else is red; until it is mended.

Method: real nodes, and a real Prometheus with the rules of `deploy/`, which says what fires.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import trio
import yaml

from stream_node.node.process import NodeProcess
from tests.block_node.backfill.served_blocks import chain, damage_blocks, publish
from tests.block_node.client.chains import chain as published_chain
from tests.cli.command import CommandLine
from tests.deploy.deployed import DEPLOY
from tests.stream_node.doors.dashboard.test_rehearsal import (
    BLOCK_PUBLISHER,
    NAMED_WITHIN_S,
    PATIENCE_S,
    Watched,
    kill,
    process,
    wait_until,
)

LISTENING = re.compile(r'msg="Listening on" address=(\S+)')


class Operator:
    """One who looks at the nodes by every means."""

    def __init__(self, prometheus: str, command: CommandLine) -> None:
        self._prometheus = prometheus
        self._command = command

    def firing(self) -> set[str]:
        answer = httpx.get(f"http://{self._prometheus}/api/v1/alerts", trust_env=False, timeout=PATIENCE_S).json()
        return {each["labels"]["alertname"] for each in answer["data"]["alerts"] if each["state"] == "firing"}

    def check(self, node: NodeProcess) -> tuple[int, set[str]]:
        """The exit code of the check, and the troubles that it names."""
        done = self._command("status", "--check", "troubles", "--node", node.address, "--json")
        found = {each["check"] for each in json.loads(done.stdout)["checks"] if each["level"] != "ok"}
        return done.code, found

    def sees(self, node: NodeProcess, kind: str, words: str, alerts: set[str], code: int = 2) -> bool:
        """Whether everything names this fault, and nothing else."""
        is_told = self.check(node) == (code, {kind}) and words in Watched(node).troubles()
        firing = self.firing()
        assert firing <= alerts, firing
        return is_told and bool(firing)

    def sees_nothing(self, *nodes: NodeProcess) -> bool:
        return not self.firing() and all(self.check(node) == (0, set()) for node in nodes)


@contextmanager
def prometheus(folder: Path, nodes: list[NodeProcess]) -> Iterator[str]:
    """A Prometheus that reads the nodes and evaluates the rules each second. Yields its address."""
    scrape = {"job_name": "stream-node", "static_configs": [{"targets": [node.http[0] for node in nodes]}]}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus/alerts.yml")],
        "scrape_configs": [scrape],
    }
    folder.mkdir()
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    options = f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(["prometheus", *options], stdout=log, stderr=log) as started,
    ):
        try:
            address = ""

            def listens() -> bool:
                nonlocal address
                found = LISTENING.search((folder / "log").read_text())
                address = found[1] if found else ""
                return bool(address)

            wait_until(listens, PATIENCE_S)
            yield address
        finally:
            started.terminate()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary)


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
def test_each_fault_of_a_chain_is_named_and_nothing_else(tmp_path: Path, command: CommandLine) -> None:
    true, false = chain(20), chain(20, seed=1)
    with ExitStack() as stack:

        def started(name: str, **settings: str) -> NodeProcess:
            environment = {f"STREAM_NODE_{key.upper()}": value for key, value in settings.items()}
            arguments = ["--http", "127.0.0.1:0", "--log-level", "error"]
            return stack.enter_context(NodeProcess(tmp_path / name, environment=environment, arguments=arguments))

        published, honest, liar = started("published"), started("honest"), started("liar")
        trio.run(publish, honest.address, true)
        sources = f"{honest.address},{liar.address}"
        filled = started("filled", backfill_block_node_sources=sources, backfill_scan_interval_secs="2")
        nodes = [published, filled]
        operator = Operator(stack.enter_context(prometheus(tmp_path / "prometheus", nodes)), command)
        publisher = stack.enter_context(process("-c", BLOCK_PUBLISHER, published.address))
        # All is well, and the node learns the rhythm of the publisher.
        time.sleep(24)
        wait_until(lambda: operator.sees_nothing(*nodes), PATIENCE_S)

        # A block is damaged. Its publisher mends it.
        damage_blocks(tmp_path / "published", 5)
        damaged = "blocks_damaged", "1 stored block is damaged or gone", {"StreamNodeBlocksDamaged"}
        wait_until(lambda: operator.sees(published, *damaged), NAMED_WITHIN_S)
        trio.run(publish, published.address, published_chain(200)[5:6])
        wait_until(lambda: operator.sees_nothing(*nodes), PATIENCE_S)

        # A source begins to lie. It is named while it is there, and the other one goes on.
        trio.run(publish, liar.address, false)
        lies = "block_sources_disagree", f"The block source {liar.address} has another chain"
        wait_until(lambda: operator.sees(filled, *lies, {"StreamNodeBlockSourcesDisagree"}), NAMED_WITHIN_S)
        assert command("block", "backfill", "run", "--node", filled.address).code == 1
        kill_data(liar, tmp_path / "liar")
        trio.run(publish, liar.address, true)
        wait_until(lambda: operator.sees_nothing(*nodes), PATIENCE_S)

        # The publisher is cut.
        kill(publisher)
        silent = "block_publishers_silent", "No block has come for"
        alerts = {"StreamNodeBlockPublishersSilent", "StreamNodeBlockPublisherGone"}
        wait_until(lambda: operator.sees(published, *silent, alerts, code=1), NAMED_WITHIN_S)


def kill_data(node: NodeProcess, directory: Path) -> None:
    """Make the node new, at its address."""
    node.stop()
    shutil.rmtree(directory)
    node.start()
