"""Goal: the exit code of `stream-node health` says how a node stands, without TLS and with it.

Method: real nodes with HTTP; one that is not there; and one behind another certificate than the expected one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.certificates import Authority

HTTP = ("--http", "127.0.0.1:0")


def test_a_node_without_tls_is_asked_by_address_and_by_its_settings(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeProcess(tmp_path / "data", arguments=HTTP) as node:
        (address,) = node.http
        assert command("health", address, "--live", "--json").read(promised.Health) == promised.Health(
            address, "live", True, []
        )
        # In a container, the node listens at all addresses, and the command has the same variables.
        monkeypatch.setenv("STREAM_NODE_HTTP", address.replace("127.0.0.1", "0.0.0.0"))
        assert command("health", "--live").text == "live\n"
        assert node.stop() == 0
    assert "no answer over HTTP" in command("health", address).failed(3)


def test_without_an_address_the_settings_must_have_one(command: CommandLine) -> None:
    assert "the node's settings have no `http`" in command("health").failed(2)


def test_a_streams_port_is_no_healthy_node(command: CommandLine, tmp_path: Path) -> None:
    """Goal: a wrong port is noticed. Method: the port of the node's own protocol, which is not HTTP."""
    with NodeProcess(tmp_path / "data") as node:
        assert "no answer over HTTP" in command("health", node.address, "--live", "--timeout", "1").failed(3)


def test_with_tls_the_nodes_own_certificate_is_trusted_and_no_other(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a container with TLS needs no further settings for its health check, and is not fooled."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=("node.test",))
    other, other_key = authority.issue("other", hosts=("127.0.0.1",))
    settings = {"STREAM_NODE_TLS_CERTIFICATE": certificate, "STREAM_NODE_TLS_CERTIFICATE_KEY": key}
    with NodeProcess(tmp_path / "data", arguments=HTTP, environment=settings) as node:
        (address,) = node.http
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("STREAM_NODE_HTTP", address)
        assert command("health", "--live").text == "live\n"
        monkeypatch.setenv("STREAM_NODE_TLS_CERTIFICATE", other)
        monkeypatch.setenv("STREAM_NODE_TLS_CERTIFICATE_KEY", other_key)
        assert "certificate verify failed" in command("health", "--live").failed(3)
        by_name = ("--tls-ca", authority.ca, "--tls-server-name", "node.test", "--live", "--json")
        assert msgspec.json.decode(command("health", address, *by_name).stdout, type=promised.Health).ok
        assert "certificate verify failed" in command("health", address, *by_name[:2]).failed(3)
        assert node.stop() == 0
