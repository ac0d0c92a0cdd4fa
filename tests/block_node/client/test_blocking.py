"""Goal: the blocking client does what the async one does, and an interrupt or an error leaves it clean.

Method: a node in a child process; errors that the node causes, and a child that is interrupted while it waits.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from block_node.client import BlockArrived, BlockNotAvailable, BlockRefused, PublishSettings, blocking
from stream_client import NodeUnreachable, Reconnect
from stream_node.node.process import NodeProcess
from tests.block_node.client.chains import chain, outgoing
from tests.support.blocks import join_block

REPOSITORY = Path(__file__).parents[3]

WAITING = """
import sys
from block_node.client import blocking

with blocking.connect(sys.argv[1]) as client:
    try:
        with client.subscribe() as blocks:
            print("waiting", flush=True)
            for block in blocks:
                print("a block", flush=True)
    except KeyboardInterrupt:
        print("interrupted;", client.status().first_available, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that has blocks 0 to 9 of a chain of 20."""
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess(folder / "data", arguments=("--log-level", "error")) as node:
        with blocking.connect(node.address) as client, client.publisher() as publisher:
            for block in chain(20)[:10]:
                publisher.send(outgoing(block))
            publisher.flush()
            assert (publisher.acknowledged, publisher.kept) == (9, 0)
        yield node


def test_there_and_back(server: NodeProcess) -> None:
    threads = threading.active_count()
    blocks = chain(20)[:10]
    with blocking.connect(server.address) as client:
        assert client.status().last_available == 9
        assert client.get(3) == (3, blocks[3].root, join_block(blocks[3].items))
        assert b"".join(part.data for part in client.get_parts(4)) == join_block(blocks[4].items)
        with client.subscribe(2, 9) as received:
            assert [(each.number, each.root, tuple(each.items)) for each in received] == [
                (block.number, block.root, block.items) for block in blocks[2:]
            ]
        with client.subscribe_events(5, 6) as events:
            assert [event.block_number for event in events if isinstance(event, BlockArrived)] == [5, 6]
        with client.subscribe(0) as received:
            assert next(received).number == 0
        assert threading.active_count() == threads


def test_errors_are_those_of_the_async_client(server: NodeProcess) -> None:
    threads = threading.active_count()
    with blocking.connect(server.address) as client:
        with pytest.raises(BlockNotAvailable, match="block 77 is not available"):
            client.get(77)
        with pytest.raises(BlockRefused, match="block 10 was refused"), client.publisher() as publisher:
            publisher.send(outgoing(chain(20, seed=1)[10]))
        with pytest.raises(RuntimeError, match="of the program"), client.publisher() as publisher:
            raise RuntimeError("of the program")
        settings = PublishSettings(give_up_s=0.1, reconnect=Reconnect(delay_s=0.01))
        with (
            pytest.raises(NodeUnreachable),
            blocking.connect("127.0.0.1:1") as nobody,
            nobody.publisher(settings) as publisher,
        ):
            publisher.send(outgoing(chain(20)[0]))
        assert threading.active_count() == threads


def test_an_interrupt_ends_a_wait(server: NodeProcess) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, server.address], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "interrupted; 0\n"
        assert child.returncode == 0
