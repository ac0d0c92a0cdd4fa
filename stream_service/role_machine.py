"""The roles of a stream-partition that can have a source on another node. One table has all changes of the role.

A mirror stays FOLLOWING if its messages differ from those of its source, and while it moves them to another stream. The
task that copies has this condition (`stream_node.fleet.mirror.protocol.MirrorCondition`); it is not stored.
This module does not read or write the table of mirrors (`stream_service.mirror_rows`).
"""

from __future__ import annotations

import enum


class StreamRole(enum.IntEnum):
    """The role of a stream. The numbers are stored in the table of mirrors, which has no row for PRIMARY."""

    PRIMARY = 0  # it takes pushes
    FOLLOWING = 1  # it is a mirror, and follows its source
    FENCING = 2  # it was a mirror and is a primary now; the node makes its former source a mirror
    PROMOTING = 4  # a mirror that is being promoted, even across restarts of the node; its source may be a mirror
    RESTORING = 5  # a mirror whose promotion has failed; its source becomes a primary again


class RoleEvent(enum.Enum):
    """An event that changes the role of a stream."""

    FOLLOW = "an operator or its new primary makes it a mirror"
    PROMOTE = "an operator begins a planned promotion"
    GIVE_BACK = "the promotion has failed"
    GAVE_BACK = "its source is a primary again"
    FINISH = "the planned promotion has copied everything"
    TAKE = "it becomes a primary whatever it lacks, and its former source is to become a mirror"
    LEAVE = "it becomes a primary, and nobody is to be fenced"
    FENCED = "its former source is a mirror, or is to be left alone"


_R, _E = StreamRole, RoleEvent

TRANSITIONS: dict[tuple[StreamRole, RoleEvent], StreamRole] = {
    **{(role, _E.FOLLOW): _R.FOLLOWING for role in StreamRole},
    # A planned promotion, whose steps can be repeated.
    (_R.FOLLOWING, _E.PROMOTE): _R.PROMOTING,
    (_R.PROMOTING, _E.PROMOTE): _R.PROMOTING,
    (_R.PROMOTING, _E.FINISH): _R.FENCING,
    # A promotion that has failed.
    (_R.PROMOTING, _E.GIVE_BACK): _R.RESTORING,
    (_R.RESTORING, _E.GIVE_BACK): _R.RESTORING,
    (_R.RESTORING, _E.GAVE_BACK): _R.FOLLOWING,
    # A promotion without the source. A primary stays what it is.
    **{(role, _E.TAKE): _R.FENCING for role in (_R.FOLLOWING, _R.PROMOTING, _R.RESTORING, _R.FENCING)},
    **{(role, _E.LEAVE): _R.PRIMARY for role in (_R.FOLLOWING, _R.PROMOTING, _R.RESTORING)},
    (_R.PRIMARY, _E.TAKE): _R.PRIMARY,
    (_R.PRIMARY, _E.LEAVE): _R.PRIMARY,
    (_R.FENCING, _E.LEAVE): _R.FENCING,
    (_R.FENCING, _E.FENCED): _R.PRIMARY,
}

FOLLOWING = frozenset({StreamRole.FOLLOWING, StreamRole.PROMOTING, StreamRole.RESTORING})
"""The roles of a mirror: it copies from its source, and takes no pushes."""
STORED = FOLLOWING | {StreamRole.FENCING}
"""The roles that have a row in the table of mirrors."""
UNDER_PROMOTION = frozenset({StreamRole.PROMOTING, StreamRole.RESTORING})
SOURCE_ROLES = {
    StreamRole.PRIMARY: 0,
    StreamRole.FOLLOWING: 1,
    StreamRole.FENCING: 2,
    StreamRole.PROMOTING: 3,
    StreamRole.RESTORING: 3,
}
"""The number of `stream_service.mirroring.SourceRole` with which a stream of each role answers its mirrors."""


def find_next(role: StreamRole, event: RoleEvent) -> StreamRole | None:
    """Returns the role after an event; None if the event cannot happen to a stream of this role."""
    return TRANSITIONS.get((role, event))
