"""Mirrors: a node follows streams of another node, and can take their place.

    mirrors = MirrorService(node, storage, directory, groups, new_id=new_id, now_us=now_us)
    mirrors.start(nursery, rows, "10.0.0.6:4000")

- `stream_mirror.protocol` defines the requests of an operator: add, promote and remove mirrors, and ask how they are.
- `stream_mirror.follower` copies one stream-partition. `stream_mirror.keeper` copies what belongs to the whole stream:
  new partitions, retention, positions and fences of consumers.
- `stream_mirror.promotion` makes mirrors primaries. `stream_mirror.fencer` makes their former sources mirrors.

The messages between two nodes are in `stream_service.mirroring`. docs/mirror.md describes mirrors for their users.
"""

from __future__ import annotations

from stream_mirror.errors import MirrorError, Parted, SourceGoesOn, SourceLost, SourceRefused
from stream_mirror.protocol import MIRRORS, MirrorAction, MirrorCondition, MirrorRequest, MirrorResponse, MirrorState

__all__ = [
    "MIRRORS",
    "MirrorAction",
    "MirrorCondition",
    "MirrorError",
    "MirrorRequest",
    "MirrorResponse",
    "MirrorState",
    "Parted",
    "SourceGoesOn",
    "SourceLost",
    "SourceRefused",
]
