"""The metrics of the present troubles. The overview of the dashboard names the same ones."""

from __future__ import annotations

from collections.abc import Callable

from stream_node.care.trouble import TROUBLE_KINDS, TroubleKind
from stream_node.doors.metrics.family import WHOLE, Values
from stream_node.doors.metrics.reading import OTHERS
from stream_node.doors.metrics.snapshot import Snapshot


def _count(snapshot: Snapshot) -> Values:
    """Returns the number of troubles of each kind, also of the kinds without any; None if nobody knows them."""
    if snapshot.troubles is None:
        return None
    return {str(kind): float(len(snapshot.troubles.by_kind.get(kind, ()))) for kind in TROUBLE_KINDS}


def _lasting(kind: TroubleKind) -> Callable[[Snapshot], Values]:
    """Returns a function that reads how long each trouble of one kind lasts, by its subject.
    The longest are named; the longest of the others has the subject OTHERS, so that an alert misses none."""

    def values(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
        troubles = [] if snapshot.troubles is None else snapshot.troubles.by_kind.get(kind, [])
        found = {trouble.subject: trouble.lasts_s for trouble in troubles[: snapshot.names_max]}
        for trouble in troubles[snapshot.names_max : snapshot.names_max + 1]:
            found[(OTHERS,) * len(trouble.subject)] = trouble.lasts_s
        return found

    return values


TROUBLES = (
    WHOLE.gauge("troubles", _count, "Things that are wrong now, as the dashboard names them.", "kind"),
    WHOLE.gauge(
        "consumer_stuck_seconds",
        _lasting("consumer_stuck"),
        "How long a consumer makes no progress although messages wait. Consumers that are not stuck are left out; the "
        "longest time of those beyond metrics_names_max has the name _others.",
        "client",
        "stream",
    ),
    WHOLE.gauge(
        "publisher_silent_seconds",
        _lasting("publisher_silent"),
        "How long a stream with a steady publisher gets no messages. Other streams are left out; "
        "the longest time of those beyond metrics_names_max has the name _others.",
        "stream",
    ),
)
