"""Makes the limits of gRPC from the settings of a node."""

from __future__ import annotations

from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.limits import GrpcLimits
from stream_node.node.config import Config


def http2_limits(config: Config) -> Http2Limits:
    return Http2Limits(
        streams_max=config.grpc_streams_max,
        header_bytes_max=config.grpc_header_bytes_max,
        resets_max=config.grpc_resets_max,
        pings_max=config.grpc_pings_max,
        idle_s_max=config.grpc_idle_timeout_s,
        send_s_max=config.send_timeout_s,
        unfinished_bytes_max=config.grpc_unfinished_bytes_max,
    )


def grpc_limits(config: Config) -> GrpcLimits:
    return GrpcLimits(message_bytes_max=config.grpc_message_bytes_max, duplicate_window=config.grpc_duplicate_window)
