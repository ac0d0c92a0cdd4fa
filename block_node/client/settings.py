"""The settings of the block client, and their defaults."""

from __future__ import annotations

from typing import Final

import msgspec

from stream_client.shell.backoff import Reconnect

ANSWER_S_MAX: Final = 30.0
"""How long a node may take to answer, unless the program says otherwise."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""How many bytes of a subscription a node may send before the client has confirmed that it received them."""


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a publisher.

    kept_blocks_max, kept_bytes_max: how many blocks, and bytes of blocks, may be without an acknowledgement.
    answer_s_max: how long a node that owes an acknowledgement may send nothing. give_up_s: the publisher gives up after
    this time without an acknowledgement; None: never. refusals_max: after this many refusals of one block the publisher
    fails; with 1 it never sends a refused block again. reconnect: the delays between sessions.
    """

    kept_blocks_max: int = 150
    kept_bytes_max: int = 256 * 1024 * 1024
    answer_s_max: float = ANSWER_S_MAX
    give_up_s: float | None = None
    refusals_max: int = 1
    reconnect: Reconnect = Reconnect()
