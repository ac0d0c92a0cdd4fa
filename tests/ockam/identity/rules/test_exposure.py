"""Goal: a node beyond its machine has TLS and rules, or says that it does not. Method: the real command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ockam.identity.rules.rights import ALL_RIGHTS
from stream_node.node.config import Config, ConfigError, without_effect
from stream_node.node.identity.access import check_exposure, lacking
from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.ockam.identity.rules.guarded_node import may, write_rules


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.8.0.1:0"])
def test_this_machine_needs_nothing(listen: str) -> None:
    check_exposure(Config(listen=listen))


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.168.1.1:0", "node.example:0", "127.example:0"])
def test_other_machines_need_tls_and_rules(listen: str) -> None:
    with pytest.raises(ConfigError, match="without TLS and without rules; set tls_certificate, tls_certificate_key"):
        check_exposure(Config(listen=listen))
    with pytest.raises(ConfigError, match="without TLS;"):
        check_exposure(Config(listen=listen, access_rules="access.toml"))
    check_exposure(Config(listen=listen, insecure=True))
    assert lacking(Config(listen=listen, insecure=True)) is not None


def test_the_command_refuses_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NodeNotStarted, match="--insecure if everybody who reaches this address may do everything"):
        NodeProcess(tmp_path / "data", listen="0.0.0.0:0").start()


def test_an_insecure_node_says_so_in_its_first_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stream_node", "serve", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:0"]
    with subprocess.Popen([*command, "--insecure"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stderr is not None
        line = json.loads(node.stdout.readline())
        node.terminate()
        log = node.stderr.read().decode()
        assert node.wait(60) == 0
    assert line["insecure"] == "0.0.0.0:0 is reached from other machines, without TLS and without rules"
    assert "insecure" in log


def test_a_hangup_reads_the_rules_again_and_opens_the_audit_log_again(tmp_path: Path) -> None:
    """As a service manager and logrotate do it. A node with wrong rules does not start."""
    file, audit = tmp_path / "access.toml", tmp_path / "data" / "audit.jsonl"
    node = NodeProcess(tmp_path / "data", arguments=["--access-rules", str(file)])
    with pytest.raises(NodeNotStarted, match="cannot read the rules"):
        node.start()
    file.write_text("[[rule]]\nname = 'x'\n")
    with pytest.raises(NodeNotStarted, match="line 1, rule 'x'"):
        node.start()
    write_rules(file, [may(ALL_RIGHTS)])
    with node:
        audit.rename(tmp_path / "moved.jsonl")
        node.signal(signal.SIGHUP)
        while not audit.exists() or "rules_loaded" not in audit.read_text():
            assert node.pid
        assert node.stop() == 0
    assert '"event":"node_started"' in (tmp_path / "moved.jsonl").read_text()


def test_an_audit_log_without_rules_is_told_to_have_no_effect() -> None:
    assert "audit_log" in without_effect(Config(audit_log="audit.jsonl"))
    assert without_effect(Config(audit_log="audit.jsonl", access_rules="access.toml")) == {}
