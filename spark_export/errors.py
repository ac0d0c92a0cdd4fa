"""What reading a node from Spark can run into. It imports nothing, so that it can be sent to workers as it is."""

from __future__ import annotations


class SourceError(Exception):
    """Base of every error of the source; its text says what happened and what to do."""


class OptionError(SourceError, ValueError):
    """An option that does not exist, or a value that it cannot have."""


class NodeUnreachable(SourceError):
    """No connection could be made, or it broke more often than `fetchRetries` allows."""


class ConnectionBroken(SourceError):
    """The connection ended, or nothing came in time, with requests unanswered; asking again may help."""


class RequestRefused(SourceError):
    """The node answered `error`; the text is its reason."""


class BadAnswer(SourceError):
    """What came is not what was asked for: another protocol, a count or an index that does not fit."""


class StreamMissing(SourceError):
    """The node has no such stream."""


class DataLoss(SourceError):
    """Messages of a planned range are no longer there (retention, truncation, a deleted stream)."""
