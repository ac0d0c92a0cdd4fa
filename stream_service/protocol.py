"""The messages of the specification's stream protocols, as types, and the protocols that encode and decode them.

The source is specs/stream_service.md, "Payload BARE specs". The comment above each type quotes its BARE schema from the
specification.
"""

from __future__ import annotations

import enum

import msgspec

import bare
from ockam.protocol import Protocol


# type CreateStreamRequest { stream_name: optional<string> }
class CreateStream(msgspec.Struct, frozen=True):
    stream_name: str | None


# type Init { stream_name: string }
class StreamCreated(msgspec.Struct, frozen=True):
    stream_name: str


# type CreatePartitionedStreamRequest { stream_name: optional<string>  partitions: uint }
class CreatePartitions(msgspec.Struct, frozen=True):
    stream_name: str | None
    partitions: bare.UInt


# type CreatePartitionedStreamResponse { stream_name: string  partition: uint }
class PartitionCreated(msgspec.Struct, frozen=True):
    stream_name: str
    partition: bare.UInt


# type PushRequest { request_id: uint  data: data }
class PushRequest(msgspec.Struct, frozen=True, gc=False):
    request_id: bare.UInt
    data: bytes


# enum Status { OK ERROR }
class Status(enum.IntEnum):
    OK = 0
    ERROR = 1


# type PushConfirm { request_id: uint  status: Status  index: uint }
class PushConfirm(msgspec.Struct, frozen=True, gc=False):
    request_id: bare.UInt
    status: Status
    index: bare.UInt


# type PullRequest { request_id: uint  index: uint  limit: uint }
class PullRequest(msgspec.Struct, frozen=True, gc=False):
    request_id: bare.UInt
    index: bare.UInt
    limit: bare.UInt


# type StreamMessage { index: uint  data: data }
class StreamMessage(msgspec.Struct, frozen=True, gc=False):
    """One stored message of a partition, and its index there."""

    index: bare.UInt
    data: bytes


# type PullResponse { request_id: uint  messages: []StreamMessage }
class PullResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    messages: list[StreamMessage]


# "Payload MAY contain some additional information about the stream": the three protocols of creation ignore bytes
# behind the fields.
CREATE = Protocol("stream_create", CreateStream, StreamCreated, open_ended=True)
CREATE_PARTITIONED = Protocol("stream_create_partitioned", CreatePartitions, PartitionCreated, open_ended=True)
"""The protocol that creates several partitions of a stream, under the name that the real services and clients use."""
CREATE_PARTITIONS = Protocol("stream_create_partitions", CreatePartitions, PartitionCreated, open_ended=True)
"""The protocol that creates several partitions of a stream, under the name in the specification."""
PUSH = Protocol("stream_push", PushRequest, PushConfirm)
PULL = Protocol("stream_pull", PullRequest, PullResponse)
