"""Making partitions: `stream create` makes the partitions that a stream lacks, and says how many it has then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stream_node.cli.output import counted

if TYPE_CHECKING:
    from stream_client import Stream, StreamClient


class EnsuredPartitions(NamedTuple):
    """EnsuredPartitions: the result of `stream create`.

    now: the number of partitions. before: their number before. count_before: the number over which keys were spread,
    deleted partitions included. A peer that does not list its streams leaves both None, and `now` is the number that
    was asked for.
    """

    now: Sequence[Stream]
    before: int | None
    count_before: int | None

    @property
    def made(self) -> int | None:
        return None if self.before is None else len(self.now) - self.before


async def ensure_partitions(client: StreamClient, name: str, partitions: int | None) -> EnsuredPartitions:
    """Creates the missing partitions up to this number. Without a number, creates a stream of one partition unless
    the stream exists."""
    from stream_client import RequestRefused

    try:
        before = await client.find_stream(name) if name else None
    except RequestRefused:
        return EnsuredPartitions((await client.create_partitioned(name, partitions or 1)).partitions, None, None)
    if before is None or partitions is not None:
        await client.create_partitioned(name, partitions or 1)
    # The stream is read again, so that the answer includes partitions above the number asked for or created by
    # others.
    now = (await client.get_stream(name)).partitions
    return (
        EnsuredPartitions(now, 0, 0) if before is None else EnsuredPartitions(now, len(before.partitions), before.count)
    )


def created_text(name: str, ensured: EnsuredPartitions) -> str:
    held = counted(len(ensured.now), "partition")
    if ensured.made is None:
        return f"{name} has {held} or more: this peer does not tell how many"
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
