"""Goal: a request that cannot be served is answered with what is wrong, counted and logged; nothing else happens.

Method: raw requests to a whole server, in both framings, with a neighbour who pushes and pulls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import bare
from ockam.protocol import ERROR, Error
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_service.extensions import LIST, ListRequest
from stream_service.names import NAME_BYTES_MAX
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    CREATE_PARTITIONS,
    PULL,
    PUSH,
    CreatePartitions,
    CreateStream,
    PullRequest,
    PushConfirm,
    PushRequest,
    Status,
)
from tests.support.served import neighbour, served
from tests.support.stream_peer import SERVICE

BOTH_WIRES = pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)


def envelope(name: bytes, body: bytes) -> bytes:
    """A payload whose sizes are right, whatever the protocol's name and its body are (each below 128 bytes)."""
    return bytes((len(name),)) + name + bytes((len(body),)) + body


def refusals(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "request_refused"]


LISTED = ListRequest(0, "", None, 1)

REFUSED_BY_THE_SERVICE = {
    "garbage": (b"garbage", "names no protocol"),
    "nothing": (b"", "names no protocol"),
    "unknown protocol": (envelope(b"nope", b"x"), "'nope'"),
    "unknown protocol of 16 KB": (b"\x80\x7d" + b"n" * 16_000, "'nnnn"),
    "protocol name that is not UTF-8": (envelope(b"\xff\xfe", b"x"), "names no protocol"),
    "a push": (PUSH.encode_request(PushRequest(1, b"data")), "stream_push"),
    "a pull": (PULL.encode_request(PullRequest(1, 0, 1)), "stream_pull"),
    "an error": (ERROR.encode_request(Error("Invalid request")), "'error'"),
    # Only what creates a stream may have bytes behind its fields (tests/service/test_partitions.py).
    "bytes behind the envelope": (LIST.encode_request(LISTED) + b"\0", "node/stream_list/1"),
    "bytes behind the request": (envelope(b"node/stream_list/1", bare.encode(LISTED) + b"\0"), "node/stream_list/1"),
    "a cut request": (envelope(b"stream_create", b"\x01\x05s"), "stream_create"),
    "optional tag 2": (envelope(b"stream_create", b"\x02\x01s"), "stream_create"),
    "no partitions field": (envelope(b"stream_create_partitioned", b"\x01\x01s"), "stream_create_partitioned"),
    "partitions above 64 bits": (
        envelope(b"stream_create_partitions", b"\x01\x01s" + b"\xff" * 10 + b"\x01"),
        "stream_create_partitions",
    ),
    "a name that is not UTF-8": (envelope(b"stream_create", b"\x01\x02\xff\xfe"), "stream_create"),
    "a name with a surrogate": (envelope(b"stream_create", b"\x01\x03\xed\xa0\x80"), "stream_create"),
    "an empty name": (CREATE.encode_request(CreateStream("")), "not empty"),
    "an empty name of partitions": (CREATE_PARTITIONS.encode_request(CreatePartitions("", 2)), "not empty"),
    "a long name": (CREATE.encode_request(CreateStream("s" * (NAME_BYTES_MAX + 1))), "1025 bytes; at most 1024"),
    "a name of few characters and many bytes": (CREATE.encode_request(CreateStream("ü" * 513)), "1026 bytes"),
    "a long name of partitions": (
        CREATE_PARTITIONED.encode_request(CreatePartitions("s" * 60_000, 2)),
        "60000 bytes; at most 1024",
    ),
    "a name with a zero byte": (CREATE.encode_request(CreateStream("a\0b")), "no zero bytes"),
}


@pytest.mark.parametrize(("payload", "reason"), REFUSED_BY_THE_SERVICE.values(), ids=REFUSED_BY_THE_SERVICE)
@BOTH_WIRES
async def test_the_service_says_what_is_wrong(tmp_path: Path, wire: Wire, payload: bytes, reason: str) -> None:
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            peer = await server.peer(wire)
            answer = await peer.ask(SERVICE, payload)
            assert answer.return_route == SERVICE
            assert await peer.create("fine")
            statistics = server.statistics().services
            assert (statistics.refused, statistics.streams) == (1, 2)
    text = ERROR.decode_response(answer.payload).reason
    assert text.startswith("Invalid request: ")
    assert reason in text
    assert len(text) < 300
    (line,) = refusals(logs)
    assert (f"Invalid request: {line['reason']}", line["address"]) == (text, "stream_service")
    assert line["peer"].startswith("127.0.0.1:")


REFUSED_BY_A_STREAM = {
    "garbage": b"garbage",
    "nothing": b"",
    "unknown protocol": envelope(b"nope", b"x"),
    "an index request": envelope(b"stream_index", b"\x00\x01c\x01s"),
    "an error": ERROR.encode_request(Error("Invalid request")),
    "bytes behind a pull": PULL.encode_request(PullRequest(1, 0, 1)) + b"\0",
    "a cut pull": envelope(b"stream_pull", b"\x01\x00"),
    "a limit above 64 bits": envelope(b"stream_pull", b"\x01\x00" + b"\xff" * 9 + b"\x02"),
    "bytes behind a push": PUSH.encode_request(PushRequest(1, b"data")) + b"\0",
    "a cut push": envelope(b"stream_push", b"\x01\x05ab"),
    "a request id above 64 bits": envelope(b"stream_push", b"\xff" * 10 + b"\x01\x01a"),
    "another stream's create": CREATE.encode_request(CreateStream("other")),
    "another stream's partitions": CREATE_PARTITIONED.encode_request(CreatePartitions("other", 1)),
}


@pytest.mark.parametrize("payload", REFUSED_BY_A_STREAM.values(), ids=REFUSED_BY_A_STREAM)
@BOTH_WIRES
async def test_a_stream_says_what_is_wrong_and_keeps_its_messages(tmp_path: Path, wire: Wire, payload: bytes) -> None:
    """At the real service, a create sent to a stream lost its data."""
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            peer = await server.peer(wire)
            route = await peer.create("s")
            await peer.push(route, b"kept")
            answer = await peer.ask(route, payload)
            assert answer.return_route == route
            assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"kept"]
            assert (await peer.push(route, b"next")).index == 1
            assert server.statistics().services.refused == 1
    assert ERROR.decode_response(answer.payload).reason.startswith("Invalid request: ")
    (line,) = refusals(logs)
    assert line["address"] == str(route[0])


async def test_a_streams_own_create_sent_to_it_is_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        for name in ("s", None):
            init = await peer.ask(route, CREATE.encode_request(CreateStream(name)))
            assert (CREATE.decode_response(init.payload).stream_name, init.return_route) == ("s", route)


async def test_a_name_of_the_longest_length_is_served(tmp_path: Path) -> None:
    names = ["s" * NAME_BYTES_MAX, "ü" * (NAME_BYTES_MAX // 2), " ", "'\"; drop table streams; --", "\U0001f4a9"]
    async with served(tmp_path) as server:
        peer = await server.peer()
        routes = [await peer.create(name) for name in names]
        for number, route in enumerate(routes):
            await peer.push(route, b"%d" % number)
    async with served(tmp_path) as server:
        peer = await server.peer()
        for number, name in enumerate(names):
            route = await peer.create(name)
            assert route == routes[number]
            assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"%d" % number]


@pytest.mark.parametrize(
    ("index", "limit", "expected"),
    [
        pytest.param(0, 0, [], id="limit-0"),
        pytest.param(0, 2**63 - 1, [0, 1, 2], id="limit-2^63-1"),
        pytest.param(0, 2**63, [0, 1, 2], id="limit-2^63"),
        pytest.param(1, 2**64 - 1, [1, 2], id="limit-2^64-1"),
        pytest.param(3, 1, [], id="index-at-the-end"),
        pytest.param(2**63 - 1, 10, [], id="index-2^63-1"),
        pytest.param(2**63, 10, [], id="index-2^63"),
        pytest.param(2**64 - 1, 2**64 - 1, [], id="index-2^64-1"),
        pytest.param(2**64 - 1, 0, [], id="index-2^64-1-limit-0"),
    ],
)
@BOTH_WIRES
async def test_indexes_and_limits_of_any_size(
    tmp_path: Path, wire: Wire, index: int, limit: int, expected: list[int]
) -> None:
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer(wire)
        route = await peer.create("s")
        await peer.push_all(route, [b"data"] * 3)
        page = await peer.pull(route, index, limit, request_id=2**64 - 1)
        assert page.request_id == 2**64 - 1
        assert [message.index for message in page.messages] == expected
        assert server.statistics().services.refused == 0


async def test_extreme_pulls_in_one_run_are_answered_in_order(tmp_path: Path) -> None:
    """Those beyond the end and those that must be read."""
    asked = [(2**64 - 1, 1), (0, 2), (1, 0), (2, 2**64 - 1), (2**63, 5)]
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [b"data"] * 3)
        pulls = [PULL.encode_request(PullRequest(number, *pull)) for number, pull in enumerate(asked)]
        await peer.stream.send_all(b"".join(peer.frame(route, pull) for pull in pulls))
        pages = [PULL.decode_response((await peer.receive()).payload) for _ in asked]
    assert [page.request_id for page in pages] == list(range(5))
    assert [[message.index for message in page.messages] for page in pages] == [[], [0, 1], [], [2], []]


async def test_the_largest_request_id_is_echoed(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        assert await peer.push(route, b"", request_id=2**64 - 1) == PushConfirm(2**64 - 1, Status.OK, 0)


async def test_a_push_that_cannot_be_read_does_not_disturb_those_around_it(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        good = PUSH.encode_request(PushRequest(1, b"good"))
        run = [good, envelope(b"stream_push", b"\x01\x05ab"), good]
        await peer.stream.send_all(b"".join(peer.frame(route, payload) for payload in run))
        answers = [(await peer.receive()).payload for _ in run]
        assert sorted(ERROR.is_in(answer) for answer in answers) == [False, False, True]
        confirms = [PUSH.decode_response(answer) for answer in answers if PUSH.is_in(answer)]
        assert confirms == [PushConfirm(1, Status.OK, index) for index in (0, 1)]


async def test_a_request_without_a_way_back_is_carried_out_and_harms_nobody(tmp_path: Path) -> None:
    """Its answer has an empty onward route, which on the wire is a heartbeat."""
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        for payload in (PUSH.encode_request(PushRequest(1, b"stored")), b"garbage"):
            await peer.stream.send_all(peer.frame(route, payload, ()))
        assert [message.data for message in (await peer.pull(route, 0, 10)).messages] == [b"stored"]
        assert server.statistics().services.refused == 1
