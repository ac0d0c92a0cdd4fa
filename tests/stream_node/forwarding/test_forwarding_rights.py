"""Who may have a forwarding address, and who may send there, on a node with rules.

Method: clients with tokens, whose identities the rules name. Each refusal stands beside the same request of somebody
who may."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors import mailbox
from ockam.actors.address import Route, local
from ockam.actors.forwarding_protocol import REGISTER, RegisterRequest
from ockam.identity.authentication import AUTHENTICATE, AuthenticateRequest
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.rules import Rule
from ockam.identity.rules.tokens import create_token
from ockam.protocol import ERROR, error_payload
from stream_client.correspondent import RoutedMessage, encode_routed
from stream_node.forwarding.bidirectional import SUBSCRIBE, SubscribeRequest
from stream_service.extensions import DELETE, INFO, DeleteRequest, InfoRequest
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest, Status
from tests.ockam.identity.rules.guarded_node import Guarded, guarded, may
from tests.stream_node.forwarding.forwarding_peers import SERVICE, ForwardedPeer, connect, parts_of
from tests.stream_node.forwarding.test_bidirectional import publisher_route
from tests.support.served import wait_until

ALICE: Route = (local("forward_to_alice"),)
RULES = (
    may(Right.REGISTER, "forward_to_", who="token:*", name="names"),
    may(Right.ROUTE, "forward_to_", who="token:bob", name="bob writes"),
)


class Tokens:
    """A node, and its clients by the name of their token."""

    def __init__(self, node: Guarded, texts: dict[str, str]) -> None:
        self.node = node
        self._texts = texts

    async def client(self, name: str) -> ForwardedPeer:
        peer = await connect(self.node.running)
        await peer.ask(
            (local("node_authenticate"),), AUTHENTICATE.encode_request(AuthenticateRequest(1, self._texts[name]))
        )
        return peer


@asynccontextmanager
async def tokens(folder: Path, *rules: Rule, **settings: Any) -> AsyncIterator[Tokens]:
    file = folder / "data" / "tokens.json"
    texts = {name: create_token(file, name, int(time.time()), replace=True)[0] for name in ("alice", "bob", "mallory")}
    async with guarded(folder, *rules, forwarding=True, **settings) as node:
        yield Tokens(node, texts)


async def test_a_name_is_not_an_identity(tmp_path: Path) -> None:
    """Claim: an address that somebody has registered cannot be taken by another identity with the same rights, neither
    while its client is connected or away, nor after a restart of the node; nor can its stream be made or written, nor
    its messages be confirmed, by others."""
    async with tokens(tmp_path, *RULES, may(ALL_RIGHTS & ~Right.ROUTE, who="token:mallory", name="more")) as on:
        alice, mallory, bob = [await on.client(name) for name in ("alice", "mallory", "bob")]
        # An early claim: a stream as the service would make it.
        early = CREATE.encode_request(CreateStream("forward/forward_to_alice/token:mallory"))
        assert "forwarding service alone" in await mallory.refused((local("stream_service"),), early)
        await alice.register_own("alice", confirms=True)
        taking = "belongs to another identity"
        assert taking in await refusal_to_register(mallory)
        alice.stream.socket.close()
        await wait_until(lambda: on.node.running.statistics().tcp.closed)
        assert taking in await refusal_to_register(mallory)
        assert await bob.forward(ALICE, b"for alice")
        stream = (stream_address("forward/forward_to_alice/token:alice", 0),)
        answer = await mallory.ask(stream, PUSH.encode_request(PushRequest(1, b"forged")))
        assert PUSH.decode_response(answer.payload).status is Status.ERROR
        assert "access denied: route" in await mallory.refused(ALICE, b"\x17node/forward_delivery/1\x01\x00")
    async with tokens(tmp_path, *RULES) as on:
        mallory, alice = await on.client("mallory"), await on.client("alice")
        assert taking in await refusal_to_register(mallory)
        await alice.register_own("alice", confirms=True)
        assert [payload for _, payload in await alice.take(1)] == [b"for alice"]


async def test_each_right_is_needed(tmp_path: Path) -> None:
    """Claim: who may register may not send, and the other way round; the client itself answers without a right, and the
    sender goes on; the connections of both cannot be reached in any other way."""
    async with tokens(tmp_path, *RULES) as on:
        alice, mallory, bob = [await on.client(name) for name in ("alice", "mallory", "bob")]
        await alice.register_own("alice", stores=False)
        assert "access denied: route on 'forward_to_alice' for token:mallory" in await mallory.refused(ALICE, b"spam")
        assert "access denied: route on 'forward_to_bob'" in await mallory.refused((local("forward_to_bob"),), b"spam")
        await bob.send(ALICE, b"hello")
        hello = await alice.receive()
        await alice.send(hello.return_route, b"hello bob")
        answer = await bob.receive()
        assert answer.payload == b"hello bob"
        await bob.send(answer.return_route, b"and on")
        assert (await alice.receive()).payload == b"and on"
        # What the routes have shown of the connections helps nobody: neither directly, nor through the address.
        await mallory.send(hello.return_route[1:], b"spam")
        assert "access denied: route" in await mallory.refused((*ALICE, *hello.return_route[1:]), b"spam")
        assert "access denied: register on 'FWD_'" in await mallory.refused(SERVICE, b"register")
        await bob.send(ALICE, b"last")
        assert (await alice.receive()).payload == b"last"
        await alice.send(hello.return_route, b"to bob")
        assert (await bob.receive()).payload == b"to bob"


async def test_a_subscription_acts_by_the_rights_of_its_client(tmp_path: Path) -> None:
    """Claim: who subscribes needs `read` and `index`, and what the stream's messages name is reached only by the right
    `route` of the subscriber, and never a stream or a service, whatever rights the subscriber has on it."""
    reads = may(Right.READ | Right.WRITE | Right.CREATE, "talk", who="token:*", name="talk")
    index = may(Right.INDEX, "app", who="token:bob", name="index")
    async with tokens(tmp_path, *RULES, reads, index) as on:
        alice, mallory, bob = [await on.client(name) for name in ("alice", "mallory", "bob")]
        await alice.register_own("alice", stores=False)
        service, request = (local("stream_bidirectional"),), SUBSCRIBE.encode_request(SubscribeRequest("talk", "app"))
        assert "access denied: index on 'app'" in await mallory.refused(service, request)
        stream = (
            await mallory.ask((local("stream_service"),), CREATE.encode_request(CreateStream("talk")))
        ).return_route
        deputy = PUSH.encode_request(PushRequest(1, b"by the rights of bob"))
        for routed in (
            RoutedMessage((stream_address("talk", 0),), (), deputy, ""),
            RoutedMessage(ALICE, (), b"for alice", ""),
        ):
            await mallory.ask(stream, PUSH.encode_request(PushRequest(1, encode_routed(routed))))
        await bob.send(service, request)
        # Mallory has no right to write to alice, but bob, who has subscribed, has.
        assert (await alice.receive()).payload == b"for alice"
        assert on.node.running.statistics().node.dropped["subscription_refused"] == 1


async def test_who_writes_a_stream_gets_no_rights_of_the_worker_that_answers(tmp_path: Path) -> None:
    """Claim: an own worker that gets messages from a subscription answers into no stream but one for answers that the
    subscriber may write, whatever rights the worker has. Method: messages that name another stream as the return route
    or for answers, or the worker itself, and then one that is answered."""
    rules = (
        may(ALL_RIGHTS, who="token:bob", name="operator"),
        may(Right.WRITE, who="worker:echo", name="echo"),
        may(Right.READ | Right.WRITE | Right.CREATE, "talk", who="token:mallory", name="talk"),
        may(Right.WRITE | Right.CREATE, "answers", who="token:mallory", name="answers"),
        may(Right.INDEX, "app", who="token:mallory", name="index"),
        may(Right.ROUTE, "echo", who="token:mallory", name="route"),
    )
    async with tokens(tmp_path, *rules, worker=("tests.stream_node.hosting.sample_workers:Echo@echo",)) as on:
        operator, mallory = await on.client("bob"), await on.client("mallory")
        for name in ("orders", "answers"):
            await operator.ask((local("stream_service"),), CREATE.encode_request(CreateStream(name)))
        talk = (await mallory.ask((local("stream_service"),), CREATE.encode_request(CreateStream("talk")))).return_route
        echo, orders = (local("echo"),), (stream_address("orders", 0),)
        forged = PUSH.encode_request(PushRequest(1, b"by the rights of echo"))
        for routed in (
            RoutedMessage(echo, orders, forged, ""),
            RoutedMessage(echo, (), b"by the rights of echo", "orders"),
            RoutedMessage(echo, echo, b"in a circle", ""),
            RoutedMessage(echo, echo, b"in a circle through the stream", "talk"),
            RoutedMessage(echo, (local("me"),), b"answered", "answers"),
        ):
            await mallory.ask(talk, PUSH.encode_request(PushRequest(1, encode_routed(routed))))
        request = SUBSCRIBE.encode_request(SubscribeRequest("talk", "app"))
        await mallory.send((local("stream_bidirectional"),), request)
        await wait_stored(operator, "answers", 1)
        assert (await stored_in(operator, "orders"), await stored_in(operator, "talk")) == (0, 5)
        node = parts_of(on.node.running).node
        routed_before = node.statistics().routed
        await trio.sleep(0.1)
        assert node.statistics().routed < routed_before + 100
        assert not on.node.refused()


async def test_a_full_worker_that_the_subscriber_may_not_reach_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a subscription waits for room only where its client may send; the message behind comes at once."""
    monkeypatch.setattr(mailbox, "MESSAGES_MAX", 2)
    rules = (
        may(Right.READ | Right.WRITE | Right.CREATE, "talk", who="token:*", name="talk"),
        may(Right.INDEX, "app", who="token:bob", name="index"),
        may(Right.ROUTE, "deaf", who="token:mallory", name="route"),
    )
    worker = "tests.stream_node.hosting.sample_workers:Deaf@deaf"
    async with tokens(tmp_path, *RULES, *rules, worker=(worker,)) as on:
        alice, mallory, bob = [await on.client(name) for name in ("alice", "mallory", "bob")]
        await alice.register_own("alice", stores=False)
        deaf = parts_of(on.node.running).node.find_mailbox(local("deaf"))
        assert deaf is not None
        filling = await on.client("mallory")
        with trio.fail_after(30):
            while not deaf.at_limit:
                await filling.send((local("deaf"),), b"it stays in the mailbox")
                await trio.sleep(0.005)
        talk = (await mallory.ask((local("stream_service"),), CREATE.encode_request(CreateStream("talk")))).return_route
        for route in ((local("deaf"),), ALICE):
            routed = RoutedMessage(route, (), b"the second one", "")
            await mallory.ask(talk, PUSH.encode_request(PushRequest(1, encode_routed(routed))))
        await bob.send((local("stream_bidirectional"),), SUBSCRIBE.encode_request(SubscribeRequest("talk", "app")))
        assert (await alice.receive()).payload == b"the second one"
        assert on.node.running.statistics().node.dropped["subscription_refused"] == 1


async def test_an_absent_worker_that_the_subscriber_may_not_reach_stops_nothing(tmp_path: Path) -> None:
    """Claim: a subscription waits for an own worker that is not there only where its client may send."""
    rules = (
        may(Right.READ | Right.WRITE | Right.CREATE, "talk", who="token:*", name="talk"),
        may(Right.INDEX, "app", who="token:bob", name="index"),
    )
    worker = "tests.stream_node.hosting.sample_workers:Echo@echo"
    async with tokens(tmp_path, *RULES, *rules, worker=(worker,)) as on:
        alice, mallory, bob = [await on.client(name) for name in ("alice", "mallory", "bob")]
        await alice.register_own("alice", stores=False)
        parts_of(on.node.running).node.unregister(local("echo"))
        talk = (await mallory.ask((local("stream_service"),), CREATE.encode_request(CreateStream("talk")))).return_route
        for route in ((local("echo"),), ALICE):
            routed = RoutedMessage(route, (), b"the second one", "")
            await mallory.ask(talk, PUSH.encode_request(PushRequest(1, encode_routed(routed))))
        await bob.send((local("stream_bidirectional"),), SUBSCRIBE.encode_request(SubscribeRequest("talk", "app")))
        assert (await alice.receive()).payload == b"the second one"


async def refusal_to_register(peer: ForwardedPeer) -> str:
    request = REGISTER.encode_request(RegisterRequest(1, "alice", stores=True, confirms=True))
    return ERROR.decode_response((await peer.ask(SERVICE, request)).payload).reason


async def test_a_publisher_whose_stream_cannot_be_made_tries_it_once(tmp_path: Path) -> None:
    """Claim: each message to it is refused, and none begins one more row of attempts. Method: a deleted stream, which
    the publisher's client may write and not make."""
    writes = may(Right.READ | Right.WRITE, "topic", who="token:alice", name="writes")
    async with tokens(tmp_path, writes, may(ALL_RIGHTS, who="token:mallory", name="all")) as on:
        operator, alice = await on.client("mallory"), await on.client("alice")
        await operator.ask((local("stream_service"),), CREATE.encode_request(CreateStream("topic")))
        route = await publisher_route(alice, b"topic", b"")
        await operator.ask((stream_address("topic", 0),), DELETE.encode_request(DeleteRequest(1)))
        timers = parts_of(on.node.running).node._timers
        before = len(timers)
        assert "the stream was deleted" in await alice.refused(route, b"lost")
        for _ in range(20):
            assert "access denied: create on 'topic'" in await alice.refused(route, b"lost")
        await wait_until(lambda: len(timers) > before)
        assert len(timers) < before + 5


async def test_a_publisher_whose_stream_never_was_refuses_and_does_not_wait(tmp_path: Path) -> None:
    """Claim: without the right to make its stream, each message to a publisher is answered with the reason, and an
    `error` is not answered. When somebody else has made the stream, messages are stored."""
    writes = may(Right.READ | Right.WRITE, "topic", who="token:alice", name="writes")
    async with tokens(tmp_path, writes, may(ALL_RIGHTS, who="token:mallory", name="all")) as on:
        operator, alice = await on.client("mallory"), await on.client("alice")
        route = await publisher_route(alice, b"topic", b"")
        for _ in range(3):
            assert "access denied: create on 'topic'" in await alice.refused(route, b"lost")
        await alice.send(route, error_payload("an answer to this would come before the next one"))
        assert await publisher_route(alice, b"topic", b"") == route
        await operator.ask((local("stream_service"),), CREATE.encode_request(CreateStream("topic")))
        await alice.send(route, b"kept")
        await wait_stored(operator, "topic", 1)


async def stored_in(peer: ForwardedPeer, stream: str) -> int:
    answer = await peer.ask((stream_address(stream, 0),), INFO.encode_request(InfoRequest(1)))
    return INFO.decode_response(answer.payload).info.next_index


async def wait_stored(peer: ForwardedPeer, stream: str, count: int) -> None:
    with trio.fail_after(30):
        while await stored_in(peer, stream) != count:
            await trio.sleep(0.01)
