"""Finds the chain of Cardinal Streams to which a stream belongs.

Publishers send the messages of one chain on several topics. The default topic contains the Batch messages, which begin
blocks. Other topics contain the updates. A publisher sends a deep reorg on a separate topic, the reorg channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CHANNEL = r"-re-[0-9a-f]{64}$"
"""The end of the name of a reorg channel, for Python and Java (see `cardinal_streams.transports.transport`)."""
_CHANNEL = re.compile(CHANNEL)


@dataclass(frozen=True)
class Topics:
    """A rule that chooses the streams that are topics of Cardinal Streams.

    pattern: matches the whole name of a topic. Its first group is the name of the chain, as in `(evm-[0-9]+)-.*`.
        Without a group, all matching topics belong to one chain, whose name is the pattern.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is no regular expression: {error}") from error

    @property
    def has_group(self) -> bool:
        return re.compile(self.pattern).groups > 0

    def find(self, stream: str) -> tuple[str, str] | None:
        """Returns the chain and the feed of a topic, or None. The feed is "", or the end of a reorg channel's name."""
        channel = _CHANNEL.search(stream)
        feed = channel.group() if channel else ""
        match = re.fullmatch(self.pattern, stream.removesuffix(feed))
        if match is None:
            return None
        return (match.group(1) or "" if match.re.groups else self.pattern), feed
