"""OpenBatch: pushes of one queue that are sent in one frame. It encodes nothing.

A batch is open from its first push until the shell takes the bytes to send, so no push waits for others.
"""

from __future__ import annotations

from stream_service.push_batch import BATCH_MESSAGES_MAX

BATCHED_DATA_BYTES_MAX = 4 * 1024
"""The size of the largest message that goes into a batch, in bytes. Larger messages gain nothing from a batch."""
BATCHED_SIZE_BYTES = 2
BATCH_BYTES_MAX = 48 * 1024
"""A batch of this size takes no further message, so that it fits into a frame of either framing."""


class OpenBatch:
    """Pushes of one queue that are sent in one frame.

    header: the encoded routes of the frame.
    request_id: the request id of the first push. The others have the next numbers.
    size_bytes: the size of the messages and of their length fields.
    """

    __slots__ = ("header", "is_open", "messages", "request_id", "size_bytes")

    def __init__(self, header: bytes, request_id: int) -> None:
        self.header = header
        self.request_id = request_id
        self.messages: list[bytes] = []
        self.size_bytes = 0
        self.is_open = True

    def takes(self, request_id: int) -> bool:
        return (
            self.is_open
            and self.size_bytes < BATCH_BYTES_MAX
            and len(self.messages) < BATCH_MESSAGES_MAX
            and request_id == self.request_id + len(self.messages)
        )
