"""Finds the chain that a stream belongs to. The messages of one chain travel on several topics: the default topic has
the Batches, other topics have the updates, and each reorg beyond the threshold has a channel of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHANNEL = r"-re-[0-9a-f]{64}$"
"""The end of the name of a reorg channel (`cardinal_streams.transports.transport.reorg_topic`), in Python's and in
Java's syntax."""
_CHANNEL = re.compile(CHANNEL)


@dataclass(frozen=True)
class Topics:
    """Names the streams that are topics of Cardinal Streams.

    pattern: a regular expression that matches the whole name of a topic. The text of its first group names the chain,
    so `(evm-[0-9]+)-.*` reads several chains. Without a group, all matching topics belong to one chain, which has the
    pattern as its name. Reorg channels belong to the chain of their default topic.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is no regular expression: {error}") from error

    @property
    def has_group(self) -> bool:
        """Whether the pattern names chains by a group."""
        return re.compile(self.pattern).groups > 0

    def find(self, stream: str) -> tuple[str, str] | None:
        """Returns the chain and the feed of a stream; None if the stream is no topic. The feed of a normal topic is "",
        and the feed of a reorg channel is the end of its name."""
        channel = _CHANNEL.search(stream)
        feed = channel.group() if channel else ""
        match = re.fullmatch(self.pattern, stream.removesuffix(feed))
        if match is None:
            return None
        return (match.group(1) or "" if match.re.groups else self.pattern), feed
