"""The further nodes of `tools/dashboard_pictures.py` and of the tests that use its browser: the source of mirrors, and
the members of a cluster. Also the operator's workers on the node of the pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ockam import ALWAYS, Worker, local
from stream_client.blocking import connect
from stream_node.fleet.cluster.protocol import CLUSTER, DRAIN, STATUS, ClusterStatus, ClusterStatusRequest, DrainRequest
from stream_node.fleet.mirror.protocol import (
    ADDRESS,
    MIRRORS,
    MirrorAction,
    MirrorCondition,
    MirrorRequest,
    MirrorResponse,
)
from stream_node.node.process import NodeProcess

OWN_WORKERS = ("--worker", "tools.dashboard_nodes:Shop@shop")
MEMBERS = ("north", "south", "west")
PATIENCE_S = 60.0


class Shop(Worker):
    """A worker of an operator with two children, one of which does not come up."""

    def started(self) -> None:
        self.start_child([local("shop.orders")], Worker)
        self.start_child([local("shop.payments")], Payments, ALWAYS)


class Payments(Worker):
    def started(self) -> None:
        self.context.call_later(0, self._connect)

    def _connect(self) -> None:
        raise RuntimeError("the bank at bank.example.com:443 does not answer")


@contextmanager
def source_of_mirrors(folder: Path, address: str) -> Iterator[NodeProcess]:
    """Runs a node whose streams another node mirrors. The other node has set messages of one of these streams aside.

    address: the node with the mirrors.
    """
    with NodeProcess(folder / "source") as source:
        with connect(source.address) as client:
            prices = client.create_partitioned("prices", 3)
            for number in range(90):
                prices.push(f"price {number}", key=f"article-{number % 13}")
            for number in range(40):
                client.create("invoices").push(f"invoice {number}")
        with connect(address) as client:
            for number in range(5):
                client.create("invoices").push(f"invoice {number} of an earlier primary")

            def ask(action: MirrorAction, name: str = "", source: str = "", force: bool = False) -> MirrorResponse:
                return client.session.ask(ADDRESS, MIRRORS, MirrorRequest(0, action, name, source, "", force))

            ask(MirrorAction.ADD, "prices", source.address)
            ask(MirrorAction.ADD, "invoices", source.address, force=True)
            deadline_s = time.monotonic() + PATIENCE_S
            while {each.condition for each in ask(MirrorAction.STATUS).mirrors} != {MirrorCondition.FOLLOWING}:
                assert time.monotonic() < deadline_s, "the mirrors do not follow"
                time.sleep(0.05)
        yield source


@contextmanager
def members_of_cluster(folder: Path, database: str) -> Iterator[list[NodeProcess]]:
    """Runs a cluster with streams. Its members start one after another, and the last member is drained.

    database: the URL of an empty database.
    """
    nodes = []
    with ExitStack() as stack:
        for number, name in enumerate(MEMBERS):
            arguments = ["--database", database, "--cluster", name, "--http", "127.0.0.1:0"]
            nodes.append(stack.enter_context(NodeProcess(folder / name, arguments=arguments)))
            wait_owners(nodes[0].address, set(MEMBERS[: number + 1]))
        with connect(nodes[0].address) as client:
            for number in range(30):
                client.create(f"sensors/hall-{number}").push(bytes([number]))
            client.session.ask(str(CLUSTER), DRAIN, DrainRequest(0, MEMBERS[-1], True))
        wait_owners(nodes[0].address, set(MEMBERS[:-1]))
        yield nodes


def wait_owners(address: str, names: set[str]) -> None:
    """Returns when these members own all shards, as the member at an address knows it."""

    def owners() -> set[str]:
        with connect(address) as client:
            status: ClusterStatus = client.session.ask(str(CLUSTER), STATUS, ClusterStatusRequest(0))
        return {shard.owner for shard in status.shards}

    deadline_s = time.monotonic() + PATIENCE_S
    while owners() != names:
        assert time.monotonic() < deadline_s, f"the owners are not {names}"
        time.sleep(0.1)
