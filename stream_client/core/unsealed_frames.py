"""UnsealedFrames: the frames of one secure channel that wait to be encrypted and sent. It does no I/O.

All waiting frames are encrypted together when they are sent, because this is faster than one by one.
"""

from __future__ import annotations

from ockam.identity.channel.channel_machine import ChannelMachine
from ockam.identity.channel.messages import PlaintextWriter
from ockam.identity.channel.transport import OVERHEAD_BYTES
from ockam.transport.frames import FrameHeads


class FrameGroup:
    """Waiting frames in a row that differ in the content of their payloads only.

    header: the encoded routes inside the channel, a result of `ChannelConnection.header`.
    payload_bytes: the size of each payload. `frame_bytes`: of each frame.
    head, tail: the bytes of each plaintext before and after the payload.
    frame_head, frame_tail: the bytes of each frame before and after the encrypted message.
    """

    __slots__ = ("frame_bytes", "frame_head", "frame_tail", "head", "header", "payload_bytes", "plaintexts", "tail")

    def __init__(
        self, header: bytes, payload_bytes: int, inner: tuple[bytes, bytes], outer: tuple[bytes, bytes]
    ) -> None:
        """inner: `head` and `tail`. outer: `frame_head` and `frame_tail`."""
        self.header, self.payload_bytes = header, payload_bytes
        self.head, self.tail = inner
        self.frame_head, self.frame_tail = outer
        self.frame_bytes = sum(map(len, inner + outer)) + payload_bytes + OVERHEAD_BYTES
        self.plaintexts: list[bytes] = []


NO_GROUP = FrameGroup(b"", -1, (b"", b""), (b"", b""))
"""The value while no group is begun. No frame belongs to it, because no payload has its size."""


class UnsealedFrames:
    """The waiting frames of one channel, in the order in which they are encrypted and sent."""

    __slots__ = ("_frame_header", "_groups", "_heads", "_writer")

    def __init__(self, frame_header: bytes, heads: FrameHeads) -> None:
        """frame_header: the encoded routes of each frame: the route to the other end of the channel."""
        self._frame_header = frame_header
        self._heads = heads
        self._writer = PlaintextWriter()
        self._groups: list[FrameGroup] = []

    @property
    def size_bytes(self) -> int:
        return sum(group.frame_bytes * len(group.plaintexts) for group in self._groups)

    def begin_group(self, header: bytes, payload_bytes: int) -> FrameGroup:
        """Returns a new group at the end of the waiting frames. The caller appends plaintexts to it. Raises
        FrameTooLarge, so a frame that is too large uses up no nonce."""
        inner = self._writer.around(header, payload_bytes)
        sealed_bytes = len(inner[0]) + payload_bytes + len(inner[1]) + OVERHEAD_BYTES
        outer = self._heads.around(self._frame_header).get(sealed_bytes)
        if outer is None:
            outer = self._heads.make(self._frame_header, sealed_bytes)
        group = FrameGroup(header, payload_bytes, inner, outer)
        self._groups.append(group)
        return group

    def clear(self) -> None:
        self._groups = []

    def seal(self, machine: ChannelMachine) -> bytes:
        """Removes all waiting frames, and returns their bytes. Raises NoncesUsedUp; then the frames are dropped."""
        # A group stays empty if an exception, such as that of a signal handler, interrupted the caller.
        groups, self._groups = [group for group in self._groups if group.plaintexts], []
        sealed = machine.seal_many([plaintext for group in groups for plaintext in group.plaintexts])
        parts: list[bytes] = []
        at = 0
        for group in groups:
            end = at + len(group.plaintexts)
            # Between two messages stand the end of one frame and the beginning of the next.
            between = group.frame_tail + group.frame_head
            parts += (group.frame_head, between.join(sealed[at:end]), group.frame_tail)
            at = end
        return b"".join(parts)
