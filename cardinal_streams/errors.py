"""The errors of this package. All are `ValueError`s. The class tells who caused an error: a remote producer or the
transport (`MessageError`), or the local application (`PayloadError`, `PrefixError`)."""

from __future__ import annotations


class CardinalError(ValueError):
    """The base class of all errors of `cardinal_streams`."""


class MessageError(CardinalError):
    """A key and a value are not a message of the Cardinal Streams protocol. `offset`: where the error is in the `part`
    ("key" or "value"), in bytes; 0 if unknown."""

    def __init__(self, what: str, part: str, offset: int = 0) -> None:
        super().__init__(what, part, offset)
        self.what = what
        self.part = part
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset} of the {self.part}"


class TruncatedMessage(MessageError):
    """The key or the value of a message ends too early."""


class TrailingBytes(MessageError):
    """The key or the value of a message has extra bytes at its end."""


class OversizedMessage(MessageError):
    """The key or the value of a message is longer than `MessageLimits` allows."""


class UnknownPrefixByte(MessageError):
    """The first byte of a message's key is not the code of any message type."""


class MalformedMessage(MessageError):
    """The bytes of a message break a rule of the encoding or of the message type."""


class OutOfRange(MessageError):
    """A message has a well-formed number, weight, count or index that is outside the range of the protocol."""


class PayloadError(CardinalError):
    """The application asked a producer for messages that cannot be made."""


class PayloadOutOfRange(PayloadError):
    """The application gave a value that does not fit the message format, e.g. a negative number or a short hash."""


class PrefixConflict(PayloadError):
    """Two entries of a block's Batch message have the same name, or two sub batches have the same id."""


class UnknownSubBatch(PayloadError):
    """The application sends a sub batch that its block did not announce, or that was already sent."""


class ReorgOrder(PayloadError):
    """A producer took a step of the Reorg protocol that is not allowed at this point of the reorg."""


class PrefixError(CardinalError):
    """A prefix pattern is not a regular expression, matches the empty text, or overlaps with another pattern."""


class TransportError(CardinalError):
    """The transport over Kafka failed. The error text gives the reason, e.g. the answer of the broker."""


class ApplicationError(CardinalError):
    """The description of an `Application` is invalid or incomplete."""


class ResumptionError(CardinalError):
    """A text is not a resumption token, or a topic or a partition cannot be written in one."""


class SimulationError(CardinalError):
    """The options of a simulation are invalid or contradict each other."""


class CheckpointError(CardinalError):
    """A text is not a checkpoint that a consumer of this application saved."""


class CheckpointTaken(CardinalError):
    """Another consumer has saved a checkpoint under the same client id, or in the same file, since this consumer began.
    Two consumers of one name would skip each other's updates. This consumer has saved nothing."""

    def __init__(self, client_id: str) -> None:
        super().__init__(f"another consumer saves its position as {client_id!r}; give each consumer a name of its own")
        self.client_id = client_id


class ChainStoreMismatch(CardinalError):
    """A chain store is not one that this consumer can continue: it belongs to another application, to other tracked
    entries or another version of this package, or the stored chain does not lead to what the topics have now. Nothing
    was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the chain store does not fit: {why}; give this consumer a chain store of its own")


class PayloadTextError(CardinalError):
    """A JSON text is not a valid list of blocks. `path` is the location of the invalid value, e.g. `$[3].number`."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(what, path)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        return f"{self.what} - at {self.path}"


class RecordingError(CardinalError):
    """A file is not a recording of messages, or is damaged at byte `offset`."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset}"


class TornRecording(RecordingError):
    """The last record of a recording, which begins at byte `offset`, is incomplete, because its writer died."""
