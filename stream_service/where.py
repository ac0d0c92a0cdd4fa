"""The protocol `node/where/1`, by which a client learns which process serves a stream-partition."""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol


# type WhereRequest struct { request_id: uint, stream_name: string, partition: uint }
class WhereRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    stream_name: str
    partition: bare.UInt


# type WhereResponse struct { request_id: uint, address: string, epoch: uint }
class WhereResponse(msgspec.Struct, frozen=True):
    """address: the `host:port` of the node of the cluster that serves the stream-partition; empty if the asked node
    serves it, or if no node does now. epoch: rises when the owner changes; 0 without a cluster."""

    request_id: bare.UInt
    address: str
    epoch: bare.UInt


WHERE = Protocol("node/where/1", WhereRequest, WhereResponse)
