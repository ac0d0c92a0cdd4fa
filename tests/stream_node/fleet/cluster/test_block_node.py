"""Goal: the nodes of a cluster have one block node together: every node takes and gives blocks, and the chain goes on
without a loss when the node that serves it leaves, dies or freezes.

Method: real nodes on a real PostgreSQL server, a publisher and subscribers of the real client at all nodes, and psql.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from block_node.blocks.generator import BlockShape, SigningKeys
from block_node.client.blocking import connect
from stream_client import blocking
from stream_node.fleet.cluster.protocol import CLUSTER, DRAIN, DrainRequest
from tests.stream_node.fleet.cluster.block_users import (
    CHAIN_SHARD,
    BlockReader,
    BlockSource,
    check_chain,
    check_chain_rows,
)
from tests.stream_node.fleet.cluster.nodes import Nodes, wait_for
from tests.support.postgres import PostgresServer

LARGE = BlockShape(item_count=22, item_bytes=500_000)
"""Blocks of 9 MB, parts of which are on the disk before the block is verified."""


@pytest.fixture
def cluster(server: PostgresServer, database: str, tmp_path: Path) -> Iterator[Nodes]:
    """Three nodes that serve a database of their own."""
    with Nodes(server, database, tmp_path, 3) as nodes:
        nodes.wait_shared(3)
        yield nodes


def owner_of_chain(nodes: Nodes) -> int:
    """The number of the node that serves the chain."""
    row = f"SELECT convert_from(owner, 'UTF8') FROM cluster_shards WHERE shard = {CHAIN_SHARD}"
    name: list[str] = []

    def has_owner() -> bool:
        name[:] = nodes.ask(row).split()
        return bool(name)

    wait_for(has_owner)
    return int(name[0].removeprefix("n"))


def drain(nodes: Nodes, number: int, *, leaves: bool) -> None:
    with blocking.connect(nodes.all[number].address) as client:
        client.session.ask((CLUSTER,), DRAIN, DrainRequest(0, f"n{number}", leaves))


def test_every_node_takes_and_gives_blocks(cluster: Nodes) -> None:
    addresses = [node.address for node in cluster.all]
    source = BlockSource(addresses)
    readers = [BlockReader([address]) for address in addresses]
    for user in (source, *readers):
        user.start()
    source.wait(20)
    for user in (*readers, source):
        user.end()
    assert all(reader.roots for reader in readers)
    check_chain(source, readers, addresses)
    check_chain_rows(cluster.ask, source.acknowledged)
    with connect(addresses[0]) as client:
        one = client.get(3)
    for address in addresses[1:]:
        with connect(address) as client:
            assert client.get(3) == one


class Story:
    """A source and two readers of blocks at all nodes, to whose cluster something happens."""

    def __init__(self, cluster: Nodes, shape: BlockShape | None, count: int) -> None:
        """count: how many blocks must become durable after each event."""
        self.cluster = cluster
        self._count = count
        self._addresses = [node.address for node in cluster.all]
        self._source = BlockSource(self._addresses, shape=shape)
        self._readers = [BlockReader(self._addresses[first:] + self._addresses[:first]) for first in range(2)]

    def __enter__(self) -> Self:
        for user in (self._source, *self._readers):
            user.start()
        self.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        for user in (*self._readers, self._source):
            user.end()
        if kind is None:
            check_chain(self._source, self._readers, self._addresses)
            check_chain_rows(self.cluster.ask, self._source.acknowledged)

    def wait(self) -> None:
        self._source.wait(self._count)


SHAPES = pytest.mark.parametrize(
    ("shape", "count"),
    [pytest.param(None, 15, id="small"), pytest.param(LARGE, 2, id="large", marks=pytest.mark.soak)],
)


@SHAPES
def test_the_chain_moves_with_its_shard(cluster: Nodes, shape: BlockShape | None, count: int) -> None:
    with Story(cluster, shape, count) as story:
        drained = owner_of_chain(cluster)
        drain(cluster, drained, leaves=True)
        wait_for(lambda: owner_of_chain(cluster) != drained)
        story.wait()
        drain(cluster, drained, leaves=False)
        wait_for(lambda: owner_of_chain(cluster) == drained)
        story.wait()
        assert cluster.all[drained].stop() == 0
        story.wait()
        cluster.all[drained].start()
        cluster.wait_shared(3)
        story.wait()


@SHAPES
def test_the_chain_goes_on_when_its_owner_is_killed(cluster: Nodes, shape: BlockShape | None, count: int) -> None:
    with Story(cluster, shape, count) as story:
        killed = cluster.all[owner_of_chain(cluster)]
        killed.kill()
        story.wait()
        killed.start()
        cluster.wait_shared(3)
        story.wait()


def test_the_chain_moves_though_its_address_book_is_gone(server: PostgresServer, database: str, tmp_path: Path) -> None:
    """Goal: a node reads the address book at its start, and not when it gets the chain. Method: the file is deleted,
    and the owner of the chain gives its shards away."""
    book = SigningKeys.generate(1).address_book
    file = tmp_path / "book.json"
    file.write_bytes(book.format())
    with Nodes(server, database, tmp_path, 2, block_address_book=file) as nodes:
        nodes.wait_shared(2)
        file.unlink()
        drained = owner_of_chain(nodes)
        drain(nodes, drained, leaves=True)
        nodes.wait_shared(1)
        assert owner_of_chain(nodes) != drained
        for node in nodes.all:
            with connect(node.address) as client:
                detail = client.status(detail=True).detail
                assert detail is not None
                assert detail.address_book == book.serialize()


@pytest.mark.soak
@SHAPES
def test_a_frozen_owner_stores_no_block_when_it_wakes(cluster: Nodes, shape: BlockShape | None, count: int) -> None:
    with Story(cluster, shape, count) as story:
        frozen = cluster.all[owner_of_chain(cluster)]
        frozen.signal(signal.SIGSTOP)
        story.wait()
        frozen.signal(signal.SIGCONT)
        assert frozen.wait() != 0
        frozen.start()
        cluster.wait_shared(3)
        story.wait()
