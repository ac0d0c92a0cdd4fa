"""The settings of the block client, and their defaults."""

from __future__ import annotations

from typing import Final

import msgspec

from stream_client.shell.backoff import Reconnect

ANSWER_S_MAX: Final = 30.0
"""The default time in seconds that a node may take to answer."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""The default number of bytes that a node may send to a subscription before the client has confirmed them, 8 MiB."""


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a publisher.

    - kept_blocks_max: the maximum number of blocks that wait for an acknowledgement. At this number `send` waits.
    - kept_bytes_max: the maximum total size of these blocks in bytes. `send` waits if a further block exceeds it.
    - answer_s_max: if an acknowledgement is due and the node sends nothing for this many seconds, the session ends.
    - give_up_s: the publisher fails if no block is acknowledged, sent or compared for this many seconds. None: never.
    - refusals_max: the publisher fails after this many refusals of one block. With 1 it never sends a refused
      block again.
    - reconnect: the delays between two sessions with nodes.
    """

    kept_blocks_max: int = 150
    kept_bytes_max: int = 256 * 1024 * 1024
    answer_s_max: float = ANSWER_S_MAX
    give_up_s: float | None = None
    refusals_max: int = 1
    reconnect: Reconnect = Reconnect()
