"""Effects: what the publish machine wants done outside of itself, as values. They do nothing.

The machine (`block_node.publish.publish_machine`) lists them in the order in which they are to happen; the runner
(`block_node.publish.runner`) carries them out. Events for the plugins are effects too, as they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from block_node.events import Event
from block_node.protocol import PublishResponse, StreamEnded


class Tell(msgspec.Struct, frozen=True):
    """Send this answer to this publisher."""

    publisher_id: int
    response: PublishResponse


class EndSession(msgspec.Struct, frozen=True):
    """The session of this publisher is over, and its address is free.

    ended: the last answer to the publisher; None where the publisher itself has ended the stream, or is gone.
    """

    publisher_id: int
    ended: StreamEnded | None


class LogLine(msgspec.Struct, frozen=True):
    """A line for the log. is_warning: people should look at the line; else it is for information."""

    event: str
    fields: dict[str, Any]
    is_warning: bool = False


Effect: TypeAlias = Tell | EndSession | LogLine | Event
