"""The commands `stream-node index get|set|list`: show and set the saved positions of consumers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stream_node.cli.client import get_partitions, with_client
from stream_node.cli.completion import complete_consumer
from stream_node.cli.options import (
    ContextOption,
    DryRunOption,
    JsonOption,
    NodeOption,
    PartitionOption,
    StreamArgument,
    ViaOption,
    not_empty,
)
from stream_node.cli.output import columns, say, say_json
from stream_node.cli.request_options import with_request_options
from stream_node.cli.values import START_HELP, UsageError, parse_start, time_text, utc_now

if TYPE_CHECKING:
    from index_service.extensions import SavedPosition
    from stream_client import StreamClient, StreamInfo
    from stream_client.arguments import StartLike

ClientOption = Annotated[
    str,
    typer.Option("--client", callback=not_empty, help="The name of the consumer.", autocompletion=complete_consumer),
]
FORGET = "none"
HEAD = ("client", "stream", "partition", "index", "lag", "saved", "holder")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="See and set the positions of consumers.", no_args_is_help=True)
    for name, command in (("get", get), ("set", set_to), ("list", list_all)):
        group.command(name)(with_request_options(command))
    app.add_typer(group, name="index")


def get(
    stream: StreamArgument,
    client_id: ClientOption,
    partition: PartitionOption = 0,
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the saved position of a consumer: the index of its next message, or "none" if no position is saved. The
    command does not create a position.

    Example: stream-node index get orders --client billing
    """

    async def run(client: StreamClient) -> None:
        found = await _find(client, client_id, stream, partition)
        if found is None:
            await _check_exists(client, stream, partition)
        index = None if found is None else found.index
        report = {"client": client_id, "stream": stream, "partition": partition, "index": index}
        say(as_json, report, "none" if index is None else str(index))

    with_client(run, node, context, via)


def set_to(
    stream: StreamArgument,
    position: Annotated[str, typer.Argument(help=f"{START_HELP[:-1]}; or none, to forget the position.")],
    client_id: ClientOption,
    partition: PartitionOption = 0,
    all_partitions: Annotated[
        bool, typer.Option("--all-partitions", help="Set the position in every partition of the stream.")
    ] = False,
    dry_run: DryRunOption = False,
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the saved position of a consumer, forward or back. This is refused while a running consumer has the lease of
    the partition.

    Example: stream-node index set orders first --client billing --dry-run

    Read the last two hours again: stream-node index set orders 2h --client billing --all-partitions
    """
    from stream_client import set_position

    start = None if position == FORGET else parse_start(position, utc_now())
    if all_partitions and partition:
        raise UsageError("--partition and --all-partitions say different things; leave one out")

    async def run(client: StreamClient) -> None:
        for at, index in await _places(client, stream, None if all_partitions else partition, start):
            if dry_run:
                before = await _replaceable(client, client_id, stream, at)
            else:
                before = await set_position(client, client_id, stream, at, index)
            place = {"client": client_id, "stream": stream, "partition": at}
            report = {**place, "before": before, "index": index, "dry_run": dry_run}
            done = "would go" if dry_run else "goes"
            text = f"{client_id} {done} from {_named(before)} to {_named(index)} in {stream}/{at}"
            say(as_json, report, text)

    with_client(run, node, context, via)


def list_all(
    stream: Annotated[str | None, typer.Option(help="Only positions in this stream.")] = None,
    client_id: Annotated[
        str | None, typer.Option("--client", help="Only positions of this consumer.", autocompletion=complete_consumer)
    ] = None,
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the saved positions, each with the number of unread messages and the owner of the lease.

    Example: stream-node index list --stream orders
    """
    from stream_client import list_positions

    async def run(client: StreamClient) -> None:
        ends = {
            (each.stream_name, each.partition): each
            async for each in client.list_streams(stream or "")
            if stream is None or each.stream_name == stream
        }
        rows, found = [HEAD], 0
        async for each in list_positions(client, stream_name=stream, client_id=client_id):
            found += 1
            lag = _lag(each.index, ends.get((each.stream_name, each.partition)))
            place = {"client": each.client_id, "stream": each.stream_name, "partition": each.partition}
            if as_json:
                say_json({**place, "index": each.index, "lag": lag, "saved_us": each.saved_us, "holder": each.holder})
                continue
            cells = (each.client_id, each.stream_name, f"{each.partition:,}", f"{each.index:,}")
            rows.append((*cells, "-" if lag is None else f"{lag:,}", time_text(each.saved_us), each.holder or "-"))
        if not found and stream is not None:
            await _check_exists(client, stream, None)
        if not as_json:
            say(False, {}, columns(rows, frozenset({2, 3, 4})) if found else "no positions")

    with_client(run, node, context, via)


async def _places(
    client: StreamClient, stream: str, partition: int | None, start: StartLike | None
) -> list[tuple[int, int | None]]:
    """Returns each chosen partition with the new index for it.

    partition: None means all partitions.
    start: where the consumer continues. None means that the position is to be deleted; the returned index is then None,
    too.
    """
    if start is None and partition is not None:
        # A position may exist after its stream is deleted, so the stream is not looked up to delete a position.
        return [(partition, None)]
    places: list[tuple[int, int | None]] = []
    for each in await get_partitions(client, stream, partition):
        index = start if start is None or isinstance(start, int) else await each.find_index(start)
        if isinstance(start, int) and start > (end := (await each.info()).next_index):
            raise UsageError(f"{stream}/{each.partition} ends at {end}; choose an index up to there, or last")
        places.append((each.partition, index))
    return places


async def _find(client: StreamClient, client_id: str, stream: str, partition: int) -> SavedPosition | None:
    """Returns the saved position, or None if there is none. Lists the positions instead of asking for one, because the
    GET request of the specification would create a missing position."""
    from stream_client import list_positions

    found = None
    async for each in list_positions(client, stream_name=stream, client_id=client_id):
        if each.partition == partition:
            found = each
    return found


async def _replaceable(client: StreamClient, client_id: str, stream: str, partition: int) -> int | None:
    """Returns the saved index, or None without a saved position. Raises RequestRefused if a consumer has the lease,
    because then no other client may set the position."""
    from stream_client import RequestRefused

    found = await _find(client, client_id, stream, partition)
    if found is not None and found.holder is not None:
        raise RequestRefused(f"{found.holder} holds the lease of partition {partition}; stop that consumer first")
    return None if found is None else found.index


async def _check_exists(client: StreamClient, stream: str, partition: int | None) -> None:
    """Checks that the stream exists. Raises StreamNotFound. A peer that cannot list its streams is not checked.

    Positions may exist without a stream: a stream may be deleted before its positions, and other Ockam programs save
    positions of streams that never existed. So commands call this function only if they found no position.
    """
    from stream_client import RequestRefused

    with suppress(RequestRefused):  # A peer that cannot list its streams is not checked.
        await get_partitions(client, stream, partition)


def _lag(index: int, stream: StreamInfo | None) -> int | None:
    """Returns the number of stored messages that the consumer has not read. Returns None if the stream does
    not exist."""
    return None if stream is None else max(0, stream.next_index - max(index, stream.first_index))


def _named(index: int | None) -> str:
    return "no position" if index is None else str(index)
