"""Finds what a request means: the parameters in its path and its query, its stream, and its partition."""

from __future__ import annotations

import base64
import re
from functools import cache
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.requests import Request

from index_service.limits import PARTITION_MAX
from ockam.identity.rules.rights import Demand, Right
from stream_client import Stream, StreamClient, StreamInfo, StreamNotFound
from stream_client.core.service_route import STREAM_SERVICE
from stream_node.doors.http.app import HttpCall
from stream_node.doors.http.problems import Problem
from stream_node.node.inside_clients import InsideStream
from stream_service.extensions import LIST, ListRequest, StreamKey
from stream_service.names import partition_of, refusal_of_name, stream_address
from stream_service.workers.readable_stream import ReadableStream

Q = TypeVar("Q", bound=msgspec.Struct)

INDEX_MAX = 2**63 - 1
Index = Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=PARTITION_MAX)]
BASE64 = "^([A-Za-z0-9+/_-]{4})*([A-Za-z0-9+/_-]{2}==|[A-Za-z0-9+/_-]{3}=)?$"
"""Matches base64, also with the letters that need no percent sign in a query."""
Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": BASE64})]


class NoQuery(msgspec.Struct, frozen=True):
    """No parameters."""


def stream_name(request: Request) -> str:
    name = path_text(request, "name")
    refusal = refusal_of_name(name)
    if refusal is not None:
        raise Problem(400, "invalid-request", refusal)
    return name


def path_text(request: Request, parameter: str) -> str:
    """Returns one part of the path. Raises Problem if it is not percent-encoded UTF-8."""
    try:
        return unquote(request.path_params[parameter], errors="strict")
    except UnicodeDecodeError as error:
        detail = f"the {parameter} in the path is not UTF-8; write its bytes in UTF-8, each as %XX"
        raise Problem(400, "invalid-request", detail) from error


def path_index(request: Request, parameter: str) -> int:
    text = request.path_params[parameter]
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= INDEX_MAX):
        raise Problem(400, "invalid-request", f"the {parameter} in the path is a whole number from 0 to {INDEX_MAX}")
    return int(text)


def read_query(request: Request, kind: type[Q]) -> Q:
    """Returns the query as a struct. Raises Problem for unknown, repeated, missing or wrong parameters."""
    try:
        pairs = parse_qsl(request.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        detail = "the query is not UTF-8; write each byte that is no letter or digit as %XX"
        raise Problem(400, "invalid-request", detail) from error
    # A parameter that nobody reads is a mistake of the caller, who should not get another answer than the wanted one.
    values = dict(pairs)
    known = _parameters(kind)
    unknown = next((name for name in values if name not in known), None)
    if unknown is not None:
        takes = f"the parameters are {', '.join(sorted(known))}" if known else "there are no parameters"
        raise Problem(400, "invalid-request", f"there is no parameter {unknown[:40]!r} here; {takes}")
    if len(values) != len(pairs):
        raise Problem(400, "invalid-request", "a parameter is there twice; send each one once")
    # Each text is converted to the type of its field, with the bounds of that type.
    try:
        found = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        # The error is such as "Expected `int`, got `str` - at `$.limit`", or "Object missing required field `index`".
        # The reason can quote the caller's text, so the place is what follows the last "at".
        reason, _, name = str(error).removesuffix("`").rpartition(" - at `$.")
        if not reason:
            raise Problem(400, "invalid-request", f"the parameter {name.rpartition('`')[2]} is missing") from error
        reason = reason.replace(" | null", "")
        raise Problem(400, "invalid-request", f"the parameter {name} is wrong: {reason}") from error
    # The text "null" is no number, and a parameter that is there is not missing.
    null = next((name for name in values if getattr(found, known[name]) is None), None)
    if null is not None:
        raise Problem(400, "invalid-request", f"the parameter {null} is wrong: it must not be null")
    return found


@cache
def _parameters(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


def bytes_of(text: str | None, digits: str | None, what: str) -> bytes | None:
    """Returns bytes given as text, or as base64 (`…_base64`). Raises Problem for both, or for wrong base64."""
    if digits is None:
        return None if text is None else text.encode()
    if text is not None:
        raise Problem(400, "invalid-request", f"send {what} or {what}_base64, not both")
    try:
        # A plus sign of base64 is a space after the query has been read.
        digits = digits.replace(" ", "+")
        if re.fullmatch(BASE64, digits) is None:
            raise ValueError("it has A to Z, a to z, 0 to 9, + and /, and = at the end up to a multiple of four")
        return base64.b64decode(digits.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError as error:
        raise Problem(400, "invalid-request", f"{what}_base64 is no base64: {error}") from error


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
    """Returns the partitions as `find_partitions` does, but from a list that the node remembers until a partition is
    added or removed, so its indexes can be old. Without the right, or with several processes, the list is new."""
    if call.parts.remote_streams is not None or not call.may(Demand(right, name)):
        return await find_partitions(client, name)
    known = call.clients.known_partitions(call.parts.services.directory.changes)
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
            connection = call.clients.connection_of(call.caller.identity, call.caller.peer)
            return InsideStream(client.session, handle, connection)
    return Stream(client.session, handle)


async def get_partition(
    call: HttpCall, client: StreamClient, name: str, number: int | None, key: bytes | None, right: Right
) -> tuple[Stream, StreamInfo]:
    info = choose(await get_partitions(call, client, name, right), name, number, key)
    return partition_at(call, client, name, info.partition), info


def choose(infos: list[StreamInfo], name: str, number: int | None, key: bytes | None) -> StreamInfo:
    """Returns the partition that the number or the key chooses, or the only one. Raises Problem if there is none."""
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
