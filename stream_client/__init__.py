"""Clients of a stream node: `connect` for async programs, `blocking.connect` for the others, and the typed errors.

`connect` is loaded when it is asked for, so that the blocking client can be had where trio and AnyIO are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stream_client.client import StreamClient
from stream_client.consume.consumer import Consumer, PartitionedConsumer
from stream_client.consume.consumption import Positions
from stream_client.consume.follower import Follower
from stream_client.consume.reader import Page
from stream_client.core.requests import Push
from stream_client.correspondent import Correspondent
from stream_client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    InvalidArgument,
    LeaseLost,
    NodeFailed,
    NodeUnreachable,
    NotAStreamNode,
    NotSupported,
    PositionBeyondEnd,
    PushesFailed,
    PushFailed,
    PushNotStored,
    PushUnknown,
    RequestRefused,
    RequestTimeout,
    RouteLost,
    RouteRefused,
    StreamNotFound,
    UnexpectedAnswer,
)
from stream_client.letters import Letter
from stream_client.publish import PartitionedPublisher, Publisher
from stream_client.share.shared import Membership, SharedConsumer
from stream_client.shell.backoff import Reconnect
from stream_client.starts import FIRST, LAST, NEW
from stream_client.stopping import Stopped, stop_on_signals
from stream_client.streams import PartitionedStream, Stream
from stream_service.extensions import FromEnd, FromIndex, FromTime, Header, Retention, RichMessage, StreamInfo
from stream_service.protocol import StreamMessage

if TYPE_CHECKING:
    from stream_client.shell.async_shell import connect

__all__ = [
    "FIRST",
    "LAST",
    "NEW",
    "ClientClosed",
    "ClientError",
    "ConnectionLost",
    "Consumer",
    "Correspondent",
    "Follower",
    "FromEnd",
    "FromIndex",
    "FromTime",
    "Header",
    "InvalidArgument",
    "LeaseLost",
    "Letter",
    "Membership",
    "NodeFailed",
    "NodeUnreachable",
    "NotAStreamNode",
    "NotSupported",
    "Page",
    "PartitionedConsumer",
    "PartitionedPublisher",
    "PartitionedStream",
    "PositionBeyondEnd",
    "Positions",
    "Publisher",
    "Push",
    "PushFailed",
    "PushNotStored",
    "PushUnknown",
    "PushesFailed",
    "Reconnect",
    "RequestRefused",
    "RequestTimeout",
    "Retention",
    "RichMessage",
    "RouteLost",
    "RouteRefused",
    "SharedConsumer",
    "Stopped",
    "Stream",
    "StreamClient",
    "StreamInfo",
    "StreamMessage",
    "StreamNotFound",
    "UnexpectedAnswer",
    "connect",
    "stop_on_signals",
]


def __getattr__(name: str) -> Any:
    if name == "connect":
        from stream_client.shell.async_shell import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
