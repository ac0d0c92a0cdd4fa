"""Goal: workers that nobody is meant to speak to are not harmed by a peer that does.

Method: a whole server; a peer sends what no worker knows to every address that there is, while it is in a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from block_node.protocol import PUBLISH, Acknowledgement, BlockItems, EndOfBlock, OpenSession
from block_node.publish.service import PublishSession
from ockam.actors.address import Address, local
from ockam.actors.node import Node
from ockam.actors.worker import WorkerFactory
from ockam.transport.connection import Connection
from stream_client import connect as connect_streams
from tests.block_node.publish.samples import chain_of
from tests.support.served import PATIENCE_S, served


async def test_no_message_of_a_peer_makes_a_worker_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Address, Node] = {}
    register = Node.register

    def noted(self: Node, addresses: Sequence[Address], factory: WorkerFactory) -> Address:
        known.update(dict.fromkeys(addresses, self))
        return register(self, addresses, factory)

    monkeypatch.setattr(Node, "register", noted)
    (block,) = chain_of(1)
    async with served(tmp_path, log_level="error") as running, connect_streams(running.address) as connection:
        with trio.fail_after(PATIENCE_S):
            publisher = connection.converse("block_publish")
            await publisher.send(PUBLISH.encode_request(OpenSession(b"")))
            await publisher.receive()
            await publisher.send(PUBLISH.encode_request(BlockItems(0, list(block.items[:3]))))
            spoken = [
                address
                for address, node in known.items()
                if not isinstance(node.find_worker(address), PublishSession | Connection)
            ]
            assert {local("block_persistence"), local("block_verification"), local("node_retention")} <= set(spoken)
            for address in spoken:
                connection.session.core.call((address,), b"\x05other\x00")
            await publisher.send(PUBLISH.encode_request(BlockItems(1, list(block.items[3:]))))
            await publisher.send(PUBLISH.encode_request(EndOfBlock(2, 0)))
            payload = await publisher.receive()
            assert payload is not None
            assert PUBLISH.decode_response(payload) == Acknowledgement(0)
        assert running.statistics().node.crashes == 0
