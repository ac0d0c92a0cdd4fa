"""The settings of the block client, with their defaults."""

from __future__ import annotations

from typing import Final

import msgspec

from stream_client.shell.backoff import Reconnect

ANSWER_S_MAX: Final = 30.0
"""How long a node may take to answer, unless the program says otherwise."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""How much of a subscription may be on its way without having been taken."""


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a publisher.

    kept_blocks_max, kept_bytes_max: the blocks without an acknowledgement, at most. answer_s_max: for a node to say
    anything while it owes an acknowledgement. give_up_s: the time without an acknowledgement after which the publisher
    gives up; None is never. refusals_max: refusals of one block before that is an error; with 1 a refused block is not
    sent again. reconnect: delays between sessions.
    """

    kept_blocks_max: int = 150
    kept_bytes_max: int = 256 * 1024 * 1024
    answer_s_max: float = ANSWER_S_MAX
    give_up_s: float | None = None
    refusals_max: int = 1
    reconnect: Reconnect = Reconnect()
