"""The messages of the index protocols (specs/stream_service.md, "Index" and "Partitioned index").

The protocol name `stream_index` stands for two forms of messages: a plain form, and a form with a partition. A payload
that is exactly one uint longer than a plain message has the form with a partition (design.md §2).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, cast

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError


# type GetIndex { client_id: string  stream_name: string }
class GetIndex(msgspec.Struct, frozen=True):
    """A request for the saved index of a client on a stream. If none is saved, the service saves 0."""

    client_id: str
    stream_name: str


# type SaveIndex { client_id: string  stream_name: string  index: uint }
class SaveIndex(msgspec.Struct, frozen=True):
    """A request to save up to which index a client has read a stream. The service sends no answer."""

    client_id: str
    stream_name: str
    index: bare.UInt


# type Index { client_id: string  stream_name: string  index: optional<uint> }
class Index(msgspec.Struct, frozen=True):
    """The answer to a GetIndex. Our service never sends None; it sends 0 if no index was saved."""

    client_id: str
    stream_name: str
    index: bare.UInt | None


# type GetPartitionIndex { client_id: string  stream_name: string  partition: uint }
class GetPartitionIndex(msgspec.Struct, frozen=True):
    """A request for the saved index of a client in one partition of a stream. If none is saved, the service saves 0."""

    client_id: str
    stream_name: str
    partition: bare.UInt


# type SavePartitionIndex { client_id: string  stream_name: string  partition: uint  index: uint }
class SavePartitionIndex(msgspec.Struct, frozen=True):
    """A request to save up to which index a client has read one partition of a stream. The service sends no answer."""

    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt


# type PartitionIndex { client_id: string  stream_name: string  partition: uint  index: optional<uint> }
class PartitionIndex(msgspec.Struct, frozen=True):
    """The answer to a GetPartitionIndex. Our service never sends None; it sends 0 if no index was saved."""

    client_id: str
    stream_name: str
    partition: bare.UInt
    index: bare.UInt | None


# type Request (GetIndex | SaveIndex)
PlainRequest: TypeAlias = Annotated[GetIndex | SaveIndex, bare.Union({0: GetIndex, 1: SaveIndex})]
PartitionRequest: TypeAlias = Annotated[
    GetPartitionIndex | SavePartitionIndex, bare.Union({0: GetPartitionIndex, 1: SavePartitionIndex})
]

INDEX = Protocol("stream_index", cast("type[GetIndex | SaveIndex]", PlainRequest), Index)
_partition_request = cast("type[GetPartitionIndex | SavePartitionIndex]", PartitionRequest)
PARTITIONED_BODY = Protocol("stream_index", _partition_request, PartitionIndex)
"""The protocol for indexes with a partition, under the name that the specification gives it: `stream_index`."""
INDEX_PARTITIONED = Protocol("stream_index_partitioned", _partition_request, PartitionIndex)
"""The protocol for indexes with a partition, under the name that the real services and clients use."""

Request: TypeAlias = GetIndex | SaveIndex | GetPartitionIndex | SavePartitionIndex


def decode_request(payload: bytes) -> Request:
    """Decodes a request to get or save an index, in either form and under either name. Raises ProtocolError."""
    if INDEX_PARTITIONED.is_in(payload):
        return INDEX_PARTITIONED.decode_request(payload)
    # The form with a partition may have the name of the plain form. Only the length of the message says which it is.
    try:
        return INDEX.decode_request(payload)
    except ProtocolError as plain_error:
        if not INDEX.is_in(payload):
            raise
        try:
            return PARTITIONED_BODY.decode_request(payload)
        except ProtocolError:
            raise plain_error from None
