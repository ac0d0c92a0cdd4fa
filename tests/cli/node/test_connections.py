"""Goal: an operator sees which client sends most, and ends its connections; nobody else does.

Method: a node with rules and clients with tokens, one of which sends a known number of bytes; the command, the page and
the log files, each read as text.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ockam.identity.rules.tokens import create_token
from ockam.identity.token import Token
from stream_client import blocking, connect
from stream_client.errors import ClientError
from stream_node.cli import client as client_module
from stream_node.cli.client import ask_newer
from stream_node.cli.values import CommandFailed
from stream_node.node.node_connections import ADDRESS, CONNECTIONS, ConnectionsRequest
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.served import served

RULES = """
[[rule]]
name = "clients"
who = ["token:busy", "token:calm"]
may = ["read", "write", "create"]
on = [""]
[[rule]]
name = "watchers see"
who = ["token:watcher"]
may = ["operate"]
on = [""]
[[rule]]
name = "operators close"
who = ["token:operator"]
may = ["all"]
on = [""]
"""


def test_the_busiest_is_seen_and_closed(command: CommandLine, tmp_path: Path) -> None:
    rules, tokens, files = tmp_path / "access.toml", tmp_path / "data" / "tokens.json", {}
    rules.write_text(RULES)
    for name in ("busy", "calm", "watcher", "operator"):
        files[name] = tmp_path / f"{name}.token"
        files[name].write_text(create_token(tokens, name, int(time.time()))[0])

    def token(name: str) -> Token:
        return Token(files[name].read_text())

    with NodeProcess(tmp_path / "data", arguments=["--access-rules", str(rules)]) as node:
        at = ("--node", node.address)
        with (
            blocking.connect(node.address, token=token("busy")) as busy,
            blocking.connect(node.address, token=token("calm")) as calm,
        ):
            busy.create("a").push(bytes(500_000))
            calm.create("b").push(bytes(1_000))
            found = command("connections", *at, "--token-file", files["watcher"], "--json").read(promised.Connections)
            by_identity = {each.identity: each for each in found.connections}
            assert found.total == len(found.connections) == 3
            assert found.connections[0].identity == found.parties[0].party == "token:busy"
            # The bytes of the data, and some for what is around them.
            assert 500_000 < by_identity["token:busy"].received_bytes < 510_000
            assert 1_000 < by_identity["token:calm"].received_bytes < 10_000
            assert by_identity["token:busy"].received_bytes_s > by_identity["token:calm"].received_bytes_s > 0
            text = command("connections", *at, "--token-file", files["operator"], "--limit", "1").text
            assert "more connections; --limit prints more" in text
            # Who only sees closes nobody.
            refused = command("connections", *at, "--token-file", files["watcher"], "--close", "token:busy")
            assert "access denied: admin" in refused.failed(1)
            nobody = command("connections", *at, "--token-file", files["operator"], "--close", "")
            assert "--close needs the HOST:PORT of a connection, or an identity" in nobody.failed(2)
            peer = by_identity["token:busy"].peer
            closing = ("connections", *at, "--token-file", files["operator"], "--json", "--close")
            assert command(*closing, "token:busy").read(promised.ConnectionsClosed) == promised.ConnectionsClosed(
                "token:busy", 1
            )
            left = command("connections", *at, "--token-file", files["watcher"], "--json").read(promised.Connections)
            assert peer not in {each.peer for each in left.connections}
            # What has ended counts on.
            assert next(each for each in left.parties if each.party == "token:busy").received_bytes > 500_000
            # A client connects again; the other one has noticed nothing.
            assert busy.get_stream("a").get_partition(0).pull(0)
            assert calm.get_stream("b").get_partition(0).pull(0)
        assert "no other connection of 'nobody'" in command(*closing, "nobody").failed(1)
        with blocking.connect(node.address, token=token("watcher")) as watcher, pytest.raises(ClientError):
            watcher.create("c")
        assert node.stop() == 0
    lines = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    (closed,) = [each for each in lines if each["event"] == "connections_closed" and each["closed"]]
    assert (closed["of"], closed["identity"]) == ("token:busy", "token:operator")
    audit = [json.loads(line) for line in (tmp_path / "data" / "audit.jsonl").read_text().splitlines()]
    (line,) = [each for each in audit if each["event"] == "connections_closed" and each["name"] == "token:busy"]
    assert (line["identity"], line["reason"]) == ("token:operator", f"{peer} (token:busy)")


async def test_an_older_node_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node drops a request to a service that it lacks, as an older one drops this request."""
    async with served(tmp_path / "data") as node, connect(node.address) as client:
        assert (await ask_newer(client, ADDRESS, CONNECTIONS, ConnectionsRequest(0, 9), "tell")).total == 1
        # Only the question that nobody answers is waited for in vain.
        monkeypatch.setattr(client_module, "NEWER_WAIT_S", 0.1)
        with pytest.raises(CommandFailed, match="this node does not tell its connections; it may be older"):
            await ask_newer(client, "newer", CONNECTIONS, ConnectionsRequest(0, 9), "tell its connections")
