"""Making partitions: `stream create` makes the partitions that a stream lacks, and says how many it has then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stream_node.cli.output import counted

if TYPE_CHECKING:
    from stream_client import Stream, StreamClient


class Grown(NamedTuple):
    """Grown: the result of `stream create`.

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


async def grow(client: StreamClient, name: str, partitions: int | None) -> Grown:
    """Make the partitions that are missing up to this number. Without a number, make a stream with one partition if
    there is none."""
    from stream_client import RequestRefused

    try:
        before = await client.find_stream(name) if name else None
    except RequestRefused:
        return Grown((await client.create_partitioned(name, partitions or 1)).partitions, None, None)
    if before is None or partitions is not None:
        await client.create_partitioned(name, partitions or 1)
    # Looked at again, so that the answer is what is there: also those above the number asked for, or made by others.
    now = (await client.get_stream(name)).partitions
    return Grown(now, 0, 0) if before is None else Grown(now, len(before.partitions), before.count)


def created_text(name: str, grown: Grown) -> str:
    held = counted(len(grown.now), "partition")
    if grown.made is None:
        return f"{name} has {held} or more: this peer does not tell how many"
    if not grown.made:
        return f"{name} exists and has {held}; nothing was made"
    if not grown.before:
        return f"{name} was made with {held}"
    if grown.now[-1].partition < (grown.count_before or 0):
        return f"{name} has {held} again, {grown.made} of them new"
    return (
        f"{name} has {held} now, {grown.made} of them new: from now on a key may belong to another partition than "
        "before, so messages with the same key may lie in two"
    )
