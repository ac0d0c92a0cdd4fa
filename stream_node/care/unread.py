"""Counts the messages that the consumers of streams have not read, from lists of positions and partitions.
A consumer of all partitions must also read partitions that were added while it did not run, although it has no
position in them yet. A consumer of some partitions need not. No consumer reports its kind: a consumer counts as one of
all partitions if it has a position in every partition that was there when it began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from index_service.extensions import SavedPosition
from stream_service.extensions import StreamInfo


def count_unread(
    positions: Iterable[SavedPosition], infos: Iterable[StreamInfo]
) -> dict[tuple[str, str], dict[int, int]]:
    """Returns the number of unread messages by consumer, stream and partition, for the partitions among `infos`."""
    by_stream: dict[str, dict[int, StreamInfo]] = {}
    for info in infos:
        by_stream.setdefault(info.stream_name, {})[info.partition] = info
    consumers: dict[tuple[str, str], dict[int, SavedPosition]] = {}
    for each in positions:
        consumers.setdefault((each.client_id, each.stream_name), {})[each.partition] = each
    return {key: _unread(by_partition, by_stream.get(key[1], {})) for key, by_partition in consumers.items()}


def _unread(positions: Mapping[int, SavedPosition], infos: Mapping[int, StreamInfo]) -> dict[int, int]:
    began_us = min(getattr(each, "generation", 0) or each.saved_us for each in positions.values())
    reads_all = all(partition in positions for partition, info in infos.items() if info.created_us <= began_us)
    found = {}
    for partition, info in infos.items():
        position = positions.get(partition)
        if position is not None:
            # A position that belongs to a former stream of the same name says nothing about this one.
            is_of_this = getattr(position, "created_us", 0) in (0, info.created_us)
            index = max(position.index if is_of_this else 0, info.first_index)
            found[partition] = max(0, info.next_index - index)
        elif reads_all:
            found[partition] = info.count
    return found
