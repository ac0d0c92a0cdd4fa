"""Everything that the node answers over HTTP beside the dashboard: its health, its metrics, and the operations on data,
which `/v1/openapi.json` describes in OpenAPI 3.1. `/livez` says whether the node must be restarted, and `/readyz`
whether it takes work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from stream_node import __version__
from stream_node.doors.http.app import Endpoint, HttpCall, json_response
from stream_node.doors.http.data import streams
from stream_node.doors.http.data.places import NoQuery, read_query
from stream_node.doors.http.data.pull import EVENTS, MessagePage, MessageQuery, PullQuery, pull, pull_message
from stream_node.doors.http.data.push import Pushed, PushQuery, push
from stream_node.doors.http.data.records import JSON, LINES, RAW, TEXT
from stream_node.doors.http.problems import MEDIA_TYPE, Problem
from stream_node.doors.metrics.snapshot import Snapshot, take_snapshot

NOT_WRITING = "the writing thread has given up; look at the log line writing_stopped, and restart the node"


async def livez(call: HttpCall) -> Response:
    """Returns whether the writing thread works. The answer itself shows that the event loop runs."""
    return _answer("live", [] if call.parts.runner.is_writing else [NOT_WRITING])


async def readyz(call: HttpCall) -> Response:
    """Returns whether the node takes work, and the reasons against it. `for=read` asks only for reads."""
    wanted = call.request.query_params.get("for", "write")
    if wanted not in ("read", "write"):
        raise Problem(400, "invalid-request", f"for={wanted[:40]!r} is neither read nor write")
    reasons, parts = [], call.parts
    if parts.condition.is_draining:
        reasons.append("the node is stopping; send requests to it after its next start")
    # A node that stores no pushes still serves reads, and deletions that make room.
    if wanted == "read":
        return _answer("ready", reasons)
    if not parts.runner.is_writing:
        reasons.append(NOT_WRITING)
    if parts.condition.refusing_pushes:
        least, free = parts.condition.needed_disk_bytes, parts.condition.free_disk_bytes
        kept = "free_disk_bytes_min"
        if least > parts.config.free_disk_bytes_min:
            kept += " and the ballast, which was given up for deletes and saves"
        reasons.append(f"the disk has {free} free bytes, and pushes need {least} ({kept}); make room")
    # A write is tried, since perhaps nobody has pushed of late. It can take long if the database server is down.
    if not reasons:
        failure = await parts.services.trials.settle()
        if failure is not None:
            reasons.append(f"pushes are not stored: {failure}")
    return _answer("ready", reasons)


def _answer(name: str, reasons: list[str]) -> Response:
    return json_response({name: not reasons, "reasons": reasons}, 503 if reasons else 200)


async def metrics(call: HttpCall) -> Response:
    """Returns all metrics for Prometheus. The text is made in a thread, because that takes milliseconds."""
    async with _one_at_a_time:
        snapshot = await take_snapshot(call.parts)
        accept, coding = (call.request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        text, headers = await trio.to_thread.run_sync(_text_of, snapshot, accept, coding)
    return Response(text, headers=headers)


def _text_of(snapshot: Snapshot, accept: str, coding: str) -> tuple[bytes, dict[str, str]]:
    # The first scrape loads prometheus-client, which takes 2 MB, in the thread of this call.
    from stream_node.doors.metrics.text import render

    return render(snapshot, accept, coding)


_one_at_a_time = trio.Lock()
"""Several scrapes at one moment wait for each other, so they keep one reading thread busy at most."""


PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\u0000]+$"},
    "client_id": {"type": "string", "minLength": 1, "maxLength": 1024},
    "index": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
}
RAW_SCHEMA = {"type": "string", "contentMediaType": RAW}


class ProblemDetails(msgspec.Struct, frozen=True):
    """An error (RFC 9457). Some errors have further members.

    detail: what went wrong and what to do. retriable: whether the same request can succeed later.
    in_doubt: whether the node may have changed something all the same.
    """

    type: str
    title: str
    status: int
    detail: str
    retriable: bool
    in_doubt: bool


class HttpOperation(NamedTuple):
    """One endpoint for `/v1/openapi.json`. answer, body: the JSON types. other_…: further media types."""

    method: str
    path: str
    handle: Callable[[HttpCall], Awaitable[Response]]
    summary: str
    query: type[msgspec.Struct]
    answer: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None = None
    other_answers: tuple[str, ...] = ()
    other_bodies: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)
    description: str = ""


def make_document(operations: Sequence[HttpOperation]) -> dict[str, Any]:
    types: set[type[msgspec.Struct]] = {
        kind for each in operations for kind in (each.query, each.answer, each.body) if kind is not None
    }
    types.add(ProblemDetails)
    ordered = sorted(types, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    # A retention without any limit is refused. The value `null` instead of a retention means the node's retention.
    limits = components[streams.DataRetention.__name__]
    limits["not"] = {"properties": {name: {"type": "null"} for name in limits["properties"]}}
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, components)
    queries = {each.query.__name__ for each in operations}
    return {
        "openapi": "3.1.0",
        "info": {"title": "stream-node", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(operation: HttpOperation, components: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": PATH_SCHEMAS[name]} for name in names]
    # OpenAPI lists each parameter of a query by itself, and the types have them in one struct.
    query = components[operation.query.__name__]
    for name, schema in query["properties"].items():
        is_required = name in query.get("required", ())
        parameters.append({"name": name, "in": "query", "required": is_required, "schema": _without_null(schema)})
    answers: dict[str, Any] = {kind: {"schema": RAW_SCHEMA} for kind in operation.other_answers}
    if operation.answer is not None:
        answers[JSON] = {"schema": _reference(operation.answer)}
    found: dict[str, Any] = {
        "operationId": operation.handle.__name__,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            **{str(status): {"description": "done", "content": answers} for status in operation.statuses},
            "default": {"description": "a problem", "content": {MEDIA_TYPE: {"schema": _reference(ProblemDetails)}}},
        },
    }
    if operation.description:
        found["description"] = operation.description
    # A request without a body type has none in the document either.
    bodies: dict[str, Any] = {kind: {"schema": {} if kind == JSON else RAW_SCHEMA} for kind in operation.other_bodies}
    if operation.body is not None:
        bodies[JSON] = {"schema": _reference(operation.body)}
    if bodies:
        found["requestBody"] = {"required": operation.method != "PUT", "content": bodies}
    return found


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a parameter that may be left out: a query has no null."""
    if "anyOf" not in schema:
        return {name: value for name, value in schema.items() if value is not None}
    kept = [each for each in schema["anyOf"] if each.get("type") != "null"]
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


BODIES = (JSON, LINES, RAW, TEXT)
PAGES = (LINES, EVENTS)
STREAMS = "/v1/streams"
STREAM = STREAMS + "/{name}"
MESSAGE = STREAM + "/messages/{index}"
CONSUMER = STREAM + "/consumers/{client_id}"
NOTE = "A header Stream-Header-NAME: VALUE of the request is stored as the header NAME of each message."
OPERATIONS: tuple[HttpOperation, ...] = (
    HttpOperation("POST", STREAM, push, "Push messages", PushQuery, Pushed, other_bodies=BODIES, description=NOTE),
    HttpOperation("GET", STREAM, pull, "Read or follow messages", PullQuery, MessagePage, other_answers=PAGES),
    HttpOperation(
        "GET", MESSAGE, pull_message, "Read the bytes of one message", MessageQuery, None, other_answers=(RAW,)
    ),
    HttpOperation("GET", STREAMS, streams.list_streams, "List streams", streams.ListQuery, streams.StreamList),
    HttpOperation("GET", STREAM + "/info", streams.describe, "Describe a stream", NoQuery, streams.StreamDescription),
    HttpOperation(
        "PUT",
        STREAM,
        streams.create,
        "Create a stream",
        NoQuery,
        streams.StreamDescription,
        streams.NewStream,
        statuses=(200, 201),
    ),
    HttpOperation(
        "PATCH", STREAM, streams.change, "Change a stream", NoQuery, streams.StreamDescription, streams.ChangedStream
    ),
    HttpOperation("DELETE", STREAM, streams.delete, "Delete a stream", NoQuery, streams.Deleted),
    HttpOperation("GET", CONSUMER, streams.show_positions, "Read positions", NoQuery, streams.ConsumerPositions),
    HttpOperation("PUT", CONSUMER, streams.save_position, "Save a position", streams.PositionQuery, streams.Saved),
    HttpOperation("DELETE", CONSUMER, streams.forget_position, "Forget a position", streams.ForgetQuery, streams.Saved),
)
_DOCUMENT = make_document(OPERATIONS)


async def describe_all(call: HttpCall) -> Response:
    read_query(call.request, NoQuery)
    return json_response(_DOCUMENT, end=b"\n")


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/livez", livez, is_open=True, is_health=True),
    Endpoint("GET", "/readyz", readyz, is_open=True, is_health=True),
    Endpoint("GET", "/metrics", metrics, Demand(Right.OPERATE, EVERY_NAME)),
    *(Endpoint(each.method, each.path, each.handle) for each in OPERATIONS),
    Endpoint("GET", "/v1/openapi.json", describe_all),
)
