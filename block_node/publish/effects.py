"""Effects: actions that the publish machine requests, as values, in the order in which they must happen. The runner
(`block_node.publish.runner`) carries them out. Events for the plugins are effects too."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from block_node.blocks.errors import FailureKind
from block_node.events import Event
from block_node.protocol import PublishResponse, PublishStatus, StreamEnded


class SendResponse(msgspec.Struct, frozen=True):
    publisher_id: int
    response: PublishResponse


class EndSession(msgspec.Struct, frozen=True):
    """Ends a publisher's session. ended: the last answer; None if the publisher has left."""

    publisher_id: int
    ended: StreamEnded | None


class LogLine(msgspec.Struct, frozen=True):
    event: str
    fields: dict[str, Any]
    is_warning: bool = False


Effect: TypeAlias = SendResponse | EndSession | LogLine | Event


def status_of(failure: str | None) -> PublishStatus:
    """Returns the status with which a stream ends after a block that failed verification."""
    too_large = failure == FailureKind.LIMIT_EXCEEDED.value
    return PublishStatus.INVALID_REQUEST if too_large else PublishStatus.BAD_BLOCK_PROOF
