"""Http2Limits: the bounds of one gRPC connection, and of all connections together.

FloodGuard: keeps the bounds of frames that cost a server more than their sender. h2 answers and buffers such frames
itself, without a bound by time: PING and SETTINGS are acknowledged, and of a header block 64 CONTINUATION frames are
kept. So the guard judges the head of each frame before h2 takes the frame.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame, PingFrame, PriorityFrame, SettingsFrame

ACK = END_STREAM = 1
COUNTED = {PriorityFrame.type: "PRIORITY", SettingsFrame.type: "SETTINGS", PingFrame.type: "PING"}


class Http2Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a connection. The reference block node's values are in facts/block_node.md §2.6.

    - frame_bytes_max: the largest frame that a peer may send. Small frames cost more for each byte. Of a large frame,
      h2 copies the unfinished part again at each read.
    - stream_window_bytes: the window of a new call. It is the default of HTTP/2 (RFC 9113 §6.5.2), which a peer assumes
      until it has seen our settings. An admitted call can get a larger window by `GrpcCall.widen`.
    - connection_window_bytes: the window of all calls together. It is given back when bytes arrive, so it bounds no
      memory.
    - streams_max: the most open calls of a connection. header_bytes_max: the headers of a request, also decompressed.
    - unfinished_bytes_max: the most received bytes of all incomplete messages on all connections, and the most bytes by
      which all windows together are widened (`DoorBudget`).
    - pending_bytes_max: the bytes that wait for the window of one call; above it, its handler waits for room.
    - unsent_bytes_max: the bytes of a connection that are framed and that its socket has not taken.
    - resets_max: the most calls that a peer may reset, and that end by its errors, within `resets_s` (CVE-2023-44487,
      CVE-2025-8671). refused_max: the most calls above `streams_max` within that time.
    - pings_max, settings_max, priorities_max, empty_frames_max: the most such frames in a second. PBJ, the gRPC of
      consensus nodes, sends a PING at each time-out of a read, so PINGs are never forbidden.
    - linger_s: for how long a peer may keep its half of a call open after the call has ended.
    - ping_s, ping_answer_s: how often this side asks whether the peer is alive, and the longest wait for any byte.
    - idle_s_max: the longest time without an open call. send_s_max: the longest time in which a peer takes no byte.
    - message_s_max, message_bytes_per_s: a message may take `message_s_max` seconds, and one more for each
      `message_bytes_per_s` bytes.
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


class Flood(Exception):
    """The error of a peer that sends too many frames, or too large a header block."""


class FloodGuard:
    """Counts the costly frames of one connection, and refuses too many. now_s: set by the caller before each call."""

    def __init__(self, limits: Http2Limits, now_s: float) -> None:
        self._limits = limits
        self._second_s = self._resets_from_s = self.now_s = now_s
        self._counts: Counter[str] = Counter()
        self._resets: Counter[str] = Counter()
        self._header_bytes = 0
        self._most = {
            "PING": limits.pings_max,
            "SETTINGS": limits.settings_max,
            "PRIORITY": limits.priorities_max,
            "empty": limits.empty_frames_max,
        }

    def judge(self, kind: int, flags: int, size_bytes: int) -> None:
        """Counts a frame, by its type, its flags and the size of its body. Raises Flood."""
        if kind == DataFrame.type:
            # An empty frame that ends the stream happens once a call.
            if not size_bytes and not flags & END_STREAM:
                self._count("empty")
        elif kind in (HeadersFrame.type, ContinuationFrame.type):
            # Frames of one header block follow each other directly, so one sum is enough.
            self._header_bytes = size_bytes + (self._header_bytes if kind == ContinuationFrame.type else 0)
            if self._header_bytes > self._limits.header_bytes_max:
                raise Flood(f"a header block is larger than {self._limits.header_bytes_max} bytes")
            if not size_bytes:
                self._count("empty")
        elif kind in COUNTED:
            # The answer to a frame of this side costs nothing. A PRIORITY frame has no flags.
            if kind == PriorityFrame.type or not flags & ACK:
                self._count(COUNTED[kind])
        elif kind > ContinuationFrame.type:
            # RFC 9113 defines no frame of this type.
            self._count("empty")

    def reset(self) -> None:
        """Counts a call that the peer has reset, or that has ended by its error. Raises Flood."""
        self._count_call("resets", self._limits.resets_max)

    def refused(self) -> None:
        """Counts a call above the limit of open calls. Raises Flood."""
        self._count_call("calls above the limit", self._limits.refused_max)

    def _count(self, name: str) -> None:
        if self.now_s - self._second_s >= 1.0:
            self._second_s = self.now_s
            self._counts.clear()
        self._counts[name] += 1
        if self._counts[name] > self._most[name]:
            raise Flood(f"more than {self._most[name]} {name} frames came in a second")

    def _count_call(self, name: str, most: int) -> None:
        if self.now_s - self._resets_from_s >= self._limits.resets_s:
            self._resets_from_s = self.now_s
            self._resets.clear()
        self._resets[name] += 1
        if self._resets[name] > most:
            raise Flood(f"more than {most} {name} came in {self._limits.resets_s:g} s")
