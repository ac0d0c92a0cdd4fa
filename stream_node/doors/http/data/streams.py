"""Administers streams, and the positions that consumers have saved in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import Demand, Right
from stream_client import ClientError, Retention, SavedIndexes, Stream, StreamInfo, list_positions, set_position
from stream_client.core.service_route import STREAM_SERVICE
from stream_node.doors.http.app import HttpCall, json_response
from stream_node.doors.http.data.places import (
    INDEX_MAX,
    Index,
    NoQuery,
    PartitionNumber,
    find_partitions,
    get_partitions,
    partition_at,
    path_text,
    read_query,
    stream_name,
)
from stream_node.doors.http.data.records import time_text
from stream_node.doors.http.memory import read_small
from stream_node.doors.http.problems import RETRY, Problem, problem_of
from stream_service.extensions import LIST, ListRequest, StreamKey
from stream_storage.errors import NO_ROOM

LIMIT_MAX = 1_000
PARTITIONS_MAX = 1_000
"""The largest number of partitions that one request makes. A larger number is more likely a mistake."""
BODY_BYTES_MAX = 64 * 1024
"""The size of the largest body that describes a stream. The values of JSON can need a hundred times as much memory."""
B = TypeVar("B")


class ListQuery(msgspec.Struct, frozen=True):
    """The parameters of a list. prefix: the beginning of the names. limit: the largest number of partitions.

    after, after_partition: the last partition of the page before; without them, the first page.
    """

    prefix: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = 100
    after: str | None = None
    after_partition: Index = INDEX_MAX


class DataRetention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept: messages up to an age in seconds, up to a number, up to a size in bytes; null: no such limit."""

    age_s: Index | None = None
    messages: Index | None = None
    size_bytes: Index | None = None


class NewStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of creating a stream. partitions: the number that it has at least. retention: null: the node's own."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)] = 1
    retention: DataRetention | None = None


class ChangedStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of changing a stream. retention: null: the node's own applies again."""

    retention: DataRetention | None


class Partition(msgspec.Struct, frozen=True):
    """The description of one partition.

    first_index, next_index: the index of the earliest stored message, and the one that the next message will get.
    size_bytes: the size of the data. created, first_time, last_time: as RFC 3339; null without messages.
    retention: null: the node's own applies.
    """

    stream: str
    partition: int
    first_index: int
    next_index: int
    size_bytes: int
    created: str
    first_time: str | None
    last_time: str | None
    retention: DataRetention | None


class StreamList(msgspec.Struct, frozen=True):
    """A page of partitions, by name and number. more: whether another page follows the last of them."""

    partitions: list[Partition]
    more: bool


class StreamDescription(msgspec.Struct, frozen=True):
    """All partitions of one stream."""

    stream: str
    partitions: list[Partition]


class Deleted(msgspec.Struct, frozen=True):
    """The answer to deleting a stream. messages: how many were deleted with it."""

    stream: str
    messages: int


async def list_streams(call: HttpCall) -> Response:
    query = read_query(call.request, ListQuery)
    after = None if query.after is None else StreamKey(query.after, query.after_partition)
    async with call.client() as client:
        page = await client.session.ask(STREAM_SERVICE, LIST, ListRequest(0, query.prefix, after, query.limit))
    return json_response(StreamList([_partition(each) for each in page.streams], page.more), end=b"\n")


async def describe(call: HttpCall) -> Response:
    name = stream_name(call.request)
    read_query(call.request, NoQuery)
    async with call.client() as client:
        # `get_partitions` may return remembered bounds, which are old. It is called only for its error.
        found = await find_partitions(client, name) or await get_partitions(call, client, name, Right.READ)
    return _description(name, found)


async def create(call: HttpCall) -> Response:
    """Creates a stream with its partitions, or those of them that are missing. It is safe to repeat."""
    name = stream_name(call.request)
    read_query(call.request, NoQuery)
    call.check_early(Demand(Right.CREATE, name))
    body = await _body(call, NewStream)
    if body.retention is not None:
        # Without this right, the stream would be created, and then the answer would be an error.
        call.check_early(Demand(Right.ADMIN, name))
    async with call.client() as client:
        before = {each.partition for each in await find_partitions(client, name)}
        await client.create_partitioned(name, body.partitions)
        found = await find_partitions(client, name)
        if body.retention is not None:
            # The stream may have more partitions than the body asks for. All of them get the retention.
            kept = _retention(body.retention)
            streams = [partition_at(call, client, name, each.partition) for each in found]
            found = await _each(streams, lambda stream: stream.set_retention(kept), len(found) > len(before))
    return _description(name, found, 200 if before else 201)


async def change(call: HttpCall) -> Response:
    name = stream_name(call.request)
    read_query(call.request, NoQuery)
    call.check_early(Demand(Right.ADMIN, name))
    body = await _body(call, ChangedStream)
    async with call.client() as client:
        infos = await get_partitions(call, client, name, Right.ADMIN)
        streams = [partition_at(call, client, name, each.partition) for each in infos]
        found = await _each(streams, lambda stream: stream.set_retention(_retention(body.retention)))
    return _description(name, found)


async def delete(call: HttpCall) -> Response:
    name = stream_name(call.request)
    read_query(call.request, NoQuery)
    async with call.client() as client:
        infos = await get_partitions(call, client, name, Right.DELETE)
        streams = [partition_at(call, client, name, each.partition) for each in infos]
        deleted = await _each(streams, lambda stream: stream.delete())
    return json_response(Deleted(name, sum(deleted)), end=b"\n")


async def _each(streams: list[Stream], change: Callable[[Stream], Awaitable[B]], is_changed: bool = False) -> list[B]:
    """Changes one partition after another. Raises Problem at a failure, which is in doubt after a change."""
    changed: list[B] = []
    try:
        for stream in streams:
            changed.append(await change(stream))
    except ClientError as error:
        problem = problem_of(error)
        problem.members["in_doubt"] |= is_changed or bool(changed)
        raise problem from error
    return changed


async def _body(call: HttpCall, kind: type[B]) -> B:
    """Returns the body of a request as a struct, by default of an empty object. Raises Problem."""
    body = await read_small(call.request, BODY_BYTES_MAX)
    try:
        return msgspec.convert(_whole(msgspec.json.decode(body or b"{}")), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "invalid-request", f"the body is wrong: {error}") from error


def _whole(value: Any) -> Any:
    """Returns a value of JSON with 3 in place of 3.0, because JSON Schema and JavaScript have one whole number 3."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _description(name: str, infos: list[StreamInfo], status: int = 200) -> Response:
    return json_response(StreamDescription(name, [_partition(each) for each in infos]), status, end=b"\n")


def _partition(info: StreamInfo) -> Partition:
    first, last = (None if each is None else time_text(each) for each in (info.first_time_us, info.last_time_us))
    kept = info.retention
    retention = None if kept is None else DataRetention(kept.age_s, kept.messages, kept.size_bytes)
    return Partition(
        stream=info.stream_name,
        partition=info.partition,
        first_index=info.first_index,
        next_index=info.next_index,
        size_bytes=info.size_bytes,
        created=time_text(info.created_us),
        first_time=first,
        last_time=last,
        retention=retention,
    )


def _retention(given: DataRetention | None) -> Retention | None:
    return None if given is None else Retention(given.age_s, given.messages, given.size_bytes)


CLIENT_ID_BYTES_MAX = 1024
SAVE_S_MAX = 10.0
"""The longest time for saving a position. A node does not answer when it refuses to save a position."""
POSITIONS_MAX = 10_000


class PositionQuery(msgspec.Struct, frozen=True):
    """The parameters of saving a position.

    index: the next index that the consumer wants.
    partition: the number of the partition.
    back: whether the position may go back. A consumer that saves its progress leaves it out: then the highest index
    that was ever saved counts, whatever the order in which requests arrive.
    """

    index: Index
    partition: PartitionNumber = 0
    back: bool = False


class ForgetQuery(msgspec.Struct, frozen=True):
    """The parameters of forgetting a position. partition: the number of the partition."""

    partition: PartitionNumber = 0


class Position(msgspec.Struct, frozen=True):
    """A saved position. index: the next index that the consumer wants. saved: when it was saved."""

    partition: int
    index: int
    saved: str


class ConsumerPositions(msgspec.Struct, frozen=True):
    """The saved positions of one consumer in one stream, by partition. A partition without one begins at its start."""

    stream: str
    client_id: str
    positions: list[Position]


class Saved(msgspec.Struct, frozen=True):
    """The answer to a change of a position. index: the saved index after it; null: none is saved."""

    stream: str
    client_id: str
    partition: int
    index: int | None


async def show_positions(call: HttpCall) -> Response:
    name, client_id = _place(call)
    read_query(call.request, NoQuery)
    found: list[Position] = []
    async with call.client() as client:
        async for each in list_positions(client, stream_name=name, client_id=client_id):
            found.append(Position(each.partition, each.index, time_text(each.saved_us)))
            if len(found) >= POSITIONS_MAX:
                break
    return json_response(ConsumerPositions(name, client_id, found), end=b"\n")


async def save_position(call: HttpCall) -> Response:
    name, client_id = _place(call)
    query = read_query(call.request, PositionQuery)
    index = query.index
    async with call.client() as client:
        if query.back:
            await set_position(client, client_id, name, query.partition, index)
        else:
            positions = SavedIndexes(client, client_id)
            with trio.move_on_after(SAVE_S_MAX) as scope:
                await positions.save(name, {query.partition: index})
                index = await positions.get(name, query.partition)
            if scope.cancelled_caught:
                reason = call.parts.statistics().services.index.write_failure
                reason = "look at the node's log, and send it again" if reason is None else reason
                detail = f"the position was not saved within {SAVE_S_MAX:g} s: {reason}"
                # An operation that found no room has stored nothing.
                if NO_ROOM in reason:
                    raise Problem(507, "no-room", detail, headers=RETRY)
                raise Problem(503, "not-saved", detail, headers=RETRY, members={"in_doubt": True})
    return json_response(Saved(name, client_id, query.partition, index), end=b"\n")


async def forget_position(call: HttpCall) -> Response:
    name, client_id = _place(call)
    query = read_query(call.request, ForgetQuery)
    async with call.client() as client:
        await set_position(client, client_id, name, query.partition, None)
    return json_response(Saved(name, client_id, query.partition, None), end=b"\n")


def _place(call: HttpCall) -> tuple[str, str]:
    client_id = path_text(call.request, "client_id")
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise Problem(400, "invalid-request", f"the name of a consumer has at most {CLIENT_ID_BYTES_MAX} bytes")
    return stream_name(call.request), client_id
