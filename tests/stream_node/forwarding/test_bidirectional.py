"""Ockam's bidirectional streams, served by the node.

Goal: two parties that know only routes talk over streams, as upstream's example `bi_directional/remote.ex` has it (ping
and pong), and a party with a client of this project understands them. Method: sockets that send the bytes of
facts/ockam.md §4 and §6.3, written by hand, and a `correspondent`."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors import mailbox
from ockam.actors.address import Route, local
from ockam.identity.channel.trust_list import save_trusted
from ockam.identity.rules.rights import ALL_RIGHTS
from ockam.transport.connection import Connection
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import SavedIndexes, Stream
from stream_client import connect as connect_client
from stream_client.correspondent import RoutedMessage, encode_routed
from stream_node.forwarding import bidirectional, storing
from stream_node.forwarding.bidirectional import PARTY_WORKERS_MAX, PublisherProxy, StreamSubscription
from stream_node.forwarding.storing import STORED
from stream_node.node.identity.channel_services import trust_file
from stream_node.node.process import NodeProcess
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.ockam.identity.rules.ways import Channel, ChannelPeer
from tests.stream_node.forwarding.forwarding_peers import (
    ForwardedPeer,
    connect,
    fail,
    forwarding_node,
    parts_of,
    watchers_of,
    workers_of,
)
from tests.stream_node.forwarding.test_stored import ALICE, to
from tests.support.served import wait_until

SUBSCRIBE_SERVICE: Route = (local("stream_subscribe"),)
PUSHER = "tests.stream_node.hosting.sample_workers:Pusher@pusher"
"""An own worker that pushes each message to the stream `orders`, one after the other."""


def text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def subscription(stream: bytes, subscription_id: bytes) -> bytes:
    return text(b"stream_bidirectional") + text(text(stream) + text(subscription_id))


def publisher(stream: bytes, answers: bytes, subscription_id: bytes) -> bytes:
    body = text(stream) + text(answers) + text(subscription_id)
    return text(b"stream_bidirectional_publisher") + text(body)


async def publisher_route(peer: ForwardedPeer, stream: bytes, answers: bytes) -> Route:
    answer = await peer.ask(SUBSCRIBE_SERVICE, publisher(stream, answers, b"foo"))
    assert answer.payload == b"irrelevant"
    assert str(answer.return_route[0]).startswith("STB_PP_")
    return answer.return_route


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=["head", "legacy"])
async def test_the_conversation_of_the_elixir_example(tmp_path: Path, wire: Wire) -> None:
    """Claim: ping sends through a publisher to pong's forwarding address; pong answers along the return route, over the
    other stream; each subscription is asked for without a return route, and not answered."""
    async with forwarding_node(tmp_path) as running:
        pong, ping = await connect(running, wire), await connect(running, HEAD)
        alias = (await pong.register()).return_route
        for peer, stream in ((pong, b"pong_topic"), (ping, b"ping_topic")):
            await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(stream, b"foo"), ()))
        # As the Elixir client does it: another connection for each message that begins with a TCP address.
        sending = await connect(running, HEAD)
        route = await publisher_route(sending, b"pong_topic", b"ping_topic")
        await sending.send((*route, *alias), b"0")
        for number in range(3):
            at_pong = await pong.receive()
            assert (at_pong.payload, at_pong.onward_route) == (b"%d" % (2 * number), (local("me"),))
            await pong.send(at_pong.return_route, b"%d" % (2 * number + 1))
            at_ping = await sending.receive()
            assert (at_ping.payload, at_ping.onward_route) == (b"%d" % (2 * number + 1), (local("me"),))
            await sending.send(at_ping.return_route, b"%d" % (2 * number + 2))


async def test_a_correspondent_and_a_peer_that_knows_only_routes(tmp_path: Path) -> None:
    """Claim: what a publisher address stores, a program reads with `correspondent`, and its answer comes back."""
    async with forwarding_node(tmp_path) as running, connect_client(running.address) as client:
        peer = await connect(running)
        await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(b"answers", b"peer"), ()))
        await peer.send((*await publisher_route(peer, b"questions", b"answers"), local("shouter")), b"hello")
        me = await client.correspondent("questions")
        async with me.inbox.consumer(SavedIndexes(client, "shouter")) as consumer:
            async for routed in me.routed(consumer.messages()):
                assert (routed.onward_route, routed.payload) == ((local("shouter"),), b"hello")
                await me.reply(routed, b"HELLO")
                break
        assert (await peer.receive()).payload == b"HELLO"


@pytest.mark.slow
async def test_a_subscription_goes_on_at_its_saved_index_also_after_a_kill(tmp_path: Path) -> None:
    """Claim: a subscription ends with its connection; the next one of the same id misses nothing, and repeats nothing
    that was saved. Method: messages to an address that stores them, which shows what came."""
    with NodeProcess(tmp_path / "data", environment={"STREAM_NODE_FORWARDING": "true"}) as node:
        for part in range(2):
            async with to(node) as alice, to(node) as writer:
                await alice.register_own("alice", confirms=True)
                await writer.send(SUBSCRIBE_SERVICE, subscription(b"talk", b"app"))
                route = await publisher_route(writer, b"talk", b"")
                for number in range(5):
                    await writer.send((*route, *ALICE), b"%d" % (part * 5 + number))
                got = {payload for _, payload in await alice.take(5)}
                assert got == {b"%d" % (part * 5 + number) for number in range(5)}
                await trio.sleep(0.5)
            node.kill()
            node.start()


async def test_a_deleted_stream_is_made_anew(tmp_path: Path) -> None:
    """Claim: a sender whose message met a deleted stream is told, and the next message is stored."""
    async with forwarding_node(tmp_path) as running, connect_client(running.address) as client:
        peer = await connect(running)
        route = await publisher_route(peer, b"talk", b"")
        await peer.send(route, b"0")
        stream = await client.create("talk")
        await wait_until_count(stream, 1)
        await stream.delete()
        assert "the stream was deleted" in await peer.refused(route, b"1")
        await wait_until(lambda: running.statistics().services.streams == 1)
        await peer.send(route, b"2")
        await wait_until_count(await client.create("talk"), 1)


async def test_a_publisher_of_a_stream_that_cannot_be_says_why(tmp_path: Path) -> None:
    async with forwarding_node(tmp_path) as running:
        peer = await connect(running)
        route = await publisher_route(peer, b"", b"")
        assert "a stream name is not empty" in await peer.refused(route, b"lost")


async def test_a_publisher_stays_while_a_client_that_asked_for_it_is_connected(tmp_path: Path) -> None:
    """Claim: a client that has come back on another connection keeps the address that it is told there, after the end
    of the first one; with the last connection, the address ends."""
    async with forwarding_node(tmp_path) as running, connect_client(running.address) as client:
        first, second = await connect(running), await connect(running)
        route = await publisher_route(first, b"talk", b"answers")
        assert await publisher_route(second, b"talk", b"answers") == route
        first.stream.socket.close()
        await running.wait_closed_because("closed_by_peer")
        await second.send(route, b"1")
        await wait_until_count(await client.create("talk"), 1)
        second.stream.socket.close()
        await wait_until(lambda: not workers_of(running, PublisherProxy))


async def test_what_ends_before_its_connection_leaves_nothing_there(tmp_path: Path) -> None:
    """Claim: a connection is watched for the subscriptions and publishers that are there, also after many others."""
    async with forwarding_node(tmp_path) as running:
        peer = await connect(running)
        for _ in range(20):
            await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(b"topic", b"foo"), ()))
        for number in range(PARTY_WORKERS_MAX + 20):
            await publisher_route(peer, b"topic", b"answers%d" % number)
        assert len(workers_of(running, PublisherProxy)) == PARTY_WORKERS_MAX
        assert watchers_of(running) == [1 + PARTY_WORKERS_MAX]


async def test_a_subscription_ends_with_the_channel_that_has_asked_for_it(tmp_path: Path) -> None:
    """Claim: nothing is sent by the rights of an identity that is not trusted any more, though its connection stays.
    Method: a message before the end of the trust, which arrives, and one after it."""
    channel, file = Channel(tmp_path), trust_file(str(tmp_path / "data"))
    save_trusted(file, {channel.own.identifier: "for a while"})
    async with guarded(tmp_path, may(ALL_RIGHTS, who="*"), forwarding=True) as node:
        running, channels = node.running, parts_of(node.running).channels
        assert channels is not None
        pong, writer = await connect(running), await connect(running)
        await pong.register()
        peer = await channel.peer(node, HEAD)
        await peer.send(SUBSCRIBE_SERVICE, subscription(b"talk", b"foo"))
        route = await publisher_route(writer, b"talk", b"")
        await writer.send((*route, *pong.address), b"0")
        assert (await pong.receive()).payload == b"0"
        save_trusted(file, {})
        await wait_until(lambda: not channels.statistics().open)
        await writer.send((*route, *pong.address), b"1")
        await wait_until(lambda: not workers_of(running, StreamSubscription))
        assert not running.statistics().tcp.closed
        await writer.send(pong.address, b"2")
        assert (await pong.receive()).payload == b"2"


async def test_an_index_that_cannot_be_saved_begins_no_second_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: after a save that failed, a subscription sends each further message on once."""
    monkeypatch.setattr(bidirectional, "RETRY_S", 0)
    async with forwarding_node(tmp_path) as running:
        alice, writer = await connect(running), await connect(running)
        await alice.register_own("alice", confirms=True)
        await writer.stream.send_all(writer.frame(SUBSCRIBE_SERVICE, subscription(b"talk", b"app"), ()))
        route = await publisher_route(writer, b"talk", b"")
        for number in range(4):
            await writer.send((*route, *ALICE), b"%d" % number)
            assert [payload for _, payload in await alice.take(1)] == [b"%d" % number]
            if not number:
                [reading] = workers_of(running, StreamSubscription)
                fail(running, reading._link, "save")


async def test_a_subscription_waits_for_a_worker_whose_mailbox_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a worker that is slower than the reading of the stream gets each message, in order."""
    monkeypatch.setattr(mailbox, "MESSAGES_MAX", 20)
    monkeypatch.setattr(bidirectional, "ROOM_WAIT_S", 0.01)
    async with forwarding_node(tmp_path, worker=(PUSHER,)) as running, connect_client(running.address) as client:
        peer = await connect(running)
        route = await publisher_route(peer, b"talk", b"")
        for number in range(150):
            await peer.send((*route, local("pusher")), b"%d" % number)
        await wait_until_count(await client.create("talk"), 150)
        await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(b"talk", b"app"), ()))
        orders = await client.create("orders")
        await wait_until_count(orders, 150)
        assert [message.data for message in await orders.pull(0, 200)] == [b"%d" % number for number in range(150)]
        assert not {"subscription_refused", "mailbox_full"} & running.statistics().node.dropped.keys()


async def test_a_subscription_waits_for_a_worker_that_is_not_there(tmp_path: Path) -> None:
    """Claim: what an own worker was not sent, since it was given up or the node was stopping, it gets after the next
    start. Method: the address of the worker is freed before the first message, as at both of these ends."""
    for part in range(2):
        async with forwarding_node(tmp_path, worker=(PUSHER,)) as running, connect_client(running.address) as client:
            if not part:
                parts_of(running).node.unregister(local("pusher"))
            peer = await connect(running)
            await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(b"talk", b"app"), ()))
            route = await publisher_route(peer, b"talk", b"")
            if not part:
                for number in range(5):
                    await peer.send((*route, local("pusher")), b"%d" % number)
                await wait_until_count(await client.create("talk"), 5)
                await wait_until(lambda: workers_of(running, StreamSubscription)[0]._waiting is not None)
            else:
                await wait_until_count(await client.create("orders"), 5)
            assert "subscription_refused" not in running.statistics().node.dropped


async def test_a_subscription_waits_for_a_client_that_reads_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a client whose address stores nothing gets every message, also if it begins to read when all are written.
    Method: more bytes than the sockets and the node hold for it together."""
    monkeypatch.setattr(bidirectional, "ROOM_WAIT_S", 0.01)
    async with forwarding_node(tmp_path) as running, connect_client(running.address) as client:
        alice, writer = await connect(running), await connect(running)
        await alice.register_own("alice", stores=False)
        await writer.stream.send_all(writer.frame(SUBSCRIBE_SERVICE, subscription(b"talk", b"app"), ()))
        route = await publisher_route(writer, b"talk", b"")
        for number in range(150):
            await writer.send((*route, *ALICE), b"%3d" % number + bytes(200_000))
        await wait_until_count(await client.create("talk"), 150)
        await wait_until(lambda: any(each.backlog_bytes > 4 << 20 for each in workers_of(running, Connection)))
        for number in range(150):
            assert (await alice.receive()).payload.startswith(b"%3d" % number)
        assert "not_forwarded" not in running.statistics().node.dropped


async def test_a_subscription_waits_for_an_address_for_which_too_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: what an address has no room for, it gets from a stream later, in order. Method: a client that is away; two
    of its messages are deleted, as retention does it, and then it comes."""
    monkeypatch.setattr(bidirectional, "ROOM_WAIT_S", 0.01)
    monkeypatch.setattr(storing, "WAITING_MESSAGES_MAX", 5)
    async with forwarding_node(tmp_path) as running, connect_client(running.address) as client:
        alice, writer = await connect(running), await connect(running)
        await alice.register_own("alice", confirms=True)
        alice.stream.socket.close()
        await running.wait_closed_because("closed_by_peer")
        await writer.stream.send_all(writer.frame(SUBSCRIBE_SERVICE, subscription(b"talk", b"app"), ()))
        route = await publisher_route(writer, b"talk", b"")
        (waiting,) = (await client.get_stream("forward/forward_to_alice/anonymous")).partitions
        for number in range(12):
            await writer.send((*route, *ALICE), b"%d" % number)
            # One after the other: all together would be one page, which is stored as a whole.
            await wait_until_count(waiting, min(number + 1, 5))
        await wait_until_count(await client.create("talk"), 12)
        await trio.sleep(0.1)
        assert parts_of(running).node.counted(STORED) == 5
        await waiting.truncate(2)
        await wait_until(lambda: parts_of(running).node.counted(STORED) == 12)
        alice = await connect(running)
        await alice.register_own("alice", confirms=True)
        assert [payload for _, payload in await alice.take(10)] == [b"%d" % number for number in range(2, 12)]
        assert "not_forwarded" not in running.statistics().node.dropped


@pytest.mark.parametrize("receivers", ["two workers", "one address"])
async def test_a_circle_over_two_streams_ends(tmp_path: Path, receivers: str) -> None:
    """Claim: receivers that answer everything get one message and one answer, whoever wrote the first message.
    Method: two subscriptions; a message that names each stream for the answers in the other one."""
    workers = tuple(f"tests.stream_node.hosting.sample_workers:Echo@{name}" for name in ("one", "other"))
    async with forwarding_node(tmp_path, worker=workers) as running, connect_client(running.address) as client:
        peer = await connect(running)
        one_address = receivers == "one address"
        if one_address:
            await peer.register_own("alice", stores=False)
        to, back = (ALICE, ALICE) if one_address else ((local("one"),), (local("other"),))
        for stream in (b"one", b"other"):
            await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(stream, b"app"), ()))
        one, other = await client.create("one"), await client.create("other")
        await one.push(encode_routed(RoutedMessage(to, back, b"x", "other")))
        if one_address:
            for _ in range(2):
                message = await peer.receive()
                if message.return_route:
                    await peer.send(message.return_route, message.payload)
        await wait_until_count(other, 1)
        await trio.sleep(0.2)
        assert ((await one.info()).count, (await other.info()).count) == (1, 1)


async def test_a_program_that_reads_the_stream_for_answers_converses_with_a_worker(tmp_path: Path) -> None:
    """Claim: a message without a return route, or from a secure channel, leads into no circle, so each answer names the
    stream for the next message, also while a subscription sends the stream for answers on."""
    worker = ("tests.stream_node.hosting.sample_workers:Echo@one",)
    channel = Channel(tmp_path)
    async with (
        forwarding_node(tmp_path, worker=worker, **channel.settings) as running,
        connect_client(running.address) as client,
    ):
        peer = ChannelPeer((await running.peer(HEAD)).stream, HEAD)
        await peer.shake_hands(channel.machine(channel.own))
        for stream in (b"questions", b"answers"):
            await peer.stream.send_all(peer.frame(SUBSCRIBE_SERVICE, subscription(stream, b"app"), ()))
        me = await client.correspondent("answers")
        await peer.send(SUBSCRIBE_SERVICE, publisher(b"questions", b"answers", b"foo"))
        await peer.send((*(await peer.receive()).return_route, local("one")), b"0")
        async with me.inbox.consumer(SavedIndexes(client, "program")) as consumer:
            async for routed in me.routed(consumer.messages()):
                assert routed.return_stream == "questions"
                if routed.payload == b"2":
                    break
                await me.reply(routed, b"%d" % (int(routed.payload) + 1))


async def wait_until_count(stream: Stream, count: int) -> None:
    with trio.fail_after(30):
        while (await stream.info()).count != count:
            await trio.sleep(0.01)
