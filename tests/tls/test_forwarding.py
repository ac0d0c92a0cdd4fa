"""Goal: nodes forward and backfill over TLS, and a node never lends its certificate to clients for which it forwards.

Method: two whole servers with mutual TLS, real clients, and what the second node knows about who asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import block_node.client
from block_node.backfill.protocol import BACKFILL, BackfillAsk
from block_node.client import OutgoingBlock
from ockam.actors.address import local, tcp
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.tls import OutgoingTls, Tls
from ockam.transport.wire_head import HEAD
from stream_client import RouteLost, connect
from tests.block_node.backfill.served_blocks import QUICK, chain
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.ockam.tcp_server import serve
from tests.support.served import Served, served, wait_until
from tests.tls.keys import Keys, settings


class Witness(Worker):
    """Notes the identity of each sender, and answers with it."""

    def handle(self, message: Message) -> None:
        self.reply(message, str(message.origin.identity).encode())


class Asker(Worker):
    """Notes the answers that come to this node."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers

    def handle(self, message: Message) -> None:
        self._answers.append(message.payload)


async def test_a_client_reaches_a_second_node_whose_port_demands_tls(keys: Keys, tmp_path: Path) -> None:
    """Both hops are TLS; the second node demands no client certificate, because the first one shows none."""
    second = settings(keys, tls_client_required=False)
    async with served(tmp_path / "b", **second) as far:
        first = settings(keys, tls_forward_ca=keys.ca, allow_forward=(far.address,))
        async with (
            served(tmp_path / "a", **first) as near,
            connect(near.address, via=(tcp(far.address),), tls=keys.tls()) as client,
        ):
            assert await (await client.create("orders")).push(b"x") == 0
        assert far.statistics().tcp.accepted == 1


async def test_forwarded_messages_are_anonymous_and_own_ones_are_not(keys: Keys) -> None:
    """One node sends a message of its own and one of a peer to the same worker of another node."""
    outgoing = OutgoingTls(Tls(keys.ca, *keys.server))
    listener = keys.listener(keys.files(client_required=False))
    answers: list[bytes] = []
    async with serve(tls=listener) as far:
        far.node.register([local("witness")], Witness)
        async with serve(outgoing_tls=outgoing, allow_forward=[far.address]) as near:
            near.node.register([local("asker")], lambda: Asker(answers))
            near.node.send(Message((tcp(far.address), local("witness")), (local("asker"),), b"?"))
            await wait_until(lambda: answers)
            peer = await near.peer(HEAD)
            await peer.send((tcp(far.address), local("witness")), b"?")
            assert (await peer.receive()).payload == b"anonymous"
        assert answers == [b"certificate:node"]


@pytest.mark.parametrize("fault", ["strange authority", "no TLS there", "certificate demanded"])
async def test_a_fault_on_the_second_hop_is_told_to_the_client(keys: Keys, tmp_path: Path, fault: str) -> None:
    said = {
        "strange authority": "certificate of the other side is not accepted",
        "no TLS there": "does not speak TLS",
        "certificate demanded": "demands a client certificate",
    }[fault]
    async with served(tmp_path / "b", **({} if fault == "no TLS there" else settings(keys))) as far:
        ca = keys.strangers.ca if fault == "strange authority" else keys.ca
        async with (
            served(tmp_path / "a", tls_forward_ca=ca, allow_forward=(far.address,)) as near,
            connect(near.address, via=(tcp(far.address),), reconnect=None) as client,
        ):
            with pytest.raises(RouteLost, match=said):
                await client.find_stream("orders")


async def test_a_destination_in_tls_forward_plaintext_is_called_without_tls(keys: Keys, tmp_path: Path) -> None:
    async with served(tmp_path / "b") as far:
        plain = (far.address,)
        async with (
            served(tmp_path / "a", tls_forward_ca=keys.ca, allow_forward=plain, tls_forward_plaintext=plain) as near,
            connect(near.address, via=(tcp(far.address),)) as client,
        ):
            assert await (await client.create("orders")).push(b"x") == 0


def stored_blocks(running: Served) -> int:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.node.store.blocks


async def test_backfill_fetches_blocks_over_mutual_tls(keys: Keys, tmp_path: Path) -> None:
    """The second node demands a certificate, and the first one shows its own for its own requests."""
    blocks = chain(5)
    async with served(tmp_path / "b", **settings(keys)) as far:
        async with (
            block_node.client.connect(far.address, tls=keys.tls()) as client,
            client.publisher() as publisher,
        ):
            for block in blocks:
                await publisher.send(OutgoingBlock.from_items(block.items))
            await publisher.flush()
        first = settings(keys, tls_forward_ca=keys.ca, backfill_block_node_sources=(far.address,))
        async with served(tmp_path / "a", **first, **QUICK) as near:
            await wait_until(lambda: stored_blocks(near) == len(blocks))


async def test_backfill_over_mutual_tls_obeys_the_rules_of_the_source(keys: Keys, tmp_path: Path) -> None:
    """Without the right `block-read`, the node has no block and says why; a changed rule lets it go on by itself."""
    blocks = chain(5)
    operator, reader = may(ALL_RIGHTS, who="certificate:alice", name="operator"), "certificate:node"
    (tmp_path / "b").mkdir()
    async with guarded(tmp_path / "b", operator, **settings(keys)) as far:
        address = far.running.address
        async with block_node.client.connect(address, tls=keys.tls()) as client, client.publisher() as publisher:
            for block in blocks:
                await publisher.send(OutgoingBlock.from_items(block.items))
            await publisher.flush()
        first = settings(keys, tls_forward_ca=keys.ca, backfill_block_node_sources=(address,))
        # The new rules close the connection under a question, which is given up after this time.
        first |= {"backfill_fetch_timeout_secs": 3.0}
        async with served(tmp_path / "a", **first, **QUICK) as near:
            await wait_until(lambda: far.refused())
            assert {line["identity"] for line in far.audit() if "block-read" in line.get("right", "")} == {reader}
            async with connect(near.address, tls=keys.tls()) as asker:
                (told,) = (await asker.session.ask("block_backfill", BACKFILL, BackfillAsk(1, False))).sources
            assert f"block-read or operate on 'blocks' for {reader}: no rule allows it" in told.last_error
            assert stored_blocks(near) == 0
            far.allow(operator, may(Right.BLOCK_READ, who=reader, name="another node reads"))
            await wait_until(lambda: stored_blocks(near) == len(blocks))
