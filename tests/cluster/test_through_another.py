"""Goal: a client at a node that owns nothing gets the answers that it gets from a single node.

Method: two nodes on one PostgreSQL server, of which one is drained. Through that one go the frames of real clients,
byte for byte, and tests of the specification, which were written for a single node.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from cluster.protocol import CLUSTER, DRAIN, DrainRequest
from cluster.shards import SHARDS
from stream_node.statistics import ServerStatistics
from tests.service import test_captured_frames as captures
from tests.service import test_specification_creation as creation
from tests.service import test_specification_delivery as delivery
from tests.service import test_specification_messages as messages
from tests.support.postgres import PostgresServer
from tests.support.served import Served, served, wait_until

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
)
"""Those that look at a running node alone. Others look into the file of its database, or have no node."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Through(Served):
    """The node that owns nothing. Its statistics are those of the owner."""

    def __init__(self, asked: Served, owner: Served) -> None:
        super().__init__(asked.server)
        self._owner = owner

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
