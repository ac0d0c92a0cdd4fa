"""Goal: a worker of the operator that crashes, hangs, floods streams, never reads, or is stopped in the middle harms
neither its neighbours nor the streams, and nothing that was confirmed is lost.

Method: real nodes and sockets; a neighbour pushes and pulls before and after, and another worker is asked meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from ockam import local
from ockam.actors.async_worker import RUN_MESSAGES_MAX
from ockam.actors.mailbox import BYTES_MAX
from ockam.protocol import ERROR
from stream_client import ClientError, blocking, connect
from stream_node.hosting.status import OWN_WORKERS, OwnWorker, OwnWorkersRequest
from stream_node.node.process import NodeProcess
from tests.style.tree import ROOT
from tests.support.postgres import PostgresServer
from tests.support.served import PATIENCE_S, Served, neighbour, served, wait_until

SAMPLES = "tests.stream_node.hosting.sample_workers"
ECHO = f"{SAMPLES}:Echo@echo"


async def answers(node: Served) -> bool:
    with trio.fail_after(PATIENCE_S):
        return (await (await node.peer()).ask((local("echo"),), b"hello")).payload == b"hello"


async def own_workers(node: Served) -> list[OwnWorker]:
    request = OWN_WORKERS.encode_request(OwnWorkersRequest(1))
    answer = await (await node.peer()).ask((local("node_own_workers"),), request)
    return OWN_WORKERS.decode_response(answer.payload).workers


@pytest.mark.parametrize("name", ["Hanging", "Deaf", "Crashing", "Stopping"])
async def test_a_worker_that_does_not_do_its_work_harms_nobody(tmp_path: Path, name: str) -> None:
    """Claim: a worker that hangs, never reads, crashes or stops in the middle of each message holds at most what fits
    in its mailbox, and those beside it go on. Method: one connection sends it more than its mailbox holds, and then
    asks the neighbour over the same one; the status says how many messages wait."""
    async with served(tmp_path, worker=(ECHO, f"{SAMPLES}:{name}@sick")) as node, neighbour(node):
        peer = await node.peer()
        flood = peer.frame((local("sick"),), bytes(10_000), return_route=()) * 3_000
        await peer.stream.send_all(flood)
        assert (await peer.ask((local("echo"),), b"hello")).payload == b"hello"
        assert await answers(node)
        (waiting,) = [each.waiting for each in (await own_workers(node)) if each.address == "sick"]
        assert waiting <= BYTES_MAX // 10_000 + 1 + RUN_MESSAGES_MAX


async def test_workers_that_answer_each_other_without_end_harm_nobody(tmp_path: Path) -> None:
    """Method: a neighbour pushes and pulls, and another worker is asked, while the messages of the two go on."""
    async with served(tmp_path, worker=(ECHO, f"{SAMPLES}:Circling@sick")) as node, neighbour(node):
        routed = node.statistics().node.routed
        for _ in range(10):
            assert await answers(node)
        assert node.statistics().node.routed > routed + 100


async def test_a_worker_that_floods_a_stream_harms_nobody(tmp_path: Path) -> None:
    async with served(tmp_path, worker=(ECHO, f"{SAMPLES}:Flooding@sick")) as node:
        peer = await node.peer()
        route = await peer.create("flood")
        async with neighbour(node):
            await wait_until(lambda: node.statistics().storage.rows > 5_000)
            assert await answers(node)
        assert (await peer.pull(route, 0, 1)).messages[0].data == bytes(1_000)


async def test_a_crash_is_told_to_its_sender_and_the_status_counts_it(tmp_path: Path) -> None:
    """Method: the tree of the status, before and after, has the child of the worker that has crashed."""
    async with served(tmp_path, worker=(ECHO, f"{SAMPLES}:Parent@parent")) as node, neighbour(node):
        peer = await node.peer()
        assert ERROR.is_in((await peer.ask((local("parent"),), b"fail")).payload)
        assert (await peer.ask((local("parent"),), b"again")).payload == b"again"
        tree = await own_workers(node)
        assert [(each.address, each.depth, each.kind, each.state, each.restarts) for each in tree] == [
            ("echo", 0, "Echo", "running", 0),
            ("parent", 0, "Parent", "running", 1),
            ("child", 1, "Echo", "running", 0),
        ]
        assert tree[1].reason == "RuntimeError('as it was told')"


async def test_what_a_worker_has_confirmed_is_there_after_a_stop_in_the_middle(tmp_path: Path) -> None:
    """Method: senders push through a worker without end while the node stops; a new node has what was answered."""
    answered: list[bytes] = []

    async def send(node: Served, number: int) -> None:
        async with connect(node.address, reconnect=None) as client:
            conversation = client.converse("pusher")
            with suppress(ClientError):
                for each in range(10_000):
                    payload = b"%d %d" % (number, each)
                    await conversation.send(payload)
                    # A worker that is stopped answers what it has not done with an `error`, which is raised here.
                    await conversation.receive()
                    answered.append(payload)

    async with trio.open_nursery() as nursery:
        async with served(tmp_path, worker=(f"{SAMPLES}:Pusher@pusher",)) as node:
            for number in range(4):
                nursery.start_soon(send, node, number)
            await wait_until(lambda: len(answered) > 40)
            node.server.stop()
            await wait_until(lambda: node.server.condition.is_draining)
        nursery.cancel_scope.cancel()
    async with served(tmp_path) as node:
        peer = await node.peer()
        page = await peer.pull(await peer.create("orders"), 0, 10_000)
    assert set(answered) <= {message.data for message in page.messages}


def test_a_worker_that_does_not_end_does_not_hold_the_node(tmp_path: Path) -> None:
    """Method: the real command, with a worker that shields itself from its cancellation, and others that end. The log
    names that one alone. What was pushed is there."""
    environment = {"STREAM_NODE_DRAIN_TIMEOUT_S": "1", "PYTHONPATH": str(ROOT)}
    workers = ("Stubborn@sick", "Hanging@well", "Echo@sound")
    arguments = [each for worker in workers for each in ("--worker", f"{SAMPLES}:{worker}")]
    with NodeProcess(tmp_path / "data", arguments=arguments, environment=environment) as node:
        with blocking.connect(node.address) as client:
            client.create("orders").push(b"one")
        assert node.stop(timeout_s=PATIENCE_S) == 0
        (line,) = [each for each in node.log_file.read_text().splitlines() if "own_workers_hang" in each]
        assert [name in line for name in ("sick", "well", "sound")] == [True, False, False]
        node.start()
        with blocking.connect(node.address) as client:
            assert [message.data for message in client.create("orders").pull()] == [b"one"]


async def test_a_database_that_is_away_leaves_the_workers_of_a_member_their_time_to_end(tmp_path: Path) -> None:
    """Method: a member of a cluster stops while its database is frozen, so that it cannot leave the cluster."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    settings = {"cluster": "a", "database_call_s": 0.5, "database_wait_s": 0.5, "drain_timeout_s": 3.0}
    with PostgresServer() as server, capture_logs() as lines:
        worker = (f"{SAMPLES}:Finishing@well",)
        async with served(tmp_path, worker=worker, database=server.url, **settings) as node:
            await wait_until(lambda: "own_worker_started" in [each["event"] for each in lines])
            server.freeze()
            node.server.stop()
    events = [each["event"] for each in lines]
    assert ("cluster_left" in events, "own_workers_hang" in events) == (False, False)
