"""The client of a stream node: `connect` for async programs, `blocking.connect` for blocking programs, and typed
errors.

    async with connect("127.0.0.1:4000") as client:
        stream = await client.create("orders")
        index = await stream.push(b"hello")
        for message in await stream.pull(0, 10):
            print(message.index, message.data)

This package imports `connect`, `Tls` and `Token` only when a program uses them. So the blocking client works without
trio and AnyIO, and loads OpenSSL only for TLS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import companion as _companion  # noqa: F401 - first, so that compiled modules are found
from stream_client.admin import list_positions, set_position
from stream_client.arguments import FIRST, LAST, NEW
from stream_client.client import StreamClient
from stream_client.consume.consumer import Consumer, PartitionedConsumer
from stream_client.consume.follower import Follower
from stream_client.consume.page import Page
from stream_client.core.pushes import Push, PushesFailed
from stream_client.correspondent import Correspondent
from stream_client.errors import (
    AccessDenied,
    AuthenticationFailed,
    ChannelRefused,
    ChannelSilent,
    ClientClosed,
    ClientError,
    ClientForked,
    ConnectionLost,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    NodeFailed,
    NodeUnreachable,
    NotAStreamNode,
    NotSupported,
    PeerNotTrusted,
    PositionBeyondEnd,
    PositionReset,
    PushFailed,
    PushNotStored,
    PushOutOfOrder,
    PushUnknown,
    RequestRefused,
    RequestTimeout,
    RouteLost,
    RouteRefused,
    StreamNotFound,
    StreamRemade,
    TlsFailed,
    TlsRequired,
    UnexpectedAnswer,
)
from stream_client.positions import Positions, SavedIndexes
from stream_client.publish import PartitionedPublisher, Publisher
from stream_client.routed_messages import RoutedMessage
from stream_client.secure import SecureChannel
from stream_client.share.leases import LeaseMember
from stream_client.share.shared_consumer import SharedConsumer
from stream_client.shell.backoff import Reconnect
from stream_client.stopping import Stopped, stop_on_signals
from stream_client.streams import PartitionedStream, Stream
from stream_service.extensions import FromEnd, FromIndex, FromTime, Header, Retention, RichMessage, StreamInfo
from stream_service.protocol import StreamMessage

if TYPE_CHECKING:
    from ockam.tls import Tls
    from ockam.token import Token
    from stream_client.connecting import connect

__all__ = [
    "FIRST",
    "LAST",
    "NEW",
    "AccessDenied",
    "AuthenticationFailed",
    "ChannelRefused",
    "ChannelSilent",
    "ClientClosed",
    "ClientError",
    "ClientForked",
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
    "LeaseMember",
    "LimitExceeded",
    "NodeFailed",
    "NodeUnreachable",
    "NotAStreamNode",
    "NotSupported",
    "Page",
    "PartitionedConsumer",
    "PartitionedPublisher",
    "PartitionedStream",
    "PeerNotTrusted",
    "PositionBeyondEnd",
    "PositionReset",
    "Positions",
    "Publisher",
    "Push",
    "PushFailed",
    "PushNotStored",
    "PushOutOfOrder",
    "PushUnknown",
    "PushesFailed",
    "Reconnect",
    "RequestRefused",
    "RequestTimeout",
    "Retention",
    "RichMessage",
    "RouteLost",
    "RouteRefused",
    "RoutedMessage",
    "SavedIndexes",
    "SecureChannel",
    "SharedConsumer",
    "Stopped",
    "Stream",
    "StreamClient",
    "StreamInfo",
    "StreamMessage",
    "StreamNotFound",
    "StreamRemade",
    "Tls",
    "TlsFailed",
    "TlsRequired",
    "Token",
    "UnexpectedAnswer",
    "connect",
    "list_positions",
    "set_position",
    "stop_on_signals",
]


def __getattr__(name: str) -> Any:
    if name == "connect":
        from stream_client.connecting import connect

        return connect
    if name == "Tls":
        from ockam.tls import Tls

        return Tls
    if name == "Token":
        from ockam.token import Token

        return Token
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
