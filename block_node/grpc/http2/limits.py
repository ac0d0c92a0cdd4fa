"""Http2Limits: the bounds of one gRPC connection, and of all connections together."""

from __future__ import annotations

import msgspec


class Http2Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a connection. The reference block node's values are in facts/block_node.md §2.6.

    - frame_bytes_max: the largest frame that a peer may send. Small frames cost more for each byte, and of a larger
      one h2 copies the unfinished part again at each read.
    - stream_window_bytes: the window of a new call. It is the default of HTTP/2 (RFC 9113 §6.5.2), which a peer assumes
      until it has seen our settings. An admitted call can get a larger window by `GrpcCall.widen`.
    - connection_window_bytes: the window of all calls together. It is given back when bytes arrive, so it bounds no
      memory.
    - streams_max: the most open calls of a connection. header_bytes_max: the headers of a request, also decompressed.
    - unfinished_bytes_max: the received bytes of all incomplete messages on all connections (`DoorBudget`), and as much
      again for all windows beyond the first ones.
    - pending_bytes_max: the bytes that wait for the window of one call; above it, its handler waits for room.
    - unsent_bytes_max: the bytes of a connection that are framed and that its socket has not taken.
    - resets_max: the most calls that a peer may reset, and that end by its errors, within `resets_s` (CVE-2023-44487,
      CVE-2025-8671). refused_max: the most calls above `streams_max` within that time.
    - pings_max, settings_max, priorities_max, empty_frames_max: the most such frames in a second. PBJ, the gRPC of
      consensus nodes, sends a PING at each time-out of a read, so PINGs are never forbidden.
    - linger_s: for how long a peer may keep its half of a call open after the call has ended.
    - ping_s, ping_answer_s: how often this side asks whether the peer is alive, and the longest wait for any byte.
    - idle_s_max: the longest time without an open call. send_s_max: the longest time in which a peer takes no byte.
    - message_s_max: the longest time for one message, and one second more for each `message_bytes_per_s`.
    """

    frame_bytes_max: int = 256 * 1024
    stream_window_bytes: int = 65_535
    connection_window_bytes: int = 16 * 1024 * 1024
    streams_max: int = 100
    header_bytes_max: int = 8 * 1024
    unfinished_bytes_max: int = 512 * 1024 * 1024
    pending_bytes_max: int = 1024 * 1024
    unsent_bytes_max: int = 1024 * 1024
    resets_max: int = 50
    resets_s: float = 10.0
    refused_max: int = 1_000
    pings_max: int = 200
    settings_max: int = 50
    priorities_max: int = 1_000
    empty_frames_max: int = 1_000
    linger_s: float = 10.0
    ping_s: float = 30.0
    ping_answer_s: float = 10.0
    idle_s_max: float = 7_200.0
    send_s_max: float = 30.0
    message_s_max: float = 30.0
    message_bytes_per_s: int = 1024 * 1024
