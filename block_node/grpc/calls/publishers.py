"""DoorPublishers: the publishers of a door, their closed windows, and when each was told that the node is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from block_node.grpc.calls.statistics import COUNTED

if TYPE_CHECKING:
    from block_node.grpc.calls.publish import PublishCall

PARTIES_MAX: Final = 10_000
"""Far more than a network has consensus nodes."""
WINDOWS_MAX: Final = 100
"""The most parties whose windows the metrics name. Each party is one more time series of a collector."""


class BehindTold:
    """Notes when each party was last told that the node is behind, on any of its streams.

    A real publisher leaves if it is told so twice within a certain time (facts/grpc_peers.md §1.3), even on two
    streams. But it obeys every ResendBlock.

    Invariant: `_told_s` is in the order of its times, with at most PARTIES_MAX of them.
    """

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._told_s: dict[str, float] = {}

    def may_tell(self, party: str, now_s: float) -> bool:
        """Returns whether to tell the party now that the node is behind. If so, notes that it was told."""
        told_s = self._told_s.get(party)
        if told_s is not None and now_s - told_s < self._again_s:
            return False
        self._told_s.pop(party, None)
        self._told_s[party] = now_s
        if len(self._told_s) > PARTIES_MAX:
            del self._told_s[next(iter(self._told_s))]
        return True


class DoorPublishers:
    """The publishers of one door. counted: the counters of all its calls (`COUNTED`).

    Invariant: `_windows_s` has at most WINDOWS_MAX parties. The party that was noted last is at the end.
    """

    def __init__(self, again_s: float) -> None:
        self.told = BehindTold(again_s)
        self.counted = dict.fromkeys(COUNTED, 0)
        self.open: dict[PublishCall, None] = {}
        self._windows_s: dict[str, float] = {}

    def leave(self, publisher: PublishCall) -> None:
        """Forgets a publisher whose stream has ended, but keeps the time for which it could send nothing."""
        if publisher in self.open:
            del self.open[publisher]
            self._note_window(publisher)

    def windows_s(self) -> dict[str, float]:
        """Returns, by party, the longest time in seconds for which one of its publishers could send nothing."""
        for each in self.open:
            self._note_window(each)
        return dict(self._windows_s)

    def _note_window(self, publisher: PublishCall) -> None:
        closed_s = max(self._windows_s.pop(publisher.party, 0.0), publisher.window_closed_s())
        self._windows_s[publisher.party] = closed_s
        if len(self._windows_s) > WINDOWS_MAX:
            del self._windows_s[next(iter(self._windows_s))]
