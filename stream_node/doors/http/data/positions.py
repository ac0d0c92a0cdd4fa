"""`/v1/streams/{name}/consumers/{client_id}`: the positions that a consumer has saved, one for each partition."""

from __future__ import annotations

import msgspec
import trio
from starlette.responses import Response

from stream_client import SavedIndexes, list_positions, set_position
from stream_node.doors.http.app import HttpCall, json_response
from stream_node.doors.http.data.query import Index, NoQuery, PartitionNumber, path_text, read_query, stream_name
from stream_node.doors.http.data.reading import time_text
from stream_node.doors.http.problems import RETRY, Problem
from stream_storage.errors import NO_ROOM

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
                raise _not_saved(call)
    return json_response(Saved(name, client_id, query.partition, index), end=b"\n")


async def forget_position(call: HttpCall) -> Response:
    name, client_id = _place(call)
    query = read_query(call.request, ForgetQuery)
    async with call.client() as client:
        await set_position(client, client_id, name, query.partition, None)
    return json_response(Saved(name, client_id, query.partition, None), end=b"\n")


def _not_saved(call: HttpCall) -> Problem:
    reason = call.parts.statistics().services.index.write_failure
    detail = f"the position was not saved within {SAVE_S_MAX:g} s: "
    if reason is None:
        reason = "look at the node's log, and send it again"
    if NO_ROOM not in reason:
        return Problem(503, "not-saved", detail + reason, headers=RETRY, members={"in_doubt": True})
    # An operation that found no room has stored nothing.
    return Problem(507, "no-room", detail + reason, headers=RETRY)


def _place(call: HttpCall) -> tuple[str, str]:
    client_id = path_text(call.request, "client_id")
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise Problem(400, "invalid-request", f"the name of a consumer has at most {CLIENT_ID_BYTES_MAX} bytes")
    return stream_name(call.request), client_id
