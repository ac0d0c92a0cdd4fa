"""Goal: each limit of an identity holds, is told by name, leaves other identities alone, and is given back at the end.

Method: real servers and sockets; anonymous peers from several addresses of this machine, clients with certificates.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from block_node.protocol import PUBLISH, OpenSession, SessionOpened, StreamEnded
from block_node.protocol_reading import SUBSCRIBE, Subscribe, Subscribed, SubscriptionEnded
from ockam.actors.address import Route, local
from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest
from ockam.protocol import ERROR, REFUSAL
from ockam.quotas.usage import is_limited
from ockam.transport import connection_usage
from stream_client import LimitExceeded, Reconnect, Tls, connect
from stream_service.extensions import RICH_PULL, FromEnd, RichPull
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    PUSH,
    CreatePartitions,
    CreateStream,
    PullRequest,
    PushRequest,
)
from stream_service.stored import StoredStream
from stream_service.workers import service
from stream_storage.contract import Session
from stream_storage.errors import DiskFull
from tests.limits.limited_node import FLOODER, NEIGHBOUR, WHO, Limited, limited
from tests.support.certificates import Authority
from tests.support.served import wait_until
from tests.support.stream_peer import SERVICE, StreamPeer
from tests.tokens.token_node import first_token

LONG_POLL = RICH_PULL.encode_request(RichPull(7, FromEnd(0), 10, 60_000))


async def reason_of(peer: StreamPeer, route: Route, payload: bytes) -> str:
    reason = ERROR.decode_response((await peer.ask(route, payload)).payload).reason
    assert is_limited(reason)
    assert f"for {WHO};" in reason
    assert reason.endswith("or ask the operator to raise it")
    return reason


async def unlimited_still(node: Limited) -> None:
    """Another identity, which has no table, does everything."""
    peer = await node.peer(NEIGHBOUR)
    route = await peer.create("neighbour")
    first = await peer.push(route, b"x")
    assert (await peer.pull(route, first.index, 10)).messages[0].data == b"x"


async def test_connections(tmp_path: Path) -> None:
    """Beyond the limit the first request is refused by name. A connection that ends makes room."""
    async with limited(tmp_path, {WHO: {"connections_max": 2}}) as node:
        first, second = await node.peer(), await node.peer()
        for each in (first, second):
            await each.create("orders")
        third = await node.peer()
        reason = await reason_of(third, SERVICE, CREATE.encode_request(CreateStream("orders")))
        assert "identity_connections_max is 2 for" in reason
        await third.wait_closed()
        await unlimited_still(node)
        await node.running.wait_closed_because("identity_connections_max")
        (line,) = node.audit("limited")
        assert (line["identity"], line["name"], line["reason"]) == (
            WHO,
            "identity_connections_max",
            reason.removeprefix(REFUSAL),
        )
        first.stream.socket.close()
        await wait_until(lambda: node.running.statistics().tcp.closed.get("closed_by_peer"))
        await (await node.peer()).create("orders")


async def test_a_silent_connection_whose_token_proves_an_identity_with_too_many_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no identity keeps more connections than its limit by sending nothing behind its token. Method: three
    connections with one token, and a limit of one. The first lives."""
    monkeypatch.setattr(connection_usage, "REFUSED_S", 0.05)
    token = first_token(tmp_path, "flooder")
    async with limited(tmp_path, {"token:flooder": {"connections_max": 1}}) as node:
        peers = [await node.peer() for _ in range(3)]
        for peer in peers:
            await peer.ask((NODE_AUTHENTICATE,), AUTHENTICATE.encode_request(AuthenticateRequest(1, token)))
        for peer in peers[1:]:
            await peer.wait_closed()
        await node.running.wait_closed_because("identity_connections_max", 2)
        await peers[0].create("orders")


async def test_a_push_over_a_refused_connection_is_not_answered(tmp_path: Path) -> None:
    """It may have been sent over an earlier connection too, so no refusal would be right."""
    async with limited(tmp_path, {WHO: {"connections_max": 1}}) as node:
        route = await (first := await node.peer()).create("orders")
        second = await node.peer()
        await second.send(route, PUSH.encode_request(PushRequest(1, b"x")))
        await second.wait_closed()
        assert not (await first.pull(route, 0, 10)).messages


async def test_connections_beyond_the_refused_ones_are_closed_at_once(tmp_path: Path) -> None:
    async with limited(tmp_path, {WHO: {"connections_max": 0}}) as node:
        waiting = [await node.peer() for _ in range(30)]
        closed = node.running.statistics().tcp.closed
        await wait_until(lambda: node.running.statistics().tcp.closed.get("identity_connections_max", 0) >= 14)
        # Also those that hear no reason are counted, and are in the audit log.
        assert node.statistics().refused == {"connections_max": 30}
        (line,) = node.audit("limited")
        assert "; everybody without a certificate or token at this address counts for it; close" in line["reason"]
        for peer in waiting:
            peer.stream.socket.close()
        await wait_until(lambda: not node.running.statistics().tcp.connections)
        assert "gave_way" not in closed
        await unlimited_still(node)


@pytest.mark.parametrize("limit", ["requests_per_second", "bytes_per_second"])
async def test_a_rate_slows_and_loses_nothing(tmp_path: Path, limit: str) -> None:
    """More than the limit's burst: reading has to wait, all is confirmed in order."""
    most = {"requests_per_second": 300, "bytes_per_second": 60_000}[limit]
    async with limited(tmp_path, {WHO: {limit: most}}) as node:
        peer = await node.peer()
        route = await peer.create("orders")
        confirms = await peer.push_all(route, [b"%090d" % number for number in range(450)])
        assert [confirm.index for confirm in confirms] == list(range(450))
        assert node.statistics().slowed[limit] > 0
        assert not node.statistics().refused
        await unlimited_still(node)
        lines = node.audit("slowed")
        assert {line["name"] for line in lines} == {f"identity_{limit}"}


async def test_a_slowed_identity_gets_no_more_by_more_connections(tmp_path: Path) -> None:
    """The debt of one connection is that of all: what a new connection sends waits as well."""
    async with limited(tmp_path, {WHO: {"requests_per_second": 50}}) as node:
        first, second = await node.peer(), await node.peer()
        route = await first.create("orders")
        data = PUSH.encode_request(PushRequest(1, b"x"))
        await first.stream.send_all(first.frame(route, data) * 400)
        await wait_until(lambda: node.statistics().slowed)
        await second.send(route, data)
        await unlimited_still(node)
        received = {each.peer: each.received for each in node.running.statistics().tcp.connections}
        host, port = second.stream.socket.getsockname()[:2]
        assert received[f"{host}:{port}"] == 0
        assert host == FLOODER


async def test_bytes_in_flight(tmp_path: Path) -> None:
    """A peer that takes no answers is not read any more above its limit; when it takes them, all arrive."""
    most = 1024 * 1024
    async with limited(tmp_path, {WHO: {"in_flight_bytes_max": most}}) as node:
        writer = await node.peer(NEIGHBOUR)
        route = await writer.create("orders")
        for _ in range(2):
            await writer.push(route, bytes(500_000))
        stream = await node.connect()
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        await stream.send_all(writer.wire.hello)
        reader = StreamPeer(stream, writer.wire)
        pulls = 40
        for number in range(pulls):
            await reader.send(route, PULL.encode_request(PullRequest(number, 0, 2)))
            await trio.testing.wait_all_tasks_blocked(0.005)
        await wait_until(lambda: node.statistics().slowed.get("in_flight_bytes_max"))
        assert node.statistics().held_bytes < 16 * most
        await unlimited_still(node)
        answers = [PULL.decode_response((await reader.receive()).payload) for _ in range(pulls)]
        assert [answer.request_id for answer in answers] == list(range(pulls))
        await wait_until(lambda: node.statistics().held_bytes < most)


async def test_streams_created(tmp_path: Path) -> None:
    async with limited(tmp_path, {WHO: {"streams_per_hour": 5}}) as node:
        peer = await node.peer()
        await peer.create("one")
        await peer.create("one")
        await peer.create_partitions("four", 4)
        reason = await reason_of(peer, SERVICE, CREATE.encode_request(CreateStream("more")))
        assert "identity_streams_per_hour is 5" in reason
        partitioned = CREATE_PARTITIONED.encode_request(CreatePartitions("four", 5))
        assert "identity_streams_per_hour" in await reason_of(peer, SERVICE, partitioned)
        # What exists can be used.
        assert (await peer.push(await peer.create("one"), b"x")).index == 0
        await unlimited_still(node)


async def test_creates_that_failed_use_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: a client that repeats its create until the disk has room gets its streams then. Method: storage that fails
    creates; two partitions in an hour are the limit, and three creates of two partitions fail."""

    def fail(session: Session, name: str, partitions: list[int], created_us: int) -> list[StoredStream]:
        raise DiskFull("the disk is full")

    async with limited(tmp_path, {WHO: {"streams_per_hour": 2}}) as node:
        peer = await node.peer()
        with monkeypatch.context() as broken:
            broken.setattr(service, "ensure_streams", fail)
            for _ in range(3):
                create = CREATE_PARTITIONED.encode_request(CreatePartitions("orders", 2))
                assert "the disk is full" in await peer.refused(SERVICE, create)
        assert len(await peer.create_partitions("orders", 2)) == 2
        # These two have used up the limit: nothing was given back twice.
        await reason_of(peer, SERVICE, CREATE.encode_request(CreateStream("more")))


async def test_parked_pulls(tmp_path: Path) -> None:
    async with limited(tmp_path, {WHO: {"pulls_parked_max": 2}}) as node:
        peer, other = await node.peer(), await node.peer(NEIGHBOUR)
        route = await peer.create("orders")
        for _ in range(2):
            await peer.send(route, LONG_POLL)
        await wait_until(lambda: node.statistics().open.get("pulls_parked_max") == 2)
        assert "identity_pulls_parked_max is 2" in await reason_of(peer, route, LONG_POLL)
        for _ in range(3):
            await other.send(route, LONG_POLL)
        await wait_until(lambda: node.statistics().open.get("pulls_parked_max") == 5)
        await (await node.peer(NEIGHBOUR)).push(route, b"x")
        pages = [RICH_PULL.decode_response((await peer.receive()).payload) for _ in range(2)]
        assert [len(page.messages) for page in pages] == [1, 1]
        await wait_until(lambda: "pulls_parked_max" not in node.statistics().open)


async def test_block_sessions(tmp_path: Path) -> None:
    """Publishers and subscribers: the second one is told in the protocol of blocks, and a neighbour is served."""
    tables = {WHO: {"block_publish_sessions_max": 1, "block_subscribe_sessions_max": 1}}
    async with limited(tmp_path, tables) as node:
        ways: list[tuple[str, Callable[[StreamPeer, int], Awaitable[object]]]] = [
            ("block_publish_sessions_max", _open_session),
            ("block_subscribe_sessions_max", _subscribe),
        ]
        for limit, begin in ways:
            first, second, other = await node.peer(), await node.peer(), await node.peer(NEIGHBOUR)
            assert isinstance(await begin(first, 1), SessionOpened | Subscribed)
            refused = await begin(second, 2)
            assert isinstance(refused, StreamEnded | SubscriptionEnded)
            assert is_limited(refused.reason)
            assert f"identity_{limit} is 1" in refused.reason
            assert isinstance(await begin(other, 3), SessionOpened | Subscribed)
            assert node.statistics().open[limit] == 2
            # Sessions of connections that are gone end by themselves, without a word of the peer.
            first.stream.socket.close()
            other.stream.socket.close()
            await wait_until(partial(_has_none, node, limit))
            assert isinstance(await begin(second, 4), SessionOpened | Subscribed)


def _has_none(node: Limited, limit: str) -> bool:
    return limit not in node.statistics().open


async def _open_session(peer: StreamPeer, number: int) -> object:
    request = PUBLISH.encode_request(OpenSession(b"%d" % number))
    return PUBLISH.decode_response((await peer.ask((local("block_publish"),), request)).payload)


async def _subscribe(peer: StreamPeer, number: int) -> object:
    request = SUBSCRIBE.encode_request(Subscribe(number, None, None, False, 1 << 20))
    return SUBSCRIBE.decode_response((await peer.ask((local("block_subscribe"),), request)).payload)


async def test_a_certificate_has_limits_of_its_own_and_our_client_names_them(tmp_path: Path) -> None:
    """alice and bob come from one address: the limits of alice count for her alone, and each error is typed."""
    authority = Authority(tmp_path)
    server = authority.issue("node", hosts=("127.0.0.1",))
    who = {name: Tls(authority.ca, *authority.issue(name)) for name in ("alice", "bob")}
    tls = {"tls_certificate": server[0], "tls_certificate_key": server[1], "tls_client_ca": authority.ca}
    tables = {"certificate:alice": {"connections_max": 1, "streams_per_hour": 2, "requests_per_second": 400}}
    async with limited(tmp_path, tables, **tls) as node:
        address = node.running.address
        async with connect(address, tls=who["alice"]) as alice, connect(address, tls=who["bob"]) as bob:
            stream = await alice.create("orders")
            await alice.create("bills")
            with pytest.raises(LimitExceeded) as caught:
                await alice.create("more")
            assert (caught.value.limit, caught.value.retriable) == ("identity_streams_per_hour", True)
            assert "certificate:alice" in str(caught.value)
            async with connect(address, tls=who["alice"], reconnect=Reconnect(delay_s=0.05)) as second:
                with pytest.raises(LimitExceeded) as caught:
                    await second.create("orders")
            assert caught.value.limit == "identity_connections_max"
            await bob.create("of bob")
            async with stream.publisher() as publisher:
                pushes = [await publisher.push(b"x") for _ in range(900)]
                await publisher.flush()
            assert [push.result() for push in pushes] == list(range(900))
            assert node.statistics().slowed["requests_per_second"] > 0
            for number in range(3):
                await bob.create(f"bob {number}")
        await wait_until(lambda: node.statistics().identities == 0)


@pytest.mark.parametrize("connections", [300, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_usage_is_given_back_after_many_ends(tmp_path: Path, connections: int) -> None:
    """Hundreds of connections push, wait for messages, open sessions, and end in four ways, and some are refused.
    Nothing stays counted."""
    limits = {
        "connections_max": 300,
        "in_flight_bytes_max": 50_000_000,
        "pulls_parked_max": 8,
        "requests_per_second": 10**6,
    }
    async with limited(tmp_path, {WHO: limits}) as node:
        keeper = await node.peer()
        route = await keeper.create("orders")
        push = PUSH.encode_request(PushRequest(1, bytes(100)))
        for number in range(connections):
            peer = await node.peer()
            data = peer.frame(route, push) * 3 + peer.frame(route, LONG_POLL)
            if number % 10 == 0:
                session = PUBLISH.encode_request(OpenSession(b"%d" % number))
                data += peer.frame((local("block_publish"),), session)
            if number % 4 == 3:
                data += b"\xff" * 40
            await peer.stream.send_all(data)
            if number % 4 == 0:
                await peer.receive()
            if number % 4 == 1:
                # A reset instead of a goodbye.
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                peer.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            peer.stream.socket.close()
        await wait_until(lambda: len(node.running.statistics().tcp.connections) == 1)
        keeper.stream.socket.close()
        await wait_until(lambda: node.statistics().identities == 0)
        statistics = node.statistics()
        assert (statistics.held_bytes, statistics.open) == (0, {})


async def test_limits_are_read_again(tmp_path: Path) -> None:
    """Lower and higher limits hold at once for connections that are open, and a file with a mistake changes nothing."""
    async with limited(tmp_path, {WHO: {"streams_per_hour": 1}}) as node:
        peer = await node.peer()
        await peer.create("one")
        await reason_of(peer, SERVICE, CREATE.encode_request(CreateStream("two")))
        node.limit({WHO: {"streams_per_hour": 100, "connections_max": 1}})
        # Room comes with the time of an hour; a table without the limit gives all of it at once.
        await reason_of(await node.peer(), SERVICE, CREATE.encode_request(CreateStream("one")))
        node.limit({WHO: {"connections_max": 1, "streams_per_hour": "unlimited"}})
        await peer.create("two")
        node.limit({WHO: {"streams_per_hour": 0}})
        await peer.create("three")
        access = node.running.statistics().access
        assert access is not None
        assert access.reloads_failed == 1
        node.limit({})
        await (await node.peer()).create("four")
