"""The stream node as a program: its settings, its server, its command line and its demo. Other packages hold the
protocol rules.

    from stream_node import Server, load_config

    server = Server(load_config({"listen": "127.0.0.1:0"}))
    addresses = await nursery.start(server.serve)

The public names are imported at first use, so that `stream-node --help` starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from companion import VERSION as __version__

if TYPE_CHECKING:
    from stream_node.node.config import Config, ConfigError
    from stream_node.node.config_sources import load_config
    from stream_node.node.server import Server

__all__ = ["Config", "ConfigError", "Server", "__version__", "load_config"]

_MODULES = {"Config": "config", "ConfigError": "config", "Server": "server", "load_config": "config_sources"}
"""The submodule that defines each public name of this package."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
