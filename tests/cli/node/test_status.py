"""Goal: `stream-node status` tells how a node stands, and its exit code tells a monitoring program.

Method: a real node with a consumer that is behind; each check just below and just above its limit; and no node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ockam.identity.rules.rights import Right
from stream_client import blocking
from stream_node.cli.node.status import Check, parse_check
from stream_node.cli.values import UsageError
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.ockam.identity.rules.guarded_node import may, write_rules


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node on which the consumer `slow` is three messages behind, and `quick` is not behind."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as running:
        with blocking.connect(running.address) as client:
            stream = client.create("orders")
            for number in range(4):
                stream.push(b"%d" % number)
            for name, index in (("slow", 1), ("quick", 4)):
                blocking.SavedIndexes(client, name).save("orders", {0: index})
        yield running


def test_the_status_has_the_figures_of_the_node(command: CommandLine, node: NodeProcess) -> None:
    """The consumer that is farthest behind comes first, and without checks the exit code is 0."""
    told = command("status", "--node", node.address, "--json").read(promised.NodeStatus)
    assert (told.ready, told.streams, told.checks, told.notes) == (True, 1, [], [])
    assert [(each.client_id, each.stream, each.lag) for each in told.consumers] == [
        ("slow", "orders", 3),
        ("quick", "orders", 0),
    ]
    text = command("status", "--node", node.address).text
    assert ": the node takes work; free disk: " in text
    assert "slow      orders    3  " in text


@pytest.mark.parametrize(
    ("check", "code"),
    [
        ("lag=3", 0),
        ("lag=2", 2),
        ("lag=2,3", 1),
        ("lag=1,2", 2),
        ("silent=1d", 0),
        ("silent=0s", 2),
        ("free-disk=1", 0),
        ("free-disk=1000000GB", 2),
        ("free-disk=1000000GB,1", 1),
    ],
)
def test_a_check_ends_with_the_code_of_its_level(
    command: CommandLine, node: NodeProcess, check: str, code: int
) -> None:
    done = command("status", "--node", node.address, "--check", check)
    assert done.code == code, done.text
    word = ("OK", "WARNING", "CRITICAL")[code]
    assert done.stdout.decode().startswith(f"{word} {'ready' if not code else check.partition('=')[0]}: ")


def test_the_worst_check_decides(command: CommandLine, node: NodeProcess) -> None:
    """The worst result is the first line, which monitoring programs show."""
    checks = ("--check", "free-disk=1", "--check", "lag=2", "--check", "silent=1d")
    done = command("status", "--node", node.address, *checks)
    assert done.code == 2
    assert [line.split(":")[0] for line in done.stdout.decode().splitlines()] == [
        "CRITICAL lag",
        "OK ready",
        "OK free-disk",
        "OK silent",
    ]
    assert "slow is 3 messages behind on orders" in done.stdout.decode()


def test_a_node_that_takes_no_work_is_critical(command: CommandLine, tmp_path: Path) -> None:
    """A full disk is critical with any check, whatever its limit."""
    full = {"STREAM_NODE_FREE_DISK_BYTES_MIN": "1000000GB"}
    with NodeProcess(tmp_path / "data", environment=full) as running:
        for _ in range(100):
            told = command("status", "--node", running.address, "--json").read(promised.NodeStatus)
            if not told.ready:
                break
        done = command("status", "--node", running.address, "--check", "lag=1")
        assert (done.code, done.stdout.decode().split(":")[0]) == (2, "CRITICAL ready")


def test_silence_counts_from_the_first_unread_message(command: CommandLine, tmp_path: Path) -> None:
    """A consumer that had read everything for a while is not silent when the next message comes."""
    with NodeProcess(tmp_path / "data") as running, blocking.connect(running.address) as client:
        stream = client.create("hourly")
        stream.push(b"0")
        blocking.SavedIndexes(client, "reader").save("hourly", {0: 1})
        time.sleep(2.5)
        stream.push(b"1")
        done = command("status", "--node", running.address, "--check", "silent=2s")
        assert done.code == 0, done.text
        time.sleep(2.5)
        done = command("status", "--node", running.address, "--check", "silent=2s")
        assert (done.code, "reader has made no progress on hourly" in done.text) == (2, True)


def test_a_position_beyond_the_end_is_critical(command: CommandLine, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as running, blocking.connect(running.address) as client:
        client.create("orders").push(b"0")
        blocking.set_position(client, "ahead", "orders", 0, 900)
        done = command("status", "--node", running.address, "--check", "lag=10")
        assert (done.code, "ahead cannot read orders" in done.text) == (2, True), done.text


@pytest.mark.slow
def test_every_trouble_of_the_node_is_a_result(command: CommandLine, node: NodeProcess, tmp_path: Path) -> None:
    """The dashboard's words, the worst first; a node without HTTP does not look, which is unknown."""
    done = command("status", "--check", "troubles", "--node", node.address)
    assert (done.code, done.text.splitlines()[0].startswith("UNKNOWN troubles: a node without HTTP")) == (3, True)
    arguments = ["--http", "127.0.0.1:0", "--log-level", "error"]
    lost = {"STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": "127.0.0.1:1"}
    with NodeProcess(tmp_path / "data", arguments=arguments, environment=lost) as watched:
        ends_s = time.monotonic() + 60
        while (done := command("status", "--check", "troubles", "--node", watched.address)).code != 2:
            assert time.monotonic() < ends_s, done
            time.sleep(0.1)
        first, second, *_ = done.text.splitlines()
        assert first.startswith("CRITICAL backfill_failing: Nobody knows which blocks are missing: 127.0.0.1:1: ")
        assert first.endswith("| troubles=2;0;;0")
        assert second.startswith("WARNING block_source_failing: ")


def test_what_is_no_node_is_unknown(command: CommandLine, tmp_path: Path) -> None:
    """At the port of the dashboard something answers, but no node: also without a check, the exit code is 3."""
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as running:
        assert command("status", "--node", running.http[0]).code == 3
        assert command("status", "--node", running.address).code == 0


def test_no_node_and_no_right_are_told(command: CommandLine, node: NodeProcess, tmp_path: Path) -> None:
    """Without an answer, the state is unknown (3). A node with rules tells only an operator."""
    assert command("status", "--node", "127.0.0.1:1", "--check", "lag=1").code == 3
    write_rules(tmp_path / "access.toml", [may(Right.READ)])
    rules = {"STREAM_NODE_ACCESS_RULES": str(tmp_path / "access.toml")}
    with NodeProcess(tmp_path / "data", environment=rules) as running:
        done = command("status", "--node", running.address, "--check", "free-disk=1")
        assert (done.code, done.stdout.decode().split(":")[0]) == (3, "UNKNOWN ready")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--check", "lag=nonsense"), "'nonsense' is no number of messages"),
        (("--check=lag=1", "--chekc"), "No such option: --chekc"),
        (("--check",), "requires an argument"),
        (("--check", "lag=1", "--timeout", "soon"), "'soon' is not a valid float"),
        (("--check", "lag=1", "--context", "nowhere"), "nowhere"),
        (("--check", "lag=1", "--node", "127.0.0.1"), "127.0.0.1"),
        (("--check", "lag=1", "--tls-key", "x"), "--tls-ca"),
        (("--check", "lag=1", "--token-file", "/no/file"), "/no/file"),
        (("--check", "lag=1", "--node", "127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_what_keeps_a_check_from_its_work_is_unknown(
    command: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    """Codes 1 and 2 would be read as the state of the node. The line is on stdout, where monitoring programs read."""
    done = command("status", *arguments)
    line = done.stdout.decode()
    assert (done.code, line.startswith("UNKNOWN: "), said in line, line.count("\n")) == (3, True, True, 1), done
    assert "Traceback" not in done.stderr


FIGURE = re.compile(r"(?P<label>[^=' ]+)=(?P<value>U|-?[0-9.]+)(?P<unit>s|B|)(;[0-9.]*:?){0,2}(;[0-9.]*)?")
"""One figure of the performance data, as the guidelines of the Monitoring Plugins define it."""


def test_performance_data_has_the_figures_and_the_limits(command: CommandLine, node: NodeProcess) -> None:
    """All figures follow the one bar of the first line, whose name has a bar, too. A low value of the free space is the
    bad one, so its range is open upwards."""
    with blocking.connect(node.address) as client:
        stream = client.create("odd|name")
        for _ in range(9):
            stream.push(b"")
        blocking.SavedIndexes(client, "bar|s").save("odd|name", {0: 1})
    checks = ("--check", "lag=2,100", "--check", "free-disk=5M,1k", "--check", "silent=1d")
    first, *others = command("status", "--node", node.address, *checks).stdout.decode().splitlines()
    text, bar, data = first.partition(" | ")
    assert (bar, "|" in text + data + "".join(others)) == (" | ", False)
    figures = [FIGURE.fullmatch(each) for each in data.split(" ")]
    assert [each and (each["label"], each["unit"]) for each in figures] == [
        ("lag", ""),
        ("free-disk", "B"),
        ("silent", "s"),
    ]
    assert data.split(" ")[0] == "lag=8;2;100;0"
    assert ";5000000:;1000:;0" in data.split(" ")[1]
    assert ";86400;86400;0" in data.split(" ")[2]


@pytest.mark.parametrize(
    "wrong", ["lag", "lag=x", "lag=-1", "lag=3,2", "lag=1,2,3", "free-disk=1,2", "load=1", "silent=1"]
)
def test_a_wrong_check_is_explained(wrong: str) -> None:
    with pytest.raises(UsageError):
        parse_check(wrong)


def test_checks_are_parsed() -> None:
    """One limit is critical; of two, the first one is a warning."""
    assert parse_check("lag=10000") == Check("lag", 10_000, 10_000)
    assert parse_check("silent=5m,1h") == Check("silent", 300, 3600)
    assert parse_check("free-disk=10G,5GB") == Check("free-disk", 10_000_000_000, 5_000_000_000)
