"""The changes that an append makes to the rows of streams, for every log."""

from __future__ import annotations

from collections.abc import Sequence

from stream_storage.contract import Append
from stream_storage.errors import IndexConflict


def stream_ends(appends: Sequence[Append]) -> dict[int, list[int]]:
    """Returns for each stream id: its first new index, the index after its last new message, and the new bytes. Raises
    IndexConflict if an append does not begin where the previous append to the same stream ends."""
    ends: dict[int, list[int]] = {}
    for append in appends:
        end = ends.get(append.stream_id)
        if end is None:
            end = ends[append.stream_id] = [append.first_index, append.first_index, 0]
        elif append.first_index != end[1]:
            raise IndexConflict(append.stream_id, end[1], append.first_index)
        end[1] += len(append.data)
        end[2] += append.size_bytes
    return ends
