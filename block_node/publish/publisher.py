"""A publisher's session as the desk sees it, and what the desk counts. Nothing happens here."""

from __future__ import annotations

from typing import Protocol

import msgspec

from block_node.protocol import PublishResponse, PublishStatus
from block_node.publish.leases_machine import LeaseStatistics


class Publisher(Protocol):
    """A session, as the desk sees it.

    receiving: the block on its way from it. cursor: the block that it goes on with, by what came from it and what it
    was told. newest_offered: the highest header that came from it. behind: the block that it offered last, where that
    was too high. held: we do not read from it. used_s, asked_s: when it last sent something, and was last told to go
    back. wants_roots: its acknowledgements name the roots of the blocks.
    """

    session_id: int
    wants_roots: bool
    newest_offered: int
    behind: int | None
    cursor: int
    held: bool
    used_s: float
    asked_s: float

    @property
    def receiving(self) -> int | None: ...

    @property
    def reachable(self) -> bool: ...

    def tell(self, response: PublishResponse) -> None: ...

    def end(self, status: PublishStatus, block_number: int | None, reason: str) -> None:
        """Tell it that the stream has ended, and leave the desk."""
        ...

    def leave(self) -> None:
        """Leave the desk, without a word to a publisher that is gone."""
        ...

    def taken_away(self) -> None:
        """The block that it is sending is not wanted from it any more."""
        ...

    def admit(self) -> None:
        """Read on, after `may_read` was false."""
        ...


class DeskStatistics(msgspec.Struct, frozen=True):
    """last_block: what is acknowledged. Counters since the start.

    For the target see `block_node.publish.catch_up_machine`.
    """

    publishers: int
    last_block: int | None
    next_block: int
    target_block: int | None
    catch_up_stalled: bool
    leases: LeaseStatistics
    acknowledgements: int
    refused_blocks: int
    resends_asked: int
    node_failures: int
