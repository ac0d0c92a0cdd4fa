"""Messages that wait in a stream while their client is away.

Goal: what the node has confirmed as stored is delivered, in order, whatever ends in between; what is not stored is
refused. Method: real nodes, killed and started again, and a client that confirms."""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route, local, split_host_port
from ockam.actors.forwarding_protocol import DELIVERY, Taken
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import connect as connect_client
from stream_node.forwarding import storing
from stream_node.forwarding.storing import StoringForwarder
from stream_node.node.process import NodeProcess
from stream_service.extensions import Retention
from tests.stream_node.forwarding.forwarding_peers import (
    STATIC_SERVICE,
    ForwardedPeer,
    connect,
    fail,
    forwarding_node,
    parts_of,
    watchers_of,
    workers_of,
)
from tests.support.served import Served, served, wait_until

ALICE: Route = (local("forward_to_alice"),)
STREAM = "forward/forward_to_alice/anonymous"


async def test_messages_wait_in_order_for_a_client_that_is_away(tmp_path: Path) -> None:
    """Claim: messages wait while nobody is there, and come before those that are sent later; a client of Ockam, which
    knows only a name, gets them without a wrapper. Nothing is left in the stream afterwards."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        assert (await client.register_own("alice", confirms=True)).stores
        assert await sender.forward((*ALICE, local("w")), b"0")
        first = await client.receive()
        # It goes without a confirm, so the message comes again.
        client.stream.socket.close()
        await wait_until(lambda: waits(running)[1])
        for number in range(1, 300):
            await sender.send(ALICE, b"%d" % number)
        assert await sender.forward(ALICE, b"300")
        assert waits(running) == (301, 1)
        plain = await connect(running, LEGACY)
        # Registered by its name alone, as Ockam's own clients do it.
        await plain.register(STATIC_SERVICE, b"\x05alice")
        again = await plain.receive()
        assert (again.payload, again.onward_route[-1]) == (b"0", local("w"))
        assert first.payload.endswith(b"0")
        assert [(await plain.receive()).payload for _ in range(300)] == [b"%d" % each for each in range(1, 301)]
        await sender.send(ALICE, b"live")
        assert (await plain.receive()).payload == b"live"
        await wait_until(lambda: waits(running)[0] == 0)
        async with connect_client(running.address) as looking:
            stream = await looking.create(STREAM)
            while (await stream.info()).count > 0:
                await trio.sleep(0.01)


async def test_an_unconfirmed_message_comes_again(tmp_path: Path) -> None:
    """Claim: each registration delivers from the first unconfirmed message on; confirms over an older connection, or by
    somebody else, delete nothing."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        for number in range(3):
            assert await sender.forward(ALICE, b"%d" % number)
        assert await client.take(1) == [(0, b"0")]
        assert await client.take(2, confirms=False) == [(1, b"1"), (2, b"2")]
        again = await connect(running)
        await again.register_own("alice", confirms=True)
        assert await again.take(1, confirms=False) == [(1, b"1")]
        await client.send(ALICE, DELIVERY.encode_response(Taken(2)))
        third = await connect(running)
        await third.register_own("alice", confirms=True)
        assert await third.take(2) == [(1, b"1"), (2, b"2")]
        await wait_until(lambda: waits(running)[0] == 0)


@asynccontextmanager
async def to(node: NodeProcess) -> AsyncIterator[ForwardedPeer]:
    async with await trio.open_tcp_stream(*split_host_port(node.address)) as stream:
        await stream.send_all(HEAD.hello)
        yield ForwardedPeer(stream, HEAD)


@pytest.mark.slow
async def test_nothing_confirmed_is_lost_when_the_node_is_killed(tmp_path: Path) -> None:
    """Claim: after kill -9 while messages wait, and again while they are being delivered, the client has every message
    that a sender was told is stored, in order; some can come twice. Senders need not wait for the client to return."""
    with NodeProcess(tmp_path / "data", environment={"STREAM_NODE_FORWARDING": "true"}) as node:
        async with to(node) as client:
            await client.register_own("alice", confirms=True)
        stored: list[int] = []
        for part in range(2):
            async with to(node) as sender:
                for number in range(part * 20, part * 20 + 20):
                    assert await sender.forward(ALICE, b"%d" % number)
                    stored.append(number)
            node.kill()
            node.start()
        got: list[int] = []
        for _ in range(2):
            async with to(node) as client:
                await client.register_own("alice", confirms=True)
                got += [int(payload) for _, payload in await client.take(20)]
            node.kill()
            node.start()
        async with to(node) as client:
            await client.register_own("alice", confirms=True)
            while got[-1] != stored[-1]:
                got += [int(payload) for _, payload in await client.take(1)]
    assert list(dict.fromkeys(got)) == stored
    # What comes twice comes after a kill, and then all that follows it comes, too.
    assert all(after == before + 1 or after <= before for before, after in itertools.pairwise(got))


async def test_too_much_that_waits_is_refused_and_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: above the bound, senders are refused, and the oldest messages stay; with room, they may send again."""
    monkeypatch.setattr(storing, "WAITING_MESSAGES_MAX", 5)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        client.stream.socket.close()
        await wait_until(lambda: waits(running)[1])
        for number in range(5):
            assert await sender.forward(ALICE, b"%d" % number)
        assert "too much waits" in await sender.refused(ALICE, b"too much")
        client = await connect(running)
        await client.register_own("alice", confirms=True)
        assert [payload for _, payload in await client.take(5)] == [b"%d" % number for number in range(5)]
        await wait_until(lambda: waits(running)[0] == 0)
        assert await sender.forward(ALICE, b"room")


async def test_the_retention_of_the_stream_bounds_what_waits(tmp_path: Path) -> None:
    """Claim: retention deletes the oldest of what waits, as in every stream, and the client gets the rest."""
    async with forwarding_node(tmp_path, retention_interval_s=0.05) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        client.stream.socket.close()
        await wait_until(lambda: waits(running)[1])
        for number in range(10):
            assert await sender.forward(ALICE, b"%d" % number)
        async with connect_client(running.address) as operator:
            stream = await operator.create(STREAM)
            await stream.set_retention(Retention(messages=3))
            while (await stream.info()).count > 3:
                await trio.sleep(0.01)
        client = await connect(running)
        await client.register_own("alice", confirms=True)
        assert [payload for _, payload in await client.take(3)] == [b"7", b"8", b"9"]


@pytest.mark.parametrize("bound", ["WAITING_MESSAGES_MAX", "WAITING_BYTES_MAX"])
async def test_what_retention_has_deleted_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Claim: while a client is away, deleted messages take nothing of the room for those that wait. The client has gone
    with a page that it has not confirmed."""
    monkeypatch.setattr(storing, bound, {"WAITING_MESSAGES_MAX": 10, "WAITING_BYTES_MAX": 3_000}[bound])
    async with forwarding_node(tmp_path, retention_interval_s=0.05) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        assert await sender.forward(ALICE, bytes(250))
        await client.take(1, confirms=False)
        client.stream.socket.close()
        await wait_until(lambda: waits(running)[1])
        for _ in range(9):
            assert await sender.forward(ALICE, bytes(250))
        async with connect_client(running.address) as operator:
            stream = await operator.create(STREAM)
            await stream.set_retention(Retention(messages=3))
            while (await stream.info()).count > 3:
                await trio.sleep(0.01)
        assert "too much waits" in await sender.refused(ALICE, b"the first one is refused")
        await wait_until(lambda: waits(running)[0] == 3)
        assert await sender.forward(ALICE, b"room")
        client = await connect(running)
        await client.register_own("alice", confirms=True)
        while (await client.take(1))[0][1] != b"room":
            pass


async def test_the_operator_ends_an_address_with_its_stream(tmp_path: Path) -> None:
    """Claim: who deletes the stream ends the address; the next sender is told, and the client may register anew."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        async with connect_client(running.address) as operator:
            await (await operator.create(STREAM)).delete()
        assert "stores nothing any more" in await sender.refused(ALICE, b"?")
        assert "nobody is connected" in await sender.refused(ALICE, b"?")
        await client.register_own("alice", confirms=True)
        assert await sender.forward(ALICE, b"anew")
        assert await client.take(1) == [(0, b"anew")]


async def test_an_address_for_which_too_much_waits_ends_with_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "WAITING_MESSAGES_MAX", 1)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        client.stream.socket.close()
        await wait_until(lambda: waits(running)[1])
        assert await sender.forward(ALICE, b"0")
        assert "too much waits" in await sender.refused(ALICE, b"1")
        async with connect_client(running.address) as operator:
            await (await operator.create(STREAM)).delete()
        assert "stores nothing any more" in await sender.refused(ALICE, b"2")
        assert "nobody is connected" in await sender.refused(ALICE, b"3")


async def test_what_a_full_disk_refused_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: messages that could not be stored take nothing of the room for those that wait."""
    monkeypatch.setattr(storing, "WAITING_BYTES_MAX", 1_000)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        parts_of(running).services.leave_room(0)
        assert "too much waits" not in await sender.refused(ALICE, bytes(2_000))
        parts_of(running).services.leave_room(math.inf)
        assert await sender.forward(ALICE, b"room")


async def test_what_a_client_has_confirmed_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: a confirmed message takes nothing of the room, also if its page is never confirmed to the end, because the
    client always registers anew before that. Method: two messages wait at a time, of the three for which there is
    room."""
    monkeypatch.setattr(storing, "WAITING_BYTES_MAX", 1_000)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        assert await sender.forward(ALICE, bytes(300))
        for number in range(5):
            assert await sender.forward(ALICE, bytes(300))
            client = await connect(running)
            await client.register_own("alice", confirms=True)
            assert await client.take(1) == [(number, bytes(300))]
            await wait_until(lambda: waits(running)[0] == 1)


async def test_a_repeated_confirm_confirms_nothing_more(tmp_path: Path) -> None:
    """Claim: a second confirm of a message, while the next ones are read, has none of these come twice."""
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        assert await sender.forward(ALICE, b"0")
        assert await client.take(1, confirms=False) == [(0, b"0")]
        assert await sender.forward(ALICE, b"1")
        await client.stream.send_all(client.frame(ALICE, DELIVERY.encode_response(Taken(0))) * 2)
        assert await client.take(1) == [(1, b"1")]
        assert await sender.forward(ALICE, b"2")
        assert await client.take(1) == [(2, b"2")]
        await wait_until(lambda: waits(running)[0] == 0)


async def test_a_deletion_that_failed_delivers_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: when the stream fails to delete what the client has, that is done again, beside the page under way."""
    monkeypatch.setattr(storing, "RETRY_S", 0)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        assert await sender.forward(ALICE, b"0")
        assert await client.take(1, confirms=False) == [(0, b"0")]
        [forwarder] = workers_of(running, StoringForwarder)
        fail(running, forwarder._link, "cut")
        assert await sender.forward(ALICE, b"1")
        await client.send(ALICE, DELIVERY.encode_response(Taken(0)))
        assert await client.take(1) == [(1, b"1")]


async def test_each_page_is_read_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: of two retries that wait at the same time, the second one leaves the page alone that the first one asked
    for."""
    monkeypatch.setattr(storing, "RETRY_S", 0)
    async with forwarding_node(tmp_path) as running:
        client, sender = await connect(running), await connect(running)
        await client.register_own("alice", confirms=True)
        assert await sender.forward(ALICE, b"0")
        assert await client.take(1, confirms=False) == [(0, b"0")]
        [forwarder] = workers_of(running, StoringForwarder)
        with parts_of(running).node.batch():
            fail(running, forwarder._link, "pull")
            fail(running, forwarder._link, "pull")
        assert await client.take(1) == [(0, b"0")]
        assert await sender.forward(ALICE, b"1")
        assert await client.take(1) == [(1, b"1")]


async def test_a_connection_that_lost_its_address_is_not_watched(tmp_path: Path) -> None:
    """Claim: when a client registers anew over another connection, nothing is left at the one that takes no bytes."""
    async with forwarding_node(tmp_path) as running:
        stuck, sender = await connect(running), await connect(running)
        stuck.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await stuck.register_own("alice")
        for _ in range(12):
            assert await sender.forward(ALICE, bytes(1_000_000))
        await wait_until(lambda: watchers_of(running) == [0, 1])
        again = await connect(running)
        await again.register_own("alice", confirms=True)
        assert watchers_of(running) == [0, 0, 0]


def waits(running: Served) -> tuple[int, int]:
    """The number of messages that wait, and that of addresses whose client is away."""
    found = running.statistics().services.forwarding
    assert found is not None
    return found.waiting, found.away


async def test_a_stream_that_somebody_has_made_earlier_takes_no_address_of_a_service(tmp_path: Path) -> None:
    """Claim: a node on which the service is switched on starts, whatever names clients gave to streams before. Method:
    a node without the service, where a client makes a stream with the address of a service in its name."""
    async with served(tmp_path / "data") as running, connect_client(running.address) as client:
        await client.create("forward/stream_index/anonymous")
    async with forwarding_node(tmp_path) as running, connect_client(running.address) as client:
        found = parts_of(running).services.statistics().forwarding
        assert found is not None
        assert found.addresses == 0
        assert [each.stream_name async for each in client.list_streams()] == ["forward/stream_index/anonymous"]
