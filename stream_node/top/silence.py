"""Finds the consumer that has made no progress for the longest time although messages wait for it."""

from __future__ import annotations

import time
from typing import NamedTuple

from index_service.extensions import SavedPosition
from stream_client import ClientError, FromIndex, StreamClient
from stream_node.top.reading import Reading


class SilentConsumer(NamedTuple):
    client: str
    stream: str
    silent_s: float


async def find_silent(client: StreamClient, reading: Reading) -> SilentConsumer | None:
    """Returns the consumer that is behind and has made no progress for the longest time; None if none is behind.
    The time counts from the last saved position or the first unread message, whichever is later."""
    infos = {(each.stream_name, each.partition): each for each in reading.streams}
    now_us = time.time_ns() // 1000 if reading.status is None else reading.status.now_us
    found: SilentConsumer | None = None
    for position in sorted(reading.positions, key=lambda each: each.saved_us):
        # The time cannot be longer than since the last progress, so no later position can be worse than a found one.
        if found is not None and (now_us - position.saved_us) / 1e6 <= found.silent_s:
            break
        info = infos.get((position.stream_name, position.partition))
        if info is None or max(position.index, info.first_index) >= info.next_index:
            continue
        since_us = max(position.saved_us, await _first_unread_us(client, position))
        if found is None or (now_us - since_us) / 1e6 > found.silent_s:
            found = SilentConsumer(position.client_id, position.stream_name, (now_us - since_us) / 1e6)
    return found


async def _first_unread_us(client: StreamClient, position: SavedPosition) -> int:
    """Returns when the first unread message was stored, in microseconds since 1970; 0 if it cannot be read."""
    try:
        stream = (await client.get_stream(position.stream_name)).get_partition(position.partition)
        page = await stream.pull_page(FromIndex(position.index), 1)
    except ClientError:
        return 0
    return page.messages[0].time_us if page.messages else 0
