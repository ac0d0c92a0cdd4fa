"""The errors of reading a node from Spark. This module imports nothing, so that Spark can send it to workers."""

from __future__ import annotations


class SourceError(Exception):
    """The base of all errors of the source. The text says what happened and what to do."""


class OptionError(SourceError, ValueError):
    """An option that does not exist, or a value that it cannot have."""


class NodeUnreachable(SourceError):
    """No connection could be made, or it broke more often than `fetchRetries` allows."""


class ConnectionBroken(SourceError):
    """The connection ended, or an answer did not arrive in time. Asking again may help."""


class RequestRefused(SourceError):
    """The node answered `error`; the text is its reason."""


class BadAnswer(SourceError):
    """An answer contradicts its request: another protocol, a wrong count or a wrong index."""


class StreamMissing(SourceError):
    """The node has no such stream."""


class DataLoss(SourceError):
    """Messages of a planned range were removed (by retention, truncation, or deletion of the stream)."""
