"""Goal: whatever fails is named at once, with what to do, on the dashboard and by the alerts, until it is mended.

Method: a real node on a small file system, with a real consumer, a publisher of messages and one of blocks, each a
process. The consumer and the publishers are killed, and the file system is filled. The page and `/metrics` are read
until both name the fault; the expressions of the alert rules are evaluated here on the samples. Then all is mended.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_client.blocking import SavedIndexes, connect
from stream_node.node.process import NodeProcess
from tests.deploy.deployed import read_yaml
from tests.stream_node.doors.dashboard.dashboard_page import HtmlPage
from tests.support.command import ROOT
from tests.support.small_disk import mounted_disk

NAMED_WITHIN_S = 10.0
"""The promise."""
PATIENCE_S = 60.0
"""For everything that has no promise."""
RULES = {rule["alert"]: rule for group in read_yaml("prometheus/alerts.yml")["groups"] for rule in group["rules"]}
EXPRESSION = re.compile(r'(?P<name>\w+)(?:\{kind="(?P<kind>\w+)"\})? (?P<operator>>|==) (?P<number>\d+)')

PUBLISHER = """
import sys, time
from stream_client.blocking import connect
with connect(sys.argv[1]) as client:
    stream = client.create("steady")
    while True:
        stream.push(b"x")
        time.sleep(0.5)
"""
BLOCK_PUBLISHER = """
import sys, time
from block_node.client.blocking import connect
from tests.block_node.client.chains import chain, outgoing
blocks = chain(200)
with connect(sys.argv[1]) as client, client.publisher() as publisher:
    for block in blocks:
        publisher.send(outgoing(block))
        publisher.flush()
        time.sleep(0.5)
"""


class Watched:
    """What an operator sees of a node."""

    def __init__(self, node: NodeProcess) -> None:
        self._http = f"http://{node.http[0]}"

    def troubles(self) -> str:
        """What the dashboard calls wrong now."""
        answer = httpx.get(f"{self._http}/dashboard", trust_env=False, timeout=PATIENCE_S)
        text = HtmlPage(answer.text).text
        return text[text.index("What is wrong now") : text.index("The node")]

    def firing(self, alert: str) -> list[dict[str, str]]:
        """The labels of the series for which this alert fires now."""
        rule = RULES[alert]
        assert "for" not in rule, "the alert waits"
        wanted = EXPRESSION.fullmatch(rule["expr"])
        assert wanted is not None, rule["expr"]
        number = float(wanted["number"])
        text = httpx.get(f"{self._http}/metrics", trust_env=False, timeout=PATIENCE_S).text
        return [
            sample.labels
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == wanted["name"] and sample.labels.get("kind") == wanted["kind"]
            if (sample.value > number if wanted["operator"] == ">" else sample.value == number)
        ]


def wait_until(condition: Callable[[], bool], within_s: float) -> None:
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s, "this took too long"
        time.sleep(0.2)


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this project, killed at the end."""
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


def kill(started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGKILL)
    started.wait(PATIENCE_S)


@pytest.mark.soak
def test_each_fault_is_named_within_ten_seconds_until_it_is_mended(tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(mounted_disk(tmp_path / "disk", "320m"))
        node = stack.enter_context(NodeProcess(disk / "data", arguments=["--http", "127.0.0.1:0"]))
        client = stack.enter_context(connect(node.address))
        watched = Watched(node)
        orders = client.create("orders")
        consume = ("-m", "stream_node", "consume", "orders", "--client", "billing", "--follow", "--node", node.address)
        publish, publish_blocks = ("-c", PUBLISHER, node.address), ("-c", BLOCK_PUBLISHER, node.address)

        def position() -> int:
            return SavedIndexes(client, "billing").get("orders")

        def named(words: str, alert: str) -> Callable[[], bool]:
            """Whether both the dashboard and the alert say so."""
            return lambda: words in watched.troubles() and bool(watched.firing(alert))

        def mended(words: str, alert: str) -> Callable[[], bool]:
            return lambda: words not in watched.troubles() and not watched.firing(alert)

        # All is well, and the node learns the rhythm of the publishers.
        consumer = stack.enter_context(process(*consume))
        publisher = stack.enter_context(process(*publish))
        block_publisher = stack.enter_context(process(*publish_blocks))
        for number in range(3):
            orders.push(f"order {number}")
        wait_until(lambda: position() == 3, PATIENCE_S)
        # The consumer has a habit, too: it reads each order at once, and orders come all the time.
        stack.enter_context(process("-c", PUBLISHER.replace("steady", "orders"), node.address))
        time.sleep(24)
        assert "Nothing." in watched.troubles()

        # A consumer is killed, and messages wait for it.
        kill(consumer)
        orders.push("order 3")
        stuck = "The consumer billing is stuck", "StreamNodeConsumerStuck"
        wait_until(named(*stuck), NAMED_WITHIN_S)
        assert watched.firing(stuck[1]) == [{"client": "billing", "stream": "orders"}]
        stack.enter_context(process(*consume))
        wait_until(mended(*stuck), PATIENCE_S)

        # The publishers are cut.
        kill(publisher)
        silent = "The publisher of steady is silent", "StreamNodePublisherSilent"
        wait_until(named(*silent), NAMED_WITHIN_S)
        assert watched.firing(silent[1]) == [{"stream": "steady"}]
        stack.enter_context(process(*publish))
        wait_until(mended(*silent), PATIENCE_S)
        kill(block_publisher)
        no_blocks = "No block has come for", "StreamNodeBlockPublishersSilent"
        wait_until(named(*no_blocks), NAMED_WITHIN_S)

        # The disk is filled.
        ballast = disk / "ballast"
        with ballast.open("wb") as file:
            file.write(bytes(280 * 1024 * 1024))
        full = "The disk is full", "StreamNodeRefusesPushes"
        wait_until(named(*full), NAMED_WITHIN_S)
        ballast.unlink()
        wait_until(mended(*full), PATIENCE_S)
        orders.push("order 4")
