"""MirrorWatch: finds mirrors that do not do what they should. Conditions that often pass by themselves count late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stream_node.care.trouble import Texts, Trouble, TroubleKind
from stream_node.doors.dashboard.rendering import duration, link
from stream_node.fleet.mirror.protocol import MirrorCondition, MirrorState

LASTS_S_MIN = 30.0
"""How long a mirror may not follow, or a promotion may take, before that is a trouble."""
KINDS: dict[MirrorCondition, TroubleKind] = {
    MirrorCondition.CIRCLE: "mirror_circle",
    MirrorCondition.UNFENCED: "mirror_unfenced",
    MirrorCondition.PROMOTING: "mirror_promoting",
    MirrorCondition.PARTED: "mirror_parted",
    MirrorCondition.UNREACHABLE: "mirror_not_following",
    MirrorCondition.FAILED: "mirror_not_following",
}
"""The conditions that are troubles, the worst first."""
MAY_PASS: frozenset[TroubleKind] = frozenset({"mirror_promoting", "mirror_not_following"})
"""The troubles that may pass by themselves, and so must last LASTS_S_MIN seconds."""


class _Since(NamedTuple):
    kind: TroubleKind
    since_s: float
    state: MirrorState


class MirrorWatch:
    def __init__(self) -> None:
        self._found: dict[tuple[str, int], _Since] = {}

    def look(self, states: Sequence[MirrorState], now_s: float) -> None:
        before, self._found = self._found, {}
        for state in states:
            kind = KINDS.get(state.condition)
            if kind is None:
                continue
            identity = (state.stream_name, state.partition)
            known = before.get(identity)
            since_s = known.since_s if known is not None and known.kind == kind else now_s
            self._found[identity] = _Since(kind, since_s, state)

    def find(self, now_s: float) -> list[Trouble]:
        """Returns the troubles, one for each stream, the worst first."""
        found = []
        for kind in dict.fromkeys(KINDS.values()):
            streams: dict[str, _Since] = {}
            # Of the partitions of a stream, the one that is in trouble for the longest time stands for all.
            for each in sorted(self._found.values(), key=lambda each: each.since_s):
                if each.kind == kind and (kind not in MAY_PASS or now_s - each.since_s >= LASTS_S_MIN):
                    streams.setdefault(each.state.stream_name, each)
            for name, each in streams.items():
                lasts_s = now_s - each.since_s
                found.append(Trouble(kind, subject=(name,), lasts_s=lasts_s, about=each, write=_texts))
        return found


def _texts(found: _Since, lasts_s: float) -> Texts:
    state, (title, remedy) = found.state, _TEXTS[found.kind]
    reason = f": {state.reason}" if state.reason else ""
    values = {"name": state.stream_name, "source": state.source, "lasts": duration(lasts_s), "reason": reason}
    return title.format_map(values), remedy.format_map(values), link("/mirrors"), "The mirrors"


_TEXTS: dict[TroubleKind, tuple[str, str]] = {
    "mirror_circle": (
        "Nobody takes pushes for {name}: this node and {source} follow each other",
        "Promote the stream on one of both.",
    ),
    "mirror_unfenced": (
        "Two nodes may take pushes for {name}, this one and its former source {source}{reason}",
        "Decide which one is right, and make the other one its mirror (stream-node mirror add --force). If that cannot "
        "be a mirror, stop its publishers, and remove the mirror here.",
    ),
    "mirror_promoting": (
        "The promotion of {name} has taken {lasts}, and the stream takes no pushes here meanwhile{reason}",
        "Look whether the source {source} runs and can be reached from this node; the promotion goes on by itself "
        "then. If the source is lost, promote without it.",
    ),
    "mirror_parted": (
        "{name} does not follow {source}{reason}",
        "Look at both streams, and decide which one is right. The other one follows it after stream-node mirror add "
        "--force, which keeps its messages aside.",
    ),
    "mirror_not_following": (
        "{name} has not followed {source} for {lasts}{reason}",
        "Look whether the source runs, can be reached from this node, and gives it the rights; the mirror goes on by "
        "itself then. If the source is lost, promote the mirror without it.",
    ),
}
"""For each kind: the text of the trouble, and the text of its remedy."""
