"""Metric: one metric of the list: its name, its kind, its text, and where its values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeVar

from stream_node.doors.metrics.snapshot import Snapshot
from stream_storage.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram", "untyped"]
"""untyped: a counter or gauge of a specification that has another name than Prometheus wants for its type."""
Values = float | None | Mapping[str, float] | Mapping[tuple[str, ...], float] | Histogram
"""A value; or None if there is none at present; or the values by label, or by the labels in their order."""

T = TypeVar("T")


class Metric(NamedTuple):
    """One metric. name: the whole name, with the unit and, for a counter, with `_total`."""

    name: str
    kind: Kind
    text: str
    values: Callable[[Snapshot], Values]
    labels: tuple[str, ...] = ()


def node_metric(name: str, kind: Kind, text: str, values: Callable[[Snapshot], Values], *labels: str) -> Metric:
    """Returns a metric of a stream node: `stream_node_` is added to its name."""
    return Metric(f"stream_node_{name}", kind, text, values, labels)


def figures_of(find: Callable[[Snapshot], T | None]) -> Callable[[Callable[[T], Values]], Callable[[Snapshot], Values]]:
    """Returns a function that makes the `values` of a metric from a function that reads one part of the statistics.
    find: returns that part, or None if the node does not have it. Then there is no value."""

    def figure(read: Callable[[T], Values]) -> Callable[[Snapshot], Values]:
        def values(snapshot: Snapshot) -> Values:
            found = find(snapshot)
            return None if found is None else read(found)

        return values

    return figure
