"""Finds how long consumers have made no progress although messages wait for them."""

from __future__ import annotations

import time
from typing import TypeAlias

from index_service.extensions import SavedPosition
from stream_client import ClientError, FromIndex, StreamClient
from stream_node.top.reading import Reading

SilentSeconds: TypeAlias = dict[tuple[str, str], float]
"""For each consumer that is behind, by its name and its stream, the seconds without progress."""
PULLS_MAX = 200
"""The largest number of messages that are pulled to learn their times. Of further partitions, only the time of the last
progress counts."""


async def find_silent_s(client: StreamClient, reading: Reading) -> SilentSeconds:
    """Returns the consumers that are behind.

    The time counts from the last saved position, or from when the first unread message was stored, if that was later.
    """
    infos = {(each.stream_name, each.partition): each for each in reading.streams}
    now_us = time.time_ns() // 1000 if reading.status is None else reading.status.now_us
    found: SilentSeconds = {}
    # Those without progress for longest come first, so that their times are exact.
    for count, position in enumerate(sorted(reading.positions, key=lambda each: each.saved_us)):
        info = infos.get((position.stream_name, position.partition))
        if info is None or max(position.index, info.first_index) >= info.next_index:
            continue
        since_us = position.saved_us
        if count < PULLS_MAX:
            since_us = max(since_us, await _first_unread_us(client, position))
        key = position.client_id, position.stream_name
        found[key] = max(found.get(key, 0.0), (now_us - since_us) / 1e6)
    return found


async def _first_unread_us(client: StreamClient, position: SavedPosition) -> int:
    """Returns when the first unread message was stored, in microseconds since 1970; 0 if it cannot be read."""
    try:
        stream = (await client.get_stream(position.stream_name)).get_partition(position.partition)
        page = await stream.pull_page(FromIndex(position.index), 1)
    except ClientError:
        return 0
    return page.messages[0].time_us if page.messages else 0
