"""The client of a stream node: `connect` for async programs, `blocking.connect` for blocking programs, and typed
errors.

    async with connect("127.0.0.1:4000") as client:
        stream = await client.create("orders")
        index = await stream.push(b"hello")
        for message in await stream.pull(0, 10):
            print(message.index, message.data)

This package imports `Tls`, `Token` and `OwnIdentity` only when a program uses them, and AnyIO only for `connect`. So
the blocking client works without trio and AnyIO, and loads OpenSSL only for TLS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from index_service.extensions import SavedPosition
from ockam.actors.address import Address, Route
from stream_client.admin import PositionListing, StreamListing, list_positions, set_position
from stream_client.arguments import FIRST, LAST, NEW, BeforeLike, BytesLike, HeadersLike, StartLike
from stream_client.client import StreamClient
from stream_client.connecting import SecureChannel, connect
from stream_client.consume.consumer import Consumer, Follower, Messages, PartitionedConsumer
from stream_client.consume.page import ConsumerArguments, OnEvent, OnHole, Page
from stream_client.core.client_core import ClientStatistics
from stream_client.core.pushes import Push, PushesFailed
from stream_client.correspondent import Correspondent, RoutedMessage, RoutedMessages
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
from stream_client.session import Connected, Conversation
from stream_client.share.membership import LeaseMember
from stream_client.share.shared_consumer import SharedConsumer, SharedMessages
from stream_client.shell.base_shell import Framing, OnLink, Reconnect
from stream_client.stopping import Stopped, stop_on_signals
from stream_client.streams import PartitionedStream, Stream
from stream_service.appending import CopyResponse
from stream_service.extensions import (
    BeforeIndex,
    BeforeTime,
    FromEnd,
    FromIndex,
    FromTime,
    Header,
    Retention,
    RichMessage,
    StreamInfo,
    TruncateResponse,
)
from stream_service.protocol import StreamMessage

if TYPE_CHECKING:
    from ockam.identity.channel.proof import OwnIdentity
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token

__all__ = [
    "FIRST",
    "LAST",
    "NEW",
    "AccessDenied",
    "Address",
    "AuthenticationFailed",
    "BeforeIndex",
    "BeforeLike",
    "BeforeTime",
    "BytesLike",
    "ChannelRefused",
    "ChannelSilent",
    "ClientClosed",
    "ClientError",
    "ClientForked",
    "ClientStatistics",
    "Connected",
    "ConnectionLost",
    "Consumer",
    "ConsumerArguments",
    "Conversation",
    "CopyResponse",
    "Correspondent",
    "Follower",
    "Framing",
    "FromEnd",
    "FromIndex",
    "FromTime",
    "Header",
    "HeadersLike",
    "InvalidArgument",
    "LeaseLost",
    "LeaseMember",
    "LimitExceeded",
    "Messages",
    "NodeFailed",
    "NodeUnreachable",
    "NotAStreamNode",
    "NotSupported",
    "OnEvent",
    "OnHole",
    "OnLink",
    "OwnIdentity",
    "Page",
    "PartitionedConsumer",
    "PartitionedPublisher",
    "PartitionedStream",
    "PeerNotTrusted",
    "PositionBeyondEnd",
    "PositionListing",
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
    "Route",
    "RouteLost",
    "RouteRefused",
    "RoutedMessage",
    "RoutedMessages",
    "SavedIndexes",
    "SavedPosition",
    "SecureChannel",
    "SharedConsumer",
    "SharedMessages",
    "StartLike",
    "Stopped",
    "Stream",
    "StreamClient",
    "StreamInfo",
    "StreamListing",
    "StreamMessage",
    "StreamNotFound",
    "StreamRemade",
    "Tls",
    "TlsFailed",
    "TlsRequired",
    "Token",
    "TruncateResponse",
    "UnexpectedAnswer",
    "connect",
    "list_positions",
    "set_position",
    "stop_on_signals",
]


_LATER = {
    "OwnIdentity": "ockam.identity.channel.proof",
    "Tls": "ockam.identity.tls",
    "Token": "ockam.identity.token",
}
"""The names that are imported when a program first uses them, with their modules."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
