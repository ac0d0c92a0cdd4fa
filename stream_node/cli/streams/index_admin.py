"""The commands `stream-node index get|set|list`: show and set the saved positions of consumers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import starmap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.client import get_partitions, with_client
from stream_node.cli.options import (
    ALL_PARTITIONS,
    ANY_NODE,
    RUNS,
    DryRunOption,
    NodeOptions,
    PartitionOption,
    PartitionOptions,
    StreamArgument,
    complete_consumer,
    not_empty,
)
from stream_node.cli.output import age_text, columns, say, say_each
from stream_node.cli.values import START_HELP, UsageError, parse_start, utc_now

if TYPE_CHECKING or RUNS:
    from index_service.extensions import SavedPosition
    from stream_client import RequestRefused, StreamClient, StreamNotFound, list_positions, set_position
    from stream_client.arguments import StartLike
    from stream_node.care.unread import count_unread

ClientOption = Annotated[
    str, typer.Option("--client", callback=not_empty, autocompletion=complete_consumer), "The name of the consumer."
]
FORGET = "none"
HEAD = ("client", "stream", "partition", "index", "lag", "saved", "holder")
FIELDS = ("client", "stream", "partition", "index", "lag", "saved_us", "holder")
NUMBERS = frozenset({2, 3, 4})


async def get(
    client: StreamClient, stream: StreamArgument, client_id: ClientOption, partition: PartitionOption = None
) -> None:
    """Print the saved position of a consumer: the index of its next message, or "none" if no position is saved. Of a
    stream with several partitions, print a line for each. The command does not create a position.

    Example: stream-node index get orders --client billing
    """
    saved = await _saved(client, client_id, stream)
    chosen = await _chosen(client, stream, partition, saved)
    for at in chosen:
        index = saved[at].index if at in saved else None
        report = {"client": client_id, "stream": stream, "partition": at, "index": index}
        text = FORGET if index is None else str(index)
        say(report, text if len(chosen) == 1 else f"{text} in {stream}/{at}")


def set_to(
    stream: StreamArgument,
    position: Annotated[str, typer.Argument(), f"{START_HELP[:-1]}; or none, to forget the position."],
    client_id: ClientOption,
    partitions: PartitionOptions = ALL_PARTITIONS,
    dry_run: DryRunOption = False,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Set the saved position of a consumer, forward or back. This is refused while a running consumer has the lease of
    the partition.

    Example: stream-node index set orders first --client billing --dry-run

    Read the last two hours again: stream-node index set orders 2h --client billing

    In one partition: stream-node index set orders 5000 --client billing --partition 2
    """
    start = None if position == FORGET else parse_start(position, utc_now())
    partition = partitions.one()

    async def run(client: StreamClient) -> None:
        # Forgetting and a dry run need the saved positions. Setting returns the index that it replaces.
        saved = await _saved(client, client_id, stream) if dry_run or start is None else {}
        places = await _places(client, stream, partition, start, saved)
        # Index 0 means the beginning of every partition. Any other index belongs to one partition.
        if start and isinstance(start, int) and len(places) > 1 and not partitions.all_partitions:
            raise UsageError(f"an index is of one partition, and {stream} has {len(places)}; say which by --partition")
        for at, index in places:
            found = saved.get(at)
            if not dry_run:
                before = await set_position(client, client_id, stream, at, index)
            elif found is not None and found.holder is not None:
                raise RequestRefused(f"{found.holder} holds the lease of partition {at}; stop that consumer first")
            else:
                before = None if found is None else found.index
            place = {"client": client_id, "stream": stream, "partition": at}
            old, new = ("no position" if each is None else each for each in (before, index))
            text = f"{client_id} {'would go' if dry_run else 'goes'} from {old} to {new} in {stream}/{at}"
            say({**place, "before": before, "index": index, "dry_run": dry_run}, text)

    with_client(run, node)


async def list_all(
    client: StreamClient,
    stream: Annotated[str | None, "Only positions in this stream."] = None,
    client_id: Annotated[
        str | None, typer.Option("--client", autocompletion=complete_consumer), "Only positions of this consumer."
    ] = None,
) -> None:
    """List the saved positions, each with the number of unread messages and the owner of the lease. `saved`
    says how long ago the position was saved. A partition that a consumer of all partitions has not begun to read is
    listed without an index.

    Example: stream-node index list --stream orders
    """
    infos = [each async for each in client.list_streams(stream or "") if stream in (None, each.stream_name)]
    found = [each async for each in list_positions(client, stream_name=stream, client_id=client_id)]
    unread = count_unread(found, infos)
    rows: list[tuple[Any, ...]] = []
    for each in found:
        client_name, name, partition = each.client_id, each.stream_name, each.partition
        lag = unread[client_name, name].pop(partition, None)
        rows.append((client_name, name, partition, each.index, lag, each.saved_us, each.holder))
    # What is left in `unread` are partitions without a position, of consumers that read all partitions of a stream.
    for (client_name, name), lags in unread.items():
        rows += ((client_name, name, partition, None, lag, None, None) for partition, lag in lags.items())
    if not found and stream is not None:
        await _check_exists(client, stream, None)
    reports = (dict(zip(FIELDS, row, strict=True)) for row in rows)
    say_each(reports, columns([HEAD, *starmap(_cells, rows)], NUMBERS) if rows else "no positions")


def _cells(client_id: str, stream: str, *others: Any) -> tuple[str, ...]:
    *numbers, saved_us, holder = others
    shown = ("-" if each is None else f"{each:,}" for each in numbers)
    return (client_id, stream, *shown, age_text(saved_us, int(utc_now().timestamp() * 1e6)), holder or "-")


async def _places(
    client: StreamClient,
    stream: str,
    partition: int | None,
    start: StartLike | None,
    saved: Mapping[int, SavedPosition],
) -> list[tuple[int, int | None]]:
    """Returns each chosen partition with its new index. partition: None: all. start: None to delete the
    positions; then each index is None, too. saved: the saved positions by partition."""
    if start is None:
        # A position may exist after its stream is deleted, so the stream is not looked up to delete a position.
        chosen = [partition] if partition is not None else await _chosen(client, stream, None, saved)
        return [(at, None) for at in chosen]
    places: list[tuple[int, int | None]] = []
    for each in await get_partitions(client, stream, partition):
        index = start if isinstance(start, int) else await each.find_index(start)
        if isinstance(start, int) and start > (end := (await each.info()).next_index):
            raise UsageError(f"{stream}/{each.partition} ends at {end}; choose an index up to there, or last")
        places.append((each.partition, index))
    return places


async def _saved(client: StreamClient, client_id: str, stream: str) -> dict[int, SavedPosition]:
    """Returns the saved positions by partition, from a list: the specification's GET would create a missing one."""
    return {each.partition: each async for each in list_positions(client, stream_name=stream, client_id=client_id)}


async def _chosen(
    client: StreamClient, stream: str, partition: int | None, saved: Mapping[int, SavedPosition]
) -> list[int]:
    """Returns the chosen partition, or all. Raises StreamNotFound without stream and without saved position."""
    if partition is not None:
        if partition not in saved:
            await _check_exists(client, stream, partition)
        return [partition]
    try:
        return [each.partition for each in await get_partitions(client, stream, None)]
    except RequestRefused:
        return sorted(saved) or [0]
    except StreamNotFound:
        if not saved:
            raise
        return sorted(saved)


async def _check_exists(client: StreamClient, stream: str, partition: int | None) -> None:
    """Raises StreamNotFound if the stream does not exist. Called only where no position was found, because positions
    may exist without a stream. A peer that cannot list its streams is not checked."""
    with suppress(RequestRefused):
        await get_partitions(client, stream, partition)
