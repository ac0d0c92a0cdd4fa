"""The errors of the Spark format `stream_node`."""

from __future__ import annotations


class SourceError(Exception):
    """The base class of all errors of the format `stream_node`. The text says what happened, and often what to do."""


class OptionError(SourceError, ValueError):
    """An option does not exist, has an invalid value, or contradicts another option."""


class SourceUnreachable(SourceError):
    """The node could not be reached, or could not answer, for the time of the option `requestTimeoutMs`."""


class SourceTlsFailed(SourceUnreachable):
    """No TLS connection to the node could be opened. The text says which side refused, and what to do."""


class TokenRefused(SourceError):
    """The node does not accept the token of this process, or the token must not be sent over this connection."""


class NodeRefused(SourceError):
    """The node answered a request with an `error` message. The text is the reason that the node gave."""


class BadAnswer(SourceError):
    """An answer of the node is unreadable or does not fit the request: the protocol, a count or an index is wrong."""


class StreamMissing(SourceError):
    """The node does not have a requested stream or partition."""


class DataLoss(SourceError):
    """Retention, a truncation or the deletion of the stream removed messages that a query should read."""


class SinkPushFailed(SourceError):
    """The node did not confirm a message, for example because its disk is full. Spark repeats the task."""


class RowsDiffer(SourceError):
    """A repeated batch does not have the rows that its first attempt has stored, so its other rows are not pushed."""


class StreamExists(SourceError):
    """The stream of a write has messages already, and the option `ifExists=error` forbids such a write."""
