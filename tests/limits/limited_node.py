"""A served node with limits for some identities, and peers that come from chosen addresses of this machine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from ockam.actors.address import split_host_port
from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.identity.rules.rule_file import rule_text
from ockam.identity.rules.rules import Rule
from ockam.quotas.usage import LimitStatistics
from ockam.transport.wire_head import HEAD
from tests.ockam.identity.rules.guarded_node import read_audit
from tests.support.served import Served, served
from tests.support.stream_peer import StreamPeer

FLOODER, NEIGHBOUR = "127.0.0.2", "127.0.0.3"
WHO = f"anonymous:{FLOODER}"
ALL = Rule("all", ("*",), may=ALL_RIGHTS)

Tables = Mapping[str, Mapping[str, int | str]]


class Limited:
    """running: the node. Its rules allow everything to everybody."""

    def __init__(self, running: Served, folder: Path) -> None:
        self.running = running
        self._folder = folder
        self._streams: list[trio.SocketStream] = []

    async def connect(self, host: str = FLOODER) -> trio.SocketStream:
        """A connection from this address on which nothing has been sent."""
        stream = await trio.open_tcp_stream(*split_host_port(self.running.address), local_address=host)
        self._streams.append(stream)
        return stream

    async def peer(self, host: str = FLOODER) -> StreamPeer:
        """A peer from this address that has said hello."""
        stream = await self.connect(host)
        await stream.send_all(HEAD.hello)
        return StreamPeer(stream, HEAD)

    def close_peers(self) -> None:
        for stream in self._streams:
            stream.socket.close()

    def limit(self, tables: Tables) -> None:
        """These limits are in force when the call returns."""
        write_limits(self._folder / "access.toml", tables)
        self.running.server.reload()

    def statistics(self) -> LimitStatistics:
        return self.running.statistics().limits

    def audit(self, event: str) -> list[dict[str, Any]]:
        lines = read_audit(self._folder / "data" / "audit.jsonl")
        return [line for line in lines if line["event"] == event]


def write_limits(file: Path, tables: Tables) -> None:
    texts = [rule_text(ALL)]
    for pattern, table in tables.items():
        texts.append(f"[limits.{json.dumps(pattern)}]")
        texts += [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    file.write_text("\n".join(texts) + "\n")


@asynccontextmanager
async def limited(folder: Path, tables: Tables, **settings: Any) -> AsyncIterator[Limited]:
    """A node with limits for these identities."""
    write_limits(folder / "access.toml", tables)
    settings = {"access_rules": str(folder / "access.toml"), "error_delay_s": 0.01, **settings}
    async with served(folder / "data", **settings) as running:
        node = Limited(running, folder)
        try:
            yield node
        finally:
            node.close_peers()
