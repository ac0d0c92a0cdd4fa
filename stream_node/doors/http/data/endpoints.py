"""The list of all operations on data over HTTP, and `/v1/openapi.json`, which describes them in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from stream_node import __version__
from stream_node.doors.http.app import Endpoint, HttpCall, json_response
from stream_node.doors.http.data import streams
from stream_node.doors.http.data.places import NoQuery, read_query
from stream_node.doors.http.data.pull import EVENTS, MessagePage, MessageQuery, PullQuery, pull, pull_message
from stream_node.doors.http.data.push import Pushed, PushQuery, push
from stream_node.doors.http.data.records import JSON, LINES, RAW, TEXT
from stream_node.doors.http.problems import MEDIA_TYPE

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


def make_endpoint(operations: Sequence[HttpOperation]) -> Endpoint:
    document = make_document(operations)

    async def show(call: HttpCall) -> Response:
        read_query(call.request, NoQuery)
        return json_response(document, end=b"\n")

    return Endpoint("GET", "/v1/openapi.json", show)


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
ENDPOINTS: tuple[Endpoint, ...] = (
    *(Endpoint(each.method, each.path, each.handle) for each in OPERATIONS),
    make_endpoint(OPERATIONS),
)
