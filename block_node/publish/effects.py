"""Effects: actions that the publish machine requests, as values.

The machine (`block_node.publish.publish_machine`) lists the effects in the order in which they must happen. The runner
(`block_node.publish.runner`) carries them out. Events for the plugins are effects too.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from block_node.events import Event
from block_node.protocol import PublishResponse, StreamEnded


class Tell(msgspec.Struct, frozen=True):
    """The effect of sending an answer to a publisher."""

    publisher_id: int
    response: PublishResponse


class EndSession(msgspec.Struct, frozen=True):
    """The effect of ending a publisher's session, which also frees the session's address.

    ended: the last answer to the publisher. None if the publisher itself ended the stream or has disconnected.
    """

    publisher_id: int
    ended: StreamEnded | None


class LogLine(msgspec.Struct, frozen=True):
    """The effect of writing a line to the log. is_warning: True for the level warning, False for the level info."""

    event: str
    fields: dict[str, Any]
    is_warning: bool = False


Effect: TypeAlias = Tell | EndSession | LogLine | Event
