"""The errors of the bench. Their classes decide its exit codes, as those of the command `stream-node` do."""

from __future__ import annotations

from stream_node.cli.values import CommandFailed, UsageError


class UnknownBench(UsageError):
    """No measurement and no peer has the name that was given."""


class BenchFailed(CommandFailed):
    """A client of ours failed at the work that was measured."""


class PeerFailed(CommandFailed):
    """A server to compare with did not start, or its client failed."""
