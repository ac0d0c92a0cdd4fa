"""The errors of this package. The class of an error says whose fault it was: a `MessageError` is the fault of a remote
producer or of the transport, a `PayloadError` or `PrefixError` is the fault of the local application.

All errors are `ValueError`s. A machine that refuses a message returns the event `Refused`; it raises no error.
"""

from __future__ import annotations


class CardinalError(ValueError):
    """Base of every error that a message, a payload, a pattern or a file can cause."""


class MessageError(CardinalError):
    """The bytes of a key and a value are no message of the protocol.

    `part` is "key" or "value". `offset` is the position of the first irregular byte, counted from the start of that
    part.
    """

    def __init__(self, what: str, part: str, offset: int = 0) -> None:
        super().__init__(what, part, offset)
        self.what = what
        self.part = part
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset} of the {self.part}"


class TruncatedMessage(MessageError):
    """Bytes are missing at the end."""


class TrailingBytes(MessageError):
    """Bytes follow the end of the message."""


class OversizedMessage(MessageError):
    """The key or the value is longer than `Limits` allows."""


class UnknownPrefixByte(MessageError):
    """The first byte of the key names no message type."""


class MalformedMessage(MessageError):
    """The bytes break a rule of the encoding or of the message type."""


class OutOfRange(MessageError):
    """A number, weight, count or index is well formed but outside of what the protocol allows."""


class PayloadError(CardinalError):
    """The application asked for messages that cannot be made."""


class PayloadOutOfRange(PayloadError):
    """A number, weight, hash or identifier that the message format cannot carry."""


class PrefixConflict(PayloadError):
    """Updates, deletes and sub batches of one block claim the same entry of its Batch."""


class UnknownSubBatch(PayloadError):
    """The block did not announce this sub batch, or its messages were already made."""


class ReorgOrder(PayloadError):
    """A step of the producer's side of the Reorg protocol that is not allowed now."""


class PrefixError(CardinalError):
    """A prefix pattern is no regular expression, matches nothing at all, or overlaps with another one."""


class TransportError(CardinalError):
    """A transport failed. The text quotes the answer of the node, the file or the broker."""


class ApplicationError(CardinalError):
    """The description of an application contradicts itself or lacks something."""


class ResumptionError(CardinalError):
    """A text is not a resumption token."""


class SimulationError(CardinalError):
    """The parameters of a simulation contradict each other."""


class CheckpointError(CardinalError):
    """A text is not a saved checkpoint of a consumer."""


class PayloadTextError(CardinalError):
    """A JSON text is not a list of whole batches. `path` leads to the value, as `$[3].number`."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(what, path)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{self.what} - at {self.path}"


class RecordingError(CardinalError):
    """A file is no recording, or is damaged. `offset` is in bytes from the start of the file."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset}"


class TornRecording(RecordingError):
    """The last record of a recording is incomplete: its writer died. `offset` is where the record begins."""
