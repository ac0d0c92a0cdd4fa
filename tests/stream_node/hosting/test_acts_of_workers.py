"""Goal: what a worker of the operator does is decided, counted and audited as an act of `worker:ADDRESS`, or of the
sender for whom it acts.

Method: real nodes with rules, real sockets; the audit log, and what is in the streams, show who could do what.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trio

from ockam import local
from ockam.actors.address import tcp
from ockam.identity.channel.trust_list import save_trusted
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.rules import Rule
from ockam.protocol import ERROR
from ockam.transport.wire_head import HEAD
from stream_node.node.identity.channel_services import trust_file
from stream_service.protocol import PUSH, PushRequest
from tests.ockam.identity.rules.guarded_node import Guarded, guarded, may
from tests.ockam.identity.rules.ways import Channel
from tests.support.served import served, wait_until

SAMPLES = "tests.stream_node.hosting.sample_workers"
ORDERS = Right.CREATE | Right.WRITE


def refused(node: Guarded) -> list[tuple[str, str, Any]]:
    return [(each["identity"], each["right"], each.get("name")) for each in node.audit() if each["event"] == "refused"]


async def asked(node: Guarded, address: str, payload: bytes = b"one") -> bytes:
    return (await (await node.running.peer()).ask((local(address),), payload)).payload


async def test_a_worker_has_the_streams_and_the_clock_of_the_node(tmp_path: Path) -> None:
    """Method: the clock of a node follows that of the machine, which the test reads itself."""
    async with served(tmp_path, worker=(f"{SAMPLES}:Pusher@pusher",)) as node:
        peer = await node.peer()
        answer = (await peer.ask((local("pusher"),), b"one")).payload
        index, _, now_us = answer.decode().partition(" at ")
        assert abs(int(now_us) / 1e6 - time.time()) < 60
        page = await peer.pull(await peer.create("orders"), 0, 10)
        assert [(message.index, message.data) for message in page.messages] == [(int(index), b"one")]


async def test_a_worker_may_do_what_the_rules_allow_its_own_identity(tmp_path: Path) -> None:
    """Method: the sender has every right on streams, which does not help; then the worker gets its own."""
    sender = may(ALL_RIGHTS)
    async with guarded(tmp_path, sender, worker=(f"{SAMPLES}:Pusher@pusher",)) as node:
        reason = ERROR.decode_response(await asked(node, "pusher")).reason
        assert "create on 'orders' for worker:pusher: no rule allows it" in reason
        assert refused(node) == [("worker:pusher", "create", "orders")]
        node.allow(sender, may(ORDERS, "orders", who="worker:pusher", name="pusher"))
        assert (await asked(node, "pusher")).startswith(b"0 at ")


async def test_a_worker_acts_for_the_sender_with_the_rights_of_the_sender(tmp_path: Path) -> None:
    """Method: the worker itself may do everything, which must not help a sender that may not write."""
    own = may(ALL_RIGHTS, who="worker:pusher", name="pusher")
    worker = f"{SAMPLES}:Pusher@pusher?as_sender=true"
    async with guarded(tmp_path, own, may(Right.ROUTE | Right.CREATE), worker=(worker,)) as node:
        assert "write on 'orders' for anonymous" in ERROR.decode_response(await asked(node, "pusher")).reason
        assert refused(node) == [("anonymous", "write", "orders")]


async def test_what_a_worker_sends_itself_is_decided_by_the_same_rules(tmp_path: Path) -> None:
    """Method: two workers get a push for a stream: `own` sends it in its own name, and `passing` passes it on. Each is
    refused under the name that it counts for."""
    push = PUSH.encode_request(PushRequest(1, b"x"))
    workers = f"{SAMPLES}:Own@own", f"{SAMPLES}:Passing@passing"
    async with guarded(tmp_path, may(ALL_RIGHTS), worker=workers) as node:
        peer = await node.running.peer()
        route = (await peer.create("orders"))[-1:]
        node.allow(may(Right.ROUTE))
        for worker in ("own", "passing"):
            await (await node.running.peer()).ask((local(worker), *route), push)
        assert refused(node) == [("worker:own", "write", "orders"), ("anonymous", "write", "orders")]


async def test_a_worker_reaches_other_nodes_as_a_client_does(tmp_path: Path) -> None:
    """Method: a second node counts its connections. The destination must be allowed, and a rule must allow it."""
    push = PUSH.encode_request(PushRequest(1, b"x"))
    workers = (f"{SAMPLES}:Own@own",)
    async with served(tmp_path / "far") as far:
        rules = may(ALL_RIGHTS), Rule("own", ("worker:own",), may=ALL_RIGHTS & ~Right.FORWARD)
        async with guarded(tmp_path, *rules, allow_forward=(far.address,), worker=workers) as node:
            peer = await node.running.peer()
            await peer.send((local("own"), tcp(far.address), local("x")), push)
            await wait_until(lambda: refused(node) == [("worker:own", "forward", far.address)])
            assert far.statistics().tcp.accepted == 0
            node.allow(may(ALL_RIGHTS), may(Right.FORWARD, far.address, who="worker:own", name="own"))
            peer = await node.running.peer()
            await peer.send((local("own"), tcp(far.address), local("x")), push)
            await wait_until(lambda: far.statistics().tcp.accepted == 1)


async def test_a_worker_and_its_children_talk_without_a_right(tmp_path: Path) -> None:
    """The child is closed to everybody else, since it says of no message who may send it."""
    async with guarded(tmp_path, may(ALL_RIGHTS), worker=(f"{SAMPLES}:Parent@parent",)) as node:
        assert await asked(node, "parent", b"hello") == b"hello"
        reason = ERROR.decode_response(await asked(node, "child", b"hello")).reason
        assert "this address takes messages of the node itself only" in reason


async def test_a_worker_has_limits_of_its_own(tmp_path: Path) -> None:
    """Method: a worker may create one partition in an hour, and the sender any number."""
    rules = may(ALL_RIGHTS, who="*")
    async with guarded(tmp_path, rules, worker=(f"{SAMPLES}:Pusher@pusher",)) as node:
        file = tmp_path / "access.toml"
        file.write_text(file.read_text() + '\n[limits."worker:pusher"]\nstreams_per_hour = 1\n')
        node.running.server.reload()
        peer = await node.running.peer()
        with trio.fail_after(60):
            assert (await peer.ask((local("pusher"),), b"one")).payload.startswith(b"0 at ")
            await peer.create("others")
            assert len((await peer.pull(await peer.create("orders"), 0, 10)).messages) == 1


async def test_new_identities_bring_a_worker_that_acts_for_them_no_new_limits(tmp_path: Path) -> None:
    """Claim: where anybody may open a channel, what a worker does for an identity counts for the address of its sender.
    Method: one partition in an hour; two identities of one address ask a worker each, which makes a stream."""
    workers = tuple(f"{SAMPLES}:Pusher@{name}?as_sender=true&stream={name}" for name in ("one", "two"))
    settings = {"identity_streams_per_hour": 1, "identity_limits_loopback": True, "secure_channel_trust_anyone": True}
    async with guarded(tmp_path, may(ALL_RIGHTS, who="*"), worker=workers, **settings) as node:
        answers = []
        for name in ("one", "two"):
            peer = await Channel(tmp_path).peer(node, HEAD)
            answers.append((await peer.ask((local(name),), b"x")).payload)
        assert answers[0].startswith(b"0 at ")
        reason = ERROR.decode_response(answers[1]).reason
        assert "identity_streams_per_hour is 1 for anonymous:127.0.0.1" in reason


async def test_a_worker_acts_no_longer_for_an_identity_that_is_not_trusted_any_more(tmp_path: Path) -> None:
    """Method: the client that acts for the identity is left open by the worker, and closed when the trust ends."""
    channel, file = Channel(tmp_path), trust_file(str(tmp_path / "data"))
    save_trusted(file, {channel.own.identifier: "for a while"})
    worker = f"{SAMPLES}:Pusher@pusher?as_sender=true"
    async with guarded(tmp_path, may(ALL_RIGHTS, who="*"), worker=(worker,)) as node:
        peer = await channel.peer(node, HEAD)
        assert (await peer.ask((local("pusher"),), b"one")).payload.startswith(b"0 at ")
        save_trusted(file, {})
        await node.running.wait_closed_because("not_trusted")
