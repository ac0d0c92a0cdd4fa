"""FloodGuard: bounds the frames that cost a server more than their sender. It reads the heads of frames, no bodies.

    frame = length (3 bytes) | type (1) | flags (1) | stream (4) | body

h2 answers and buffers such frames itself, without a bound by time: PING and SETTINGS are acknowledged, and of a header
block 64 CONTINUATION frames are kept. So the guard sees the bytes before h2 does.
"""

from __future__ import annotations

import enum
from collections import Counter

from block_node.grpc.http2.limits import Http2Limits

HEAD_BYTES = 9
PREFACE_BYTES = 24
ACK = END_STREAM = 1


class FrameType(enum.IntEnum):
    """The types of frames (RFC 9113 §6) that the guard tells apart. CONTINUATION has the highest number in the RFC."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    SETTINGS = 4
    PING = 6
    CONTINUATION = 9


class Flood(Exception):
    """The error of a peer that sends too many frames, or too large a header block."""


class FloodGuard:
    """The counts of one connection. skip_bytes: the bytes before the first frame, such as the preface of a client.

    Invariant: `_skip_bytes` is the rest of the present frame's body. While it is 0, `_head` has less than one head.
    """

    def __init__(self, limits: Http2Limits, skip_bytes: int = PREFACE_BYTES) -> None:
        self._limits = limits
        self._skip_bytes = skip_bytes
        self._head = b""
        self._second_s = self._resets_from_s = 0.0
        self._counts: Counter[str] = Counter()
        self._resets: Counter[str] = Counter()
        self._header_bytes = 0
        self._most = {
            "PING": limits.pings_max,
            "SETTINGS": limits.settings_max,
            "PRIORITY": limits.priorities_max,
            "empty": limits.empty_frames_max,
        }

    def frames(self, data: bytes, now_s: float) -> None:
        """Walks over received bytes. Raises Flood."""
        at, end = 0, len(data)
        while at < end:
            if self._skip_bytes:
                step = min(self._skip_bytes, end - at)
                self._skip_bytes -= step
                at += step
                continue
            # A head can come in several reads.
            wanted = HEAD_BYTES - len(self._head)
            head = self._head + data[at : at + wanted]
            at += wanted
            if len(head) < HEAD_BYTES:
                self._head = head
                return
            self._head = b""
            self._skip_bytes = int.from_bytes(head[:3], "big")
            self._judge(head[3], head[4], self._skip_bytes, now_s)

    def reset(self, now_s: float) -> None:
        """Counts a call that the peer has reset, or that has ended by its error. Raises Flood."""
        self._count_call("resets", self._limits.resets_max, now_s)

    def refused(self, now_s: float) -> None:
        """Counts a call above the limit of open calls. Raises Flood."""
        self._count_call("calls above the limit", self._limits.refused_max, now_s)

    def _judge(self, kind: int, flags: int, size_bytes: int, now_s: float) -> None:
        if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
            # Frames of one header block follow each other directly, so one sum is enough.
            self._header_bytes = size_bytes + (self._header_bytes if kind == FrameType.CONTINUATION else 0)
            if self._header_bytes > self._limits.header_bytes_max:
                raise Flood(f"a header block is larger than {self._limits.header_bytes_max} bytes")
            if not size_bytes:
                self._count("empty", now_s)
        elif kind == FrameType.DATA:
            # An empty frame that ends the stream happens once a call.
            if not size_bytes and not flags & END_STREAM:
                self._count("empty", now_s)
        elif kind == FrameType.PRIORITY or (kind in (FrameType.PING, FrameType.SETTINGS) and not flags & ACK):
            self._count(FrameType(kind).name, now_s)
        elif kind > FrameType.CONTINUATION:
            self._count("empty", now_s)

    def _count(self, name: str, now_s: float) -> None:
        if now_s - self._second_s >= 1.0:
            self._second_s = now_s
            self._counts.clear()
        self._counts[name] += 1
        if self._counts[name] > self._most[name]:
            raise Flood(f"more than {self._most[name]} {name} frames came in a second")

    def _count_call(self, name: str, most: int, now_s: float) -> None:
        if now_s - self._resets_from_s >= self._limits.resets_s:
            self._resets_from_s = now_s
            self._resets.clear()
        self._resets[name] += 1
        if self._resets[name] > most:
            raise Flood(f"more than {most} {name} came in {self._limits.resets_s:g} s")
