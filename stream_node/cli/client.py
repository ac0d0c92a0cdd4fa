"""How commands reach a node, and find streams on it. What they ask there is the client's business."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_service.client import PartitionedStream, Stream, StreamClient


def with_client(
    run: Callable[[StreamClient], Awaitable[None]], node: str | None, context: str | None, via: list[str] | None
) -> None:
    """Run an async function with a client of the node meant. Raises ContextError, InvalidAddress, ClientError."""
    import trio

    from ockam.address import tcp
    from stream_node.contexts import resolve_target
    from stream_service.client import connect

    target = resolve_target(node, context, via or ())

    async def main() -> None:
        route = tuple(tcp(hop) for hop in target.via)
        async with connect(target.address, via=route) as client:
            await run(client)

    trio.run(main)


async def open_partition(client: StreamClient, name: str, partition: int) -> Stream:
    """The stream-partition, made with those before it where it does not exist."""
    if partition == 0:
        return await client.create(name)
    return (await client.create_partitioned(name, partition + 1)).partitions[partition]


async def get_partition(client: StreamClient, name: str, partition: int) -> Stream:
    """The stream-partition, which exists. Raises StreamNotFound."""
    from stream_service.client import RequestRefused

    try:
        return (await get_partitions(client, name, partition))[0]
    except RequestRefused:
        # A peer without `node/stream_list/1` tells where a stream is only when asked to make it.
        return await open_partition(client, name, partition)


async def get_partitions(client: StreamClient, name: str, partition: int | None) -> list[Stream]:
    """All partitions of a stream that exists, or the one asked for. Raises StreamNotFound."""
    from stream_service.client import StreamNotFound

    found: PartitionedStream = await client.get_stream(name)
    chosen = [each for each in found.partitions if partition is None or each.partition == partition]
    if not chosen:
        raise StreamNotFound(f"{client.address} has no partition {partition} of stream {name!r}; see `stream info`")
    return chosen
