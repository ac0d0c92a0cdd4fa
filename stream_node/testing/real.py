"""The real node of `stream_node.testing`."""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import trio

from stream_node.node.config_sources import load_config
from stream_node.testing.hosted import HostedNode


def node(**settings: Any) -> HostedNode:
    """Returns a real node: the server of `stream-node serve`, in a thread of this process. It listens at a free port,
    and its data is in a temporary directory, which is removed at the end of the block.

        with node(retention_messages=1000) as running:
            print(running.address)

    settings: any of `stream-node serve`, as values or as texts with a unit ("7d", "64MiB"). With a `data_dir`, the data
    stays, and another node can go on with it. Variables of the environment and settings files have no effect.

    The block raises NodeNotStarted if the node does not start, and at its end NodeNotRunning if the node has failed."""
    return HostedNode(partial(_serve, settings))


async def _serve(settings: dict[str, Any], running: HostedNode) -> None:
    from stream_node.node.server import Server

    with TemporaryDirectory(prefix="stream-node-") as folder:
        given = {"data_dir": folder, "listen": "127.0.0.1:0", **settings}
        server = Server(load_config(given, environment={}))
        async with trio.open_nursery() as nursery:
            (address, *_) = await nursery.start(server.serve)
            running.http, running.grpc = server.http, server.grpc
            running.listens(address)
            await running.stopping.wait()
            server.stop()
