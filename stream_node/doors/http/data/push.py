"""`POST /v1/streams/{name}`: stores messages, and answers after their sync."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ockam.identity.rules.rights import Demand, Right
from stream_client import Header, RequestRefused, Stream, StreamClient
from stream_client.core.pushes import KeyedPush
from stream_node.doors.http.app import HttpCall, json_response
from stream_node.doors.http.data.places import (
    Base64,
    Index,
    PartitionNumber,
    bytes_of,
    choose,
    find_partitions,
    known_partitions,
    partition_at,
    read_query,
    stream_name,
)
from stream_node.doors.http.data.records import read_messages
from stream_node.doors.http.problems import Problem, problem_of
from stream_node.node.inside_clients import InsideStream, Stored
from stream_service.limits import PUBLISHER_ID_BYTES_MAX

HEADER_PREFIX = b"stream-header-"
"""Headers of a request with this prefix become headers of its messages. All names arrive in small letters."""


class PushQuery(msgspec.Struct, frozen=True):
    """The parameters of a push. One request pushes into one partition.

    partition: the number of the partition. Without it, the key chooses; without a key, one is chosen at random.
    key: the key of the messages, which is stored with each of them.
    key_base64: the key, if it is no text.
    publisher_id: the id of a publisher that numbers its messages, so that a message that is sent again is stored once.
    sequence: the number of the first message in the body; each next message has the next number.
    create: whether a stream that does not exist is created, with one partition.
    """

    partition: PartitionNumber | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    publisher_id: Annotated[str, msgspec.Meta(min_length=1, max_length=PUBLISHER_ID_BYTES_MAX)] | None = None
    sequence: Index | None = None
    create: bool = True


class Pushed(msgspec.Struct, frozen=True):
    """The answer to a push. All messages are stored and synced.

    indexes: the index of each message, in the order of the body; null for a message that was stored long ago, so that
    its index is forgotten.
    duplicates: how many of them were stored by an earlier request.
    """

    stream: str
    partition: int
    indexes: list[int | None]
    duplicates: int


async def push(call: HttpCall) -> Response:
    name, query = stream_name(call.request), read_query(call.request, PushQuery)
    key = bytes_of(query.key, query.key_base64, "key")
    if (query.publisher_id is None) != (query.sequence is None):
        detail = "publisher_id and sequence belong together: send both, or none"
        raise Problem(400, "invalid-request", detail)
    headers = _read_headers(call.request)
    call.check_early(Demand(Right.WRITE, name))
    # Everything is checked before the stream is made: a request that is wrong makes no stream.
    messages = await read_messages(call.request)
    refusal = KeyedPush(max(messages, key=len), 0, key, headers).refusal()
    if refusal is not None:
        raise Problem(413, "message-too-large", f"{refusal}; nothing is stored")
    async with call.client() as client:
        stream = await _find(call, client, name, query, key)
        if isinstance(stream, InsideStream) and key is None and not headers and query.publisher_id is None:
            duplicates, results = 0, await stream.push_plain(messages)
        else:
            async with stream.publisher(
                idempotent=query.publisher_id is not None,
                publisher_id=query.publisher_id,
                first_number=query.sequence or 0,
                keep_failed=True,
            ) as publisher:
                pushes = [await publisher.push(data, key=key, headers=headers) for data in messages]
            duplicates = sum(isinstance(each, KeyedPush) and each.is_duplicate for each in pushes)
            results = [Stored(1, each.index, each.error) for each in pushes]
    return _answer(name, stream.partition, results, duplicates)


def _read_headers(request: Request) -> list[Header]:
    """Returns the headers for all messages of a request, in their order. Raises Problem for an empty name.
    Values have the bytes that were sent. Names are in small letters, which HTTP does not tell from capital ones."""
    found: list[Header] = []
    for name, value in request.headers.raw:
        if not name.startswith(HEADER_PREFIX):
            continue
        if name == HEADER_PREFIX:
            raise Problem(400, "invalid-request", "a header of messages has a name: write Stream-Header-NAME: VALUE")
        found.append(Header(name[len(HEADER_PREFIX) :].decode("ascii"), value))
    return found


async def _find(call: HttpCall, client: StreamClient, name: str, query: PushQuery, key: bytes | None) -> Stream:
    infos = await known_partitions(call, client, name, Right.WRITE)
    if not infos:
        if not query.create:
            call.check(Demand(Right.WRITE, name))
            await client.get_stream(name)
        if query.partition:
            detail = f"there is no stream {name!r}; create it with its partitions first by PUT"
            raise Problem(404, "stream-not-found", detail)
        await client.create(name)
        infos = (await find_partitions(client, name))[:1]
        if not infos:
            raise RequestRefused(f"the stream {name!r} was deleted while it was made; send the request again")
    if query.partition is None and key is None and query.publisher_id is None:
        info = random.choice(infos)
    else:
        # Each partition counts the numbers of a publisher for itself, so a numbered message needs its partition.
        info = choose(infos, name, query.partition, key)
    return partition_at(call, client, name, info.partition)


def _answer(name: str, partition: int, results: list[Stored], duplicates: int) -> Response:
    failed = next((each.error for each in results if each.error is not None), None)
    if failed is None:
        indexes = [index for each in results for index in _indexes(each)]
        return json_response(Pushed(name, partition, indexes, duplicates), end=b"\n")
    problem = problem_of(failed)
    count = sum(each.messages for each in results)
    if count > 1:
        stored = sum(each.messages for each in results if each.error is None)
        problem.members |= {"stored": stored, "messages": [shown for each in results for shown in _shown(each)]}
        # A stored part puts the whole request in doubt: a client that repeats the request would store this part again.
        problem.members["in_doubt"] = any(each.error is None or each.error.in_doubt for each in results)
        problem.detail = f"{stored} of {count} messages are stored; the first that is not: {failed}"
    raise problem


def _indexes(result: Stored) -> Iterable[int | None]:
    first = result.first_index
    return (None,) * result.messages if first < 0 else range(first, first + result.messages)


def _shown(result: Stored) -> list[dict[str, Any]]:
    error = result.error
    if error is None:
        return [{"index": index} for index in _indexes(result)]
    return [{"detail": str(error), "in_doubt": error.in_doubt}] * result.messages
