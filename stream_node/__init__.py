"""The stream node as a program: its processes, its doors (HTTP, gRPC, metrics), its command line and its demo. Other
packages hold the rules of the protocols.

A program that runs a node itself, for example with workers of its own, imports these names:

    server = Server(Config(data_dir="data", listen="127.0.0.1:0"), workers={"echo": Echo})
    async with trio.open_nursery() as nursery:
        (address, *_) = await nursery.start(server.serve)
        ...
        server.stop()

Each name is imported on its first use, so a program that reads only the version imports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stream_node.version import __version__

if TYPE_CHECKING:
    from stream_node.hosting.hosted import HostNode
    from stream_node.node.config import Config, ConfigError
    from stream_node.node.inside_clients import NoInsideClient
    from stream_node.node.server import CannotListen, Server

__all__ = ["CannotListen", "Config", "ConfigError", "HostNode", "NoInsideClient", "Server", "__version__"]

_MODULES = {
    "CannotListen": "node.server",
    "Config": "node.config",
    "ConfigError": "node.config",
    "HostNode": "hosting.hosted",
    "NoInsideClient": "node.inside_clients",
    "Server": "node.server",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
