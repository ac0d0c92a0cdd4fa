"""Finds the stream and the partition that a request means."""

from __future__ import annotations

from ockam.identity.rules.rights import Demand, Right
from stream_client import RequestRefused, Stream, StreamClient, StreamInfo, StreamNotFound
from stream_client.core.service_route import STREAM_SERVICE
from stream_node.doors.http.app import HttpCall
from stream_node.doors.http.problems import Problem
from stream_node.node.inside_streams import InsideStream
from stream_service.extensions import LIST, ListRequest, StreamKey
from stream_service.names import partition_of, stream_address
from stream_service.workers.readable_stream import ReadableStream

PAGE_PARTITIONS = 100
"""The number of partitions that one request to the node asks for. Most streams have fewer."""


async def find_partitions(client: StreamClient, name: str) -> list[StreamInfo]:
    """Returns all partitions of a stream that the caller may know of, in order; none if there is no such stream."""
    found: list[StreamInfo] = []
    async for info in client.list_streams(name, page_streams=PAGE_PARTITIONS):
        # The name itself sorts before longer names that begin with it.
        if info.stream_name != name:
            break
        found.append(info)
    return found


async def known_partitions(call: HttpCall, client: StreamClient, name: str, right: Right) -> list[StreamInfo]:
    """Returns the partitions as `find_partitions` does, from a list that is remembered until any is added or
    removed; so the indexes can be old. Without the right, or in a node that shares its streams, the list is new."""
    if call.parts.remote_streams is not None or not call.may(Demand(right, name)):
        return await find_partitions(client, name)
    known = call.known.of(call.parts.services.directory.changes)
    found = known.get(name)
    if found is None:
        found = await find_partitions(client, name)
        # Requests can name any number of streams that do not exist, so only those that exist are remembered.
        if found:
            known[name] = found
    return found


async def find_partition(client: StreamClient, name: str, number: int) -> StreamInfo | None:
    """Returns one partition by one request; None if there is none, or the caller may not know of it."""
    after = StreamKey(name, number - 1) if number else None
    page = await client.session.ask(STREAM_SERVICE, LIST, ListRequest(0, name, after, 1))
    is_there = page.streams and (page.streams[0].stream_name, page.streams[0].partition) == (name, number)
    return page.streams[0] if is_there else None


async def get_partitions(call: HttpCall, client: StreamClient, name: str, right: Right) -> list[StreamInfo]:
    """Returns all partitions of a stream. Raises StreamNotFound, and Problem without the right."""
    found = await known_partitions(call, client, name, right)
    if not found:
        # The node lists only streams on which the caller has a right, so a missing right is reported first.
        call.check(Demand(right, name))
        await client.get_stream(name)
        raise StreamNotFound(f"there is no stream {name!r}")
    return found


def partition_at(call: HttpCall, client: StreamClient, name: str, number: int) -> Stream:
    (handle,) = client.session.core.find_handles(name, [number])
    if call.parts.remote_streams is None:
        # Another name can have the same hash, and so the same address.
        worker = call.parts.node.find_judge(stream_address(name, number))
        if isinstance(worker, ReadableStream) and worker.identity == (name, number):
            return InsideStream(client.session, handle, call.connection())
    return Stream(client.session, handle)


async def get_partition(
    call: HttpCall, client: StreamClient, name: str, number: int | None, key: bytes | None, right: Right
) -> tuple[Stream, StreamInfo]:
    info = choose(await get_partitions(call, client, name, right), name, number, key)
    return partition_at(call, client, name, info.partition), info


def choose(infos: list[StreamInfo], name: str, number: int | None, key: bytes | None) -> StreamInfo:
    """Returns the partition with the number, that of the key, or the only one. Raises Problem if none is meant."""
    if number is None and key is not None:
        number = partition_of(key, infos[-1].partition + 1)
    if number is None:
        if len(infos) == 1:
            return infos[0]
        numbers = f"{infos[0].partition} to {infos[-1].partition}"
        detail = f"the stream {name!r} has the partitions {numbers}; say which one by ?partition=N or ?key=TEXT"
        raise Problem(409, "partition-needed", detail)
    for each in infos:
        if each.partition == number:
            return each
    numbers = ", ".join(str(each.partition) for each in infos[:20])
    raise Problem(404, "stream-not-found", f"the stream {name!r} has no partition {number}; it has {numbers}")


async def make_partition(call: HttpCall, client: StreamClient, name: str, number: int | None) -> StreamInfo:
    """Creates a stream with one partition. Raises Problem for another partition than 0."""
    if number:
        detail = f"there is no stream {name!r}; create it with its partitions first by PUT"
        raise Problem(404, "stream-not-found", detail)
    await client.create(name)
    found = await find_partitions(client, name)
    if not found:
        raise RequestRefused(f"the stream {name!r} was deleted while it was made; send the request again")
    return found[0]
