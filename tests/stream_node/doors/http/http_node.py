"""A served node that listens for HTTP, too, and clients of HTTP for it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio

from ockam.actors.address import split_host_port
from stream_node.node.parts import HttpStatistics
from tests.support.served import Served, served


class HttpNode:
    """running: the node. url: of its HTTP. address: its `host:port`."""

    def __init__(self, running: Served, scheme: str = "http") -> None:
        self.running = running
        self.address = running.server.http[0]
        self.url = f"{scheme}://{self.address}"

    def client(self, *, verify: ssl.SSLContext | bool = True, token: str | None = None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.url, verify=verify, headers=headers, trust_env=False, timeout=30)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*split_host_port(self.address))

    async def exchange(self, request: bytes) -> bytes:
        """Sends bytes, and returns everything until the node closes the connection."""
        async with await self.connect() as stream:
            await stream.send_all(request)
            received = b""
            with trio.fail_after(30):
                while chunk := await stream.receive_some():
                    received += bytes(chunk)
            return received

    def statistics(self) -> HttpStatistics:
        statistics = self.running.statistics().http
        assert statistics is not None
        return statistics


@asynccontextmanager
async def http_node(folder: Path, *, scheme: str = "http", **settings: Any) -> AsyncIterator[HttpNode]:
    """A node with HTTP at a free port of the loopback address; `settings` are those of `Config`."""
    settings = {"http": ("127.0.0.1:0",), "error_delay_s": 0.01, **settings}
    async with served(folder / "data", **settings) as running:
        yield HttpNode(running, scheme)
