"""Metric: one metric of the list: its name, its kind, its text, and where its values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

from stream_node.doors.metrics.snapshot import Snapshot
from stream_storage.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram", "untyped"]
"""untyped: a counter of a specification that has another name than Prometheus wants for its type."""
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


class Part(Generic[T]):
    """A part of the snapshots, and the maker of its metrics. find: returns None if this node does not have the part."""

    def __init__(self, find: Callable[[Snapshot], T | None], prefix: str = "stream_node_") -> None:
        self._find = find
        self._prefix = prefix

    def __call__(
        self, name: str, read: Callable[[T], Values], text: str, *labels: str, kind: Kind | None = None
    ) -> Metric:
        """kind: without it, the metric is a counter if its name ends in `_total`, and a gauge if not."""

        def values(snapshot: Snapshot) -> Values:
            part = self._find(snapshot)
            return None if part is None else read(part)

        found = kind or ("counter" if name.endswith("_total") else "gauge")
        return Metric(self._prefix + name, found, text, values, labels)


WHOLE = Part(lambda snapshot: snapshot)
