"""A served node with tokens and rules, and the addresses of this machine beyond loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.identity.rules.rules import Rule
from ockam.identity.rules.tokens import create_token, load_tokens, revoke_token
from stream_node.node.config import Config
from stream_node.node.server import Server
from tests.ockam.identity.rules.guarded_node import Guarded, write_rules
from tests.support.served import Served, wait_until

QUICK = {"error_delay_s": 0.01}
UNKNOWN = "sntok_" + "0123456789abcdef" * 4
"""Has the form of a token, and no node knows it."""
FRAMINGS = ("head", "legacy")


class TokenNode(Guarded):
    """A node whose rules allow everything to every token, and nothing to anybody else."""

    def __init__(self, running: Served, folder: Path) -> None:
        super().__init__(running, folder)
        self.file = folder / "data" / "tokens.json"

    @property
    def address(self) -> str:
        return self.running.address

    def create(self, name: str = "spark", **options: Any) -> str:
        return create_token(self.file, name, int(time.time()), **options)[0]

    def revoke(self, name: str = "spark") -> None:
        revoke_token(self.file, name, int(time.time()))

    def names(self) -> list[str]:
        return [each.name for each in load_tokens(self.file)]


def everything_to_tokens() -> Rule:
    return Rule("tokens", ("token:*",), may=ALL_RIGHTS)


@asynccontextmanager
async def token_node(folder: Path, listen: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[TokenNode]:
    """A node that has the tokens which `first_token` has made, and takes others while it runs."""
    write_rules(folder / "access.toml", [everything_to_tokens()])
    rules = {"access_rules": str(folder / "access.toml")}
    config = Config(data_dir=str(folder / "data"), listen=listen, **(rules | QUICK | settings))
    server = Server(config)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        running = Served(server)
        try:
            yield TokenNode(running, folder)
        finally:
            running.close_peers()
            server.stop()


def first_token(folder: Path, name: str = "spark", **options: Any) -> str:
    """Makes a token before the node starts, so that the node has it at once."""
    return create_token(folder / "data" / "tokens.json", name, int(time.time()), **options)[0]


def own_address() -> str:
    """An IPv4 address of this machine that is not loopback. Skips the test if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # Nothing is sent: the system only says from which address it would send.
            asking.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host = str(asking.getsockname()[0])
    if host.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    return host


async def node_has(node: TokenNode, count: int) -> None:
    """Waits until the node knows this number of tokens: it notes each change in its audit log."""
    await wait_until(
        lambda: any(
            line["event"] == "tokens_loaded" and line["reason"].startswith(f"{count} tokens") for line in node.audit()
        )
    )
