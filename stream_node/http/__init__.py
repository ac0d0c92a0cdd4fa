"""HTTP: one listener in the node's own event loop, for health, metrics, data and the dashboard.

Each request has the identity of its connection or of its token, and each endpoint names the right that it needs. What a
request wants from streams goes through an ordinary client inside the node, so rights, limits and promises are those of
everybody else.

The node imports this package only with the setting `http`, because hypercorn and starlette take a quarter of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_node.http.app import Call, Endpoint
    from stream_node.http.clients import HttpClients
    from stream_node.http.identity import Caller
    from stream_node.http.listener import HttpListener
    from stream_node.http.problems import Problem
    from stream_node.http.statistics import HttpStatistics

__all__ = ["Call", "Caller", "Endpoint", "HttpClients", "HttpListener", "HttpStatistics", "Problem"]

_MODULES = {
    "Call": "app",
    "Caller": "identity",
    "Endpoint": "app",
    "HttpClients": "clients",
    "HttpListener": "listener",
    "HttpStatistics": "statistics",
    "Problem": "problems",
}
"""The submodule that defines each public name of this package."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
