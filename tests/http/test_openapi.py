"""Goal: the document of OpenAPI says what the node does.

Method: the document is fetched from a real node; real answers are checked against its schemas by code of this test,
which shares nothing with the node.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stream_node.http.data.endpoints import ENDPOINTS, OPERATIONS
from tests.http.http_node import http_node


def check(value: Any, schema: dict[str, Any], document: dict[str, Any], place: str = "$") -> None:
    """Raises AssertionError where a value is not what a schema says. A member that the schema lacks is wrong."""
    if "$ref" in schema:
        found = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return check(value, found, document, place)
    if "anyOf" in schema:
        faults = []
        for each in schema["anyOf"]:
            try:
                return check(value, each, document, place)
            except AssertionError as fault:
                faults.append(str(fault))
        raise AssertionError(f"{place}: {faults}")
    if "enum" in schema:
        assert value in schema["enum"], place
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    if "type" in schema:
        assert type(value) is kinds[schema["type"]], f"{place} is {value!r}, not {schema['type']}"
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"]), f"{place}: {set(value)}"
        for name, each in value.items():
            check(each, schema["properties"][name], document, f"{place}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            check(each, schema["items"], document, f"{place}[{number}]")


async def test_answers_are_what_the_document_says(tmp_path: Path) -> None:
    """Each operation is used once, and its answer has the schema of its status; wrong requests are problems."""
    used: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("put", "/v1/streams/a%2Fb", {"json": {"partitions": 1, "retention": {"messages": 9}}}),
        ("post", "/v1/streams/a%2Fb?key=k", {"json": {"a": 1}}),
        ("post", "/v1/streams/a%2Fb", {"content": b"\xff", "headers": {"Content-Type": "application/octet-stream"}}),
        ("get", "/v1/streams/a%2Fb?from=0&limit=10", {}),
        ("get", "/v1/streams/a%2Fb/messages/0", {}),
        ("get", "/v1/streams", {}),
        ("get", "/v1/streams/a%2Fb/info", {}),
        ("patch", "/v1/streams/a%2Fb", {"json": {"retention": None}}),
        ("put", "/v1/streams/a%2Fb/consumers/c?index=1", {}),
        ("get", "/v1/streams/a%2Fb/consumers/c", {}),
        ("delete", "/v1/streams/a%2Fb/consumers/c", {}),
        ("delete", "/v1/streams/a%2Fb", {}),
        ("delete", "/v1/streams/a%2Fb", {}),
        ("get", "/v1/streams?limit=0", {}),
    )
    async with http_node(tmp_path) as node, node.client() as client:
        document = (await client.get("/v1/openapi.json")).json()
        assert document["openapi"] == "3.1.0"
        seen = set()
        for method, path, arguments in used:
            answer = await client.request(method, path, **arguments)
            template = next(
                each
                for each in sorted(document["paths"], key=len, reverse=True)
                if re.fullmatch(re.sub(r"\\?\{\w+\\?\}", "[^/]+", re.escape(each)), path.partition("?")[0])
            )
            responses = document["paths"][template][method]["responses"]
            content = responses.get(str(answer.status_code), responses["default"])["content"]
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind in content, (method, path, answer.text)
            if kind == "application/json":
                check(answer.json(), content[kind]["schema"], document)
            elif kind == "application/problem+json":
                assert {"type", "title", "status", "detail"} <= set(answer.json())
            seen.add((method, template))
    assert seen == {(method, path) for path, methods in document["paths"].items() for method in methods}


def test_every_endpoint_of_data_is_described() -> None:
    described = {(each.endpoint.method, each.endpoint.path) for each in OPERATIONS}
    assert described == {(each.method, each.path) for each in ENDPOINTS} - {("GET", "/v1/openapi.json")}
    assert len(described) == len(OPERATIONS)


async def test_parameters_are_those_that_the_node_takes(tmp_path: Path) -> None:
    """The node itself names its parameters in the problem for an unknown one; the document has the same."""
    async with http_node(tmp_path) as node, node.client() as client:
        document = (await client.get("/v1/openapi.json")).json()
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                place = path.replace("{name}", "a").replace("{client_id}", "c").replace("{index}", "0")
                detail = (await client.request(method, f"{place}?zzz=1")).json()["detail"]
                names = sorted(each["name"] for each in operation["parameters"] if each["in"] == "query")
                assert detail.endswith(f"the parameters are {', '.join(names)}" if names else "there are no parameters")
