"""Goal: the unit for systemd is right, and a node works under its restrictions.

Method: systemd's own checks of the unit; and strace beside a real node, whose system calls, sockets and memory mappings
are compared with what the unit allows.
"""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import subprocess
import sys
from configparser import ConfigParser
from contextlib import closing
from pathlib import Path

import pytest
import trio

from ockam.actors.address import split_host_port
from stream_node.cli.app import CODES, WRONG_USAGE
from stream_node.cli.values import parse_duration
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeProcess
from stream_storage.errors import DatabaseLost
from tests.style.tree import ROOT
from tests.support.stream_peer import stream_peer

UNIT = ROOT / "deploy/systemd/stream-node.service"
SETTINGS = ROOT / "deploy/systemd/node.toml"
COMMAND = "/opt/stream-node/bin/stream-node"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def unit_values(key: str) -> list[str]:
    """The values of one setting of the unit, in order; it may stand there more than once."""
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a command that exists here."""
    command = Path(sys.executable).with_name("stream-node")
    if not command.exists():
        pytest.skip("needs the installed command stream-node")
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text().replace(COMMAND, f'"{command}"'))
    return file


@needs_systemd
def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # The check sees mistakes: a misspelt setting is told.
    unit.write_text(unit.read_text().replace("WatchdogSec", "WatchdogSek"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert "WatchdogSek" in done.stderr


@needs_systemd
def test_systemd_calls_its_exposure_low(unit: Path) -> None:
    """Goal: no restriction gets lost. Method: systemd's figure, from 0 to 10 (in its option: to 100)."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    done = subprocess.run([*command, "--threshold=20", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]
    unit.write_text(re.sub("^(Protect|System|Restrict|Cap).*\n", "", unit.read_text(), flags=re.MULTILINE))
    done = subprocess.run([*command, "--threshold=20", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 1


def test_the_unit_and_the_node_agree_on_times() -> None:
    """Goal: systemd never kills a node that drains as it should, and waits for no report longer than for the drain."""
    parser = ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    service = parser["Service"]
    stop_s = parse_duration(service["TimeoutStopSec"])
    assert stop_s > 2 * load_config({}, file=SETTINGS, environment={}).drain_timeout_s
    assert stop_s > 2 * Config().drain_timeout_s
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    # A database that is away for an hour at boot must not leave the node down for ever.
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["RestartPreventExitStatus"] == str(WRONG_USAGE)
    assert not issubclass(DatabaseLost, ConfigError)
    assert "stream_storage.errors.StorageError" not in CODES[WRONG_USAGE]
    assert parse_duration(service["WatchdogSec"]) >= 30


def test_the_settings_beside_the_unit_are_right(tmp_path: Path) -> None:
    """Goal: the file can be used as it is, and its comments too. Method: both, with the lines in comments made real."""
    text = SETTINGS.read_text()
    load_config({}, file=SETTINGS, environment={})
    commented = re.findall(r"^# (\w+ = .*)$", text, re.MULTILINE)
    assert {"listen", "access_rules", "tls_certificate"} <= {line.split()[0] for line in commented}
    assert {line.split()[0] for line in commented} <= set(Config.__struct_fields__)


async def test_a_node_needs_no_more_than_the_unit_allows(tmp_path: Path) -> None:
    """Goal: no restriction breaks a node. Method: strace sees it start, serve, read its files again and stop."""
    for tool in ("strace", "systemd-analyze"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    trace = tmp_path / "trace"
    file = tmp_path / "node.toml"
    file.write_text("streams_max = 7\n")
    node = TracedNode(trace, tmp_path / "data", arguments=("--config", str(file), "--http", "127.0.0.1:0"))
    with node:
        async with stream_peer(node.address) as peer:
            route = await peer.create("s")
            assert (await peer.push(route, b"one")).index == 0
            assert [each.data for each in (await peer.pull(route, 0, 9)).messages] == [b"one"]
            await trio.to_thread.run_sync(get_metrics, node.http[0])
            node.tell(signal.SIGHUP)
        node.tell(signal.SIGTERM)
        assert node.wait() == 0
    text = trace.read_text(errors="replace")
    called = set(re.findall(r"^(?:\d+ +)?([a-z_0-9]+)\(", text, re.MULTILINE))
    assert {"openat", "accept4", "sendto"} <= called
    assert called <= allowed_calls(), called - allowed_calls()
    families = set(re.findall(r"\bsocket(?:pair)?\((AF_\w+)", text))
    assert families <= set(unit_values("RestrictAddressFamilies")[0].split()), families
    assert not re.search(r"PROT_WRITE\|PROT_EXEC", text)
    assert not re.search(r"mprotect\([^)]*PROT_EXEC", text)


def get_metrics(address: str) -> None:
    host, port = split_host_port(address)
    with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        with connection.getresponse() as response:
            assert response.status == 200
            assert b"stream_node_pushes_total 1.0" in response.read()


def allowed_calls() -> set[str]:
    """The system calls that pass the filters of the unit."""
    allowed: set[str] = set()
    for value in unit_values("SystemCallFilter"):
        names = value.removeprefix("~").split()
        found = set().union(*(calls_of(name) for name in names))
        allowed = allowed - found if value.startswith("~") else allowed | found
    return allowed


def calls_of(name: str) -> set[str]:
    """The system calls of a group, with those of the groups in it."""
    if not name.startswith("@"):
        return {name}
    text = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.strip() for line in text.splitlines()[1:]]
    return set().union(*(calls_of(line) for line in lines if line and not line.startswith("#")))


class TracedNode(NodeProcess):
    """A node under strace. Signals go to the node itself, the only child of strace."""

    def __init__(self, trace: Path, data_dir: Path, *, arguments: tuple[str, ...]) -> None:
        super().__init__(data_dir, arguments=arguments)
        self._trace = trace

    def command(self) -> list[str]:
        return ["strace", "-f", "-qq", "-o", str(self._trace), *super().command()]

    def tell(self, number: signal.Signals) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        subprocess.run(["kill", f"-{number.value}", children[0]], check=True)
