"""The errors of this package. Each says whose fault it was: `MessageError` is a remote producer's (or the
transport's), `PayloadError` and `PrefixError` the local application's.

All are `ValueError`s. What a machine refuses without raising is the event `Refused`, not an error.
"""

from __future__ import annotations


class CardinalError(ValueError):
    """Base of every error that a message, a payload, a pattern or a file can cause."""


class MessageError(CardinalError):
    """A key and a value are not one of the messages.

    `part` is "key" or "value"; `offset` counts bytes from the start of that part and names the first byte of the
    irregular thing.
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
    """A transport cannot do what it was asked: the text says what the other side said."""


class ApplicationError(CardinalError):
    """The description of an application cannot be right."""


class ResumptionError(CardinalError):
    """A text is not a resumption token."""


class SimulationError(CardinalError):
    """What is to be simulated cannot be."""


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
