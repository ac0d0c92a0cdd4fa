"""The metrics of a node for Prometheus: a list of all of them, their values at one moment, and their text.

prometheus-client makes the text. Nothing is counted here: a scrape reads the counters that the parts of the node have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_node.metrics.catalogue import METRICS
    from stream_node.metrics.family import Metric
    from stream_node.metrics.snapshot import Snapshot, take_snapshot
    from stream_node.metrics.text import render

__all__ = ["METRICS", "Metric", "Snapshot", "render", "take_snapshot"]

_MODULES = {
    "METRICS": "catalogue",
    "Metric": "family",
    "Snapshot": "snapshot",
    "render": "text",
    "take_snapshot": "snapshot",
}
"""The submodule that defines each public name of this package."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
