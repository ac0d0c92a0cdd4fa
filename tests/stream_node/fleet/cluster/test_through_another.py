"""Goal: a client at a node that owns nothing gets the answers that it gets from a single node.

Method: two nodes on one PostgreSQL server, of which one is drained. Through that one go the frames of real clients,
byte for byte, and tests of the specification, which were written for a single node.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from ockam.actors.address import local
from ockam.protocol import ERROR
from stream_node.fleet.cluster.protocol import (
    CLUSTER,
    DRAIN,
    LINK,
    MEMBER,
    PROVE,
    DrainRequest,
    LinkRequest,
    MemberEnvelope,
    ProveRequest,
    envelope_hop,
)
from stream_node.fleet.cluster.view import SHARDS
from stream_node.node.parts import ServerStatistics
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest
from tests.service import test_frame_sizes as sizes
from tests.service.specification import test_captured_frames as captures
from tests.service.specification import test_specification_creation as creation
from tests.service.specification import test_specification_delivery as delivery
from tests.service.specification import test_specification_messages as messages
from tests.support.postgres import PostgresServer
from tests.support.served import Served, served, wait_until
from tests.support.stream_peer import SERVICE

SPECIFICATION = (
    (creation, "test_addresses_have_a_prefix"),
    (creation, "test_the_init_says_the_name_and_of_a_partition_also_its_number"),
    (creation, "test_streams_and_their_names_are_known_after_a_restart"),
    (creation, "test_whoever_creates_an_existing_stream_gets_its_init_from_the_stream"),
    (delivery, "test_a_consumer_saves_its_position_and_resumes_there"),
    (delivery, "test_our_client_tells_partitions_apart_by_their_return_routes"),
    (messages, "test_indexes_are_unique_and_rise_under_many_publishers"),
    (messages, "test_the_index_of_a_confirm_finds_the_message_and_tells_whether_it_was_consumed"),
    (messages, "test_data_comes_back_as_it_was_pushed"),
    (sizes, "test_a_legacy_consumer_passes_over_what_no_legacy_frame_can_carry"),
    (sizes, "test_a_rich_pull_over_the_legacy_framing_is_told_what_does_not_fit"),
)
"""Those that look at a running node alone. Others look into the file of its database, or have no node."""

FLOOD_BYTES = 400_000_000
STRANGERS = 30


class Through(Served):
    """The node that owns nothing. Its statistics are those of the owner."""

    def __init__(self, asked: Served, owner: Served) -> None:
        super().__init__(asked.server)
        self.asked = asked
        self._owner = owner

    async def refused(self, payload: bytes) -> str:
        """The reason for which the cluster worker refuses a request."""
        peer = await self.peer()
        return ERROR.decode_response((await peer.ask((CLUSTER,), payload)).payload).reason

    def statistics(self) -> ServerStatistics:
        return self._owner.statistics()


def shards_of(node: Served) -> int:
    member = node.server.statistics().cluster
    assert member is not None
    return member.shards


@asynccontextmanager
async def drained(postgres: PostgresServer, data_dir: Path, **settings: Any) -> AsyncIterator[Through]:
    """A node that owns nothing, beside one that owns all. The database is that of earlier nodes of this folder."""
    database = "test_" + hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
    if not postgres.ask(f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
        postgres.ask(f"CREATE DATABASE {database}")
    common = {"database": postgres.url_of(database), **settings}
    async with (
        served(data_dir / "asked", cluster="asked", **common) as asked,
        served(data_dir / "owner", cluster="owner", **common) as owner,
    ):
        peer = await asked.peer()
        await peer.ask((CLUSTER,), DRAIN.encode_request(DrainRequest(1, "asked", True)))
        await wait_until(lambda: (shards_of(asked), shards_of(owner)) == (0, SHARDS))
        through = Through(asked, owner)
        try:
            yield through
        finally:
            through.close_peers()


async def test_a_flood_through_another_node_waits_for_the_owner(server: PostgresServer, tmp_path: Path) -> None:
    """Goal: an owner that cannot store is not filled with messages that come by way of another member. Method: a frozen
    database, and a client that sends as long as the node at which it is reads."""
    async with drained(server, tmp_path) as node:
        peer = await node.peer()
        route = await peer.create("s")
        assert (await peer.push(route, b"before")).index == 0
        frames = peer.frame(route, PUSH.encode_request(PushRequest(1, bytes(50_000)))) * 20
        sent_bytes = 0
        server.freeze()
        try:
            while sent_bytes < FLOOD_BYTES:
                with trio.move_on_after(1.0) as scope:
                    await peer.stream.send_all(frames)
                if scope.cancelled_caught:
                    break
                sent_bytes += len(frames)
        finally:
            server.thaw()
        assert sent_bytes < FLOOD_BYTES
        other = await node.peer()
        assert (await other.push(await other.create("another"), b"after")).index == 0


async def test_strangers_do_not_make_a_member_read_or_keep_what_they_send(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Goal: the first message of a link, which anybody can send, costs the member little. Method: many connections that
    send it; the beats of the member, which each read makes, are counted by psql."""
    async with drained(server, tmp_path) as node:
        database = "test_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]

        def beats() -> int:
            return int(server.ask("SELECT sum(beats) FROM cluster_members", database))

        began_s, before = trio.current_time(), beats()
        link = LINK.encode_request(LinkRequest("stranger", bytes(32)))
        for _ in range(STRANGERS):
            peer = await node.peer()
            await peer.stream.send_all(peer.frame((CLUSTER,), link) * 3)
            reasons = [ERROR.decode_response((await peer.receive()).payload).reason for _ in range(3)]
            assert sum("not answered yet" in reason for reason in reasons) == 2
            assert sum("is no member of this cluster" in reason for reason in reasons) == 1
        # Each of both members beats once a second, and the connections cause one further read a second.
        assert beats() - before <= 3 * (trio.current_time() - began_s) + 4
        wrong = await node.refused(LINK.encode_request(LinkRequest("owner", bytes(31))))
        assert "a nonce has 32 bytes" in wrong
        long = await node.refused(LINK.encode_request(LinkRequest("x" * 256, bytes(32))))
        assert "at most 255 characters" in long


async def test_only_members_send_for_clients(server: PostgresServer, tmp_path: Path) -> None:
    """Goal: whoever has not proved that it is a member can neither name an identity nor end its connection by an
    address that is none."""
    async with drained(server, tmp_path) as node:
        peer = await node.peer()
        await peer.create("s")
        envelope = envelope_hop(MemberEnvelope(0, 0, "token", "admin", "somewhere", 65_000))
        for route in ((MEMBER,), (MEMBER, envelope), (MEMBER, envelope, *SERVICE), (local("ST_S_-1abc"),)):
            await peer.send(route, CREATE.encode_request(CreateStream("forged")))
        await peer.send((MEMBER,), PROVE.encode_request(ProveRequest(bytes(32))))
        assert (await peer.push(await peer.create("t"), b"after")).index == 0
        asked = node.asked.statistics().node
        assert asked.dropped["cluster_refused"] == 4
        assert asked.crashes == 0


@pytest.mark.parametrize("name", captures.CAPTURES)
async def test_real_clients_get_the_answers_of_a_single_node(server: PostgresServer, name: str, tmp_path: Path) -> None:
    wire = captures.WIRES[name.partition("_")[0]]
    frames = captures.captured(name, wire)
    async with drained(server, tmp_path) as node:
        replay = captures.Replay(node, wire, frames, None)
        await replay.run()
        sent = node.server.statistics().cluster
        assert sent is not None
        assert sum(sent.router.sent.values()) > 0
    assert replay.compared == sum(not frame.from_client for frame in frames) > 0


@pytest.mark.parametrize(("module", "name"), SPECIFICATION, ids=[name for _, name in SPECIFICATION])
async def test_the_specification_holds_through_another_node(
    server: PostgresServer, module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "served", partial(drained, server))
    await getattr(module, name)(tmp_path)
