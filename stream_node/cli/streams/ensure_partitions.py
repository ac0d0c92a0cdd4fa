"""Creates the missing partitions of a stream for the command `stream create`, and describes the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stream_node.cli.output import counted

if TYPE_CHECKING:
    from stream_client import Stream, StreamClient


class EnsuredPartitions(NamedTuple):
    """The result of `stream create`: the partitions after it, and their number before it.
    count_before: the number of partitions over which keys were distributed before, including deleted ones. If a peer
    does not list its streams, both numbers are None, and `now` has only the requested partitions."""

    now: Sequence[Stream]
    before: int | None
    count_before: int | None

    @property
    def made(self) -> int | None:
        return None if self.before is None else len(self.now) - self.before


async def ensure_partitions(client: StreamClient, name: str, partitions: int | None) -> EnsuredPartitions:
    """Creates the missing partitions up to the given number. None: one partition, unless the stream exists."""
    from stream_client import RequestRefused

    try:
        before = await client.find_stream(name) if name else None
    except RequestRefused:
        return EnsuredPartitions((await client.create_partitioned(name, partitions or 1)).partitions, None, None)
    if before is None or partitions is not None:
        await client.create_partitioned(name, partitions or 1)
    # The stream is read again, so that the result includes partitions above the requested number and partitions
    # that other clients created.
    now = (await client.get_stream(name)).partitions
    return (
        EnsuredPartitions(now, 0, 0) if before is None else EnsuredPartitions(now, len(before.partitions), before.count)
    )


def created_text(name: str, ensured: EnsuredPartitions) -> str:
    held = counted(len(ensured.now), "partition")
    if ensured.made is None:
        return f"{name} has the {held} asked for; this peer does not tell whether it has more"
    if not ensured.made:
        return f"{name} exists and has {held}; nothing was made"
    if not ensured.before:
        return f"{name} was made with {held}"
    if ensured.now[-1].partition < (ensured.count_before or 0):
        return f"{name} has {held} again, {ensured.made} of them new"
    return (
        f"{name} has {held} now, {ensured.made} of them new: from now on a key may belong to another partition than "
        "before, so messages with the same key may lie in two"
    )
