"""Clients of a stream node: `connect` for async programs, and the typed errors."""

from stream_service.client.async_client import PartitionedStream, Publisher, Reconnect, Stream, StreamClient, connect
from stream_service.client.consumer import Consumer, Positions
from stream_service.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    PushFailed,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_service.protocol import StreamMessage

__all__ = [
    "ClientClosed",
    "ClientError",
    "ConnectionLost",
    "Consumer",
    "NodeUnreachable",
    "PartitionedStream",
    "Positions",
    "Publisher",
    "PushFailed",
    "Reconnect",
    "RequestRefused",
    "RequestTimeout",
    "Stream",
    "StreamClient",
    "StreamMessage",
    "UnexpectedAnswer",
    "connect",
]
