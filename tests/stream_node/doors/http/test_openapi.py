"""Goal: the document of OpenAPI says what the node does.

Method: the document is fetched from a real node; real answers are checked against its schemas by code of this test,
which shares nothing with the node.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stream_node.doors.http.endpoints import ENDPOINTS, OPERATIONS
from tests.stream_node.doors.http.http_node import http_node


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
    described = {(each.method, each.path) for each in OPERATIONS}
    of_data = {(each.method, each.path) for each in ENDPOINTS if each.path.startswith("/v1/")}
    assert described == of_data - {("GET", "/v1/openapi.json")}
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


async def test_the_document_and_the_node_agree_on_texts(tmp_path: Path) -> None:
    """What the patterns, the bounds and the schemas of the document refuse, the node refuses, at once; and what they
    take, the node takes. 3.0 is the whole number 3, as JSON Schema says."""
    async with http_node(tmp_path) as node, node.client() as client:
        document = (await client.get("/v1/openapi.json")).json()
        parameters = {
            (operation["operationId"], each["name"]): each["schema"]
            for methods in document["paths"].values()
            for operation in methods.values()
            for each in operation["parameters"]
        }
        assert (await client.put("/v1/streams/s", json={"partitions": 1.0})).status_code == 201
        pattern = parameters["pull", "from"]["pattern"]
        for start in (
            *("earliest", "latest", "first", "last", "new", "0", "007", "2h", "30s", "52w", "2026-11-01T08:00Z"),
            *("2026-11-01T08:00:00.123456Z", "2999-12-31T23:59:59-23:59", "1970-01-02T00:00:00+0100"),
            *(
                "",
                "x",
                "-1",
                "1.5",
                "\u0663",
                "2026-11-01",
                "2026-11-01T08:00",
                "2026-13-01T08:00Z",
                "2026-11-01T24:00Z",
            ),
            *("1000000000000000000000", "2 h", "10000000000s", "20261101T080000Z", "0\n"),
        ):
            answer = await client.get("/v1/streams/s", params={"from": start})
            # An index beyond the end is understood, too.
            is_taken = answer.status_code in (200, 409)
            assert is_taken == (re.search(pattern, start) is not None and "\n" not in start), start
        pattern = parameters["push", "key_base64"]["pattern"]
        for digits in (
            "",
            "YQ==",
            "YWI=",
            "YWJj",
            "-_-_",
            "+/+/",
            "YQ",
            "YQ=",
            "YWJjZA",
            "Y Q=",
            "====",
            "YQ==YQ==",
            "é",
        ):
            answer = await client.get("/v1/streams/s", params={"key_base64": digits})
            is_taken = re.search(pattern, digits.replace(" ", "+")) is not None
            assert (answer.status_code == 200) == is_taken, digits
        most = parameters["save_position", "partition"]["maximum"]
        for number, status in ((most, 200), (most + 1, 400)):
            path = f"/v1/streams/s/consumers/c?index=1&partition={number}"
            assert (await client.put(path)).status_code == status
        for retention, status in (({"messages": 3.0}, 200), (None, 200), ({}, 400), ({"age_s": None}, 400)):
            assert (await client.patch("/v1/streams/s", json={"retention": retention})).status_code == status
        for wrong in ({"messages": 3.5}, {"messages": "3"}, {"messages": True}):
            assert (await client.patch("/v1/streams/s", json={"retention": wrong})).status_code == 400
        limits = document["components"]["schemas"]["DataRetention"]
        assert limits["not"] == {"properties": {name: {"type": "null"} for name in limits["properties"]}}
        large = await client.put("/v1/streams/s", content=b" " * 100_000)
        assert (large.status_code, large.json()["type"]) == (413, "urn:stream-node:problem:body-too-large")
