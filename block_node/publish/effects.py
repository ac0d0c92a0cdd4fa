"""Effects: actions that the publish machine wants carried out, as values. They do nothing by themselves.

The machine (`block_node.publish.publish_machine`) lists them in the order in which they must happen, and the runner
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
    """The effect of ending a publisher's session, which frees its address.

    ended: the last answer to the publisher; None if the publisher itself ended the stream or is gone.
    """

    publisher_id: int
    ended: StreamEnded | None


class LogLine(msgspec.Struct, frozen=True):
    """The effect of writing a line to the log. is_warning: whether the line is a warning; else it is for
    information."""

    event: str
    fields: dict[str, Any]
    is_warning: bool = False


Effect: TypeAlias = Tell | EndSession | LogLine | Event
