"""Goal: a program that is told to stop (systemd, docker, a closed terminal) gives its leases back and saves at once.

Method: real programs in child processes share a stream, and are sent the signal; the node is asked who holds the leases
and what is saved as soon as the program has ended. Leases last an hour here, so that none runs out by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_client import blocking
from stream_client.blocking import list_positions
from stream_node.node.process import NodeProcess

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
ASYNC = """
import sys, {loop}
from stream_client import connect, stop_on_signals

async def main():
    async with stop_on_signals() as stopped, connect(sys.argv[1]) as client:
        stream = await client.get_stream(sys.argv[2])
        async with stream.shared_consumer("group") as consumer:
            async for partition, message in consumer:
                print(message.data.decode(), flush=True)
    print("stopped by", stopped.signal, flush=True)

{loop}.run({main})
"""
PROGRAMS = {
    "trio": ASYNC.format(loop="trio", main="main"),
    "asyncio": ASYNC.format(loop="asyncio", main="main()"),
    "blocking": """
import sys
from stream_client import blocking

with blocking.stop_on_signals() as stopped, blocking.connect(sys.argv[1]) as client:
    with client.get_stream(sys.argv[2]).shared_consumer("group") as consumer:
        for partition, message in consumer:
            print(message.data.decode(), flush=True)
print("stopped by", stopped.signal, flush=True)
""",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    environment = {"STREAM_NODE_LEASE_TTL_S": "3600"}
    with NodeProcess(tmp_path_factory.mktemp("stopping") / "data", environment=environment) as running:
        yield running
        assert running.stop() == 0


def filled(node: NodeProcess, name: str) -> None:
    with blocking.connect(node.address) as client:
        for partition in client.create_partitioned(name, 2).partitions:
            for number in range(3):
                partition.push(f"{partition.partition}.{number}")


def sharing(command: list[str], number: signal.Signals) -> tuple[int, list[bytes]]:
    """Exit code and last lines of a program that has got all six messages when the signal comes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            seen = [process.stdout.readline() for _ in range(6)]
            assert sorted(seen) == sorted(b"%d.%d\n" % (part, at) for part in range(2) for at in range(3))
            process.send_signal(number)
            rest = process.stdout.read().splitlines()
            return process.wait(PATIENCE_S), rest
        finally:
            process.kill()


def held_and_saved(node: NodeProcess, name: str) -> list[tuple[str | None, int]]:
    with blocking.connect(node.address) as client:
        found = {each.partition: (each.holder, each.index) for each in list_positions(client, stream_name=name)}
        return [found.get(partition, (None, 0)) for partition in range(2)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_python_program_gives_its_leases_back(node: NodeProcess, program: str, number: signal.Signals) -> None:
    name = f"{program} {number.name}"
    filled(node, name)
    code, rest = sharing([sys.executable, "-c", PROGRAMS[program], node.address, name], number)
    assert (code, rest) == (0, [b"stopped by %d" % number])
    held = held_and_saved(node, name)
    assert [holder for holder, _ in held] == [None, None]
    # The message at hand counts as processed only where the program has asked for the next one when the signal comes.
    assert sum(index for _, index in held) in (5, 6)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda each: each.name)
def test_consume_share_gives_its_leases_back(node: NodeProcess, number: signal.Signals) -> None:
    name = f"command {number.name}"
    filled(node, name)
    command = [sys.executable, "-m", "stream_node", "consume", name, "--client", "c", "--share", "--follow"]
    code, rest = sharing([*command, "--node", node.address], number)
    assert (code, rest) == (128 + number, [])
    held = held_and_saved(node, name)
    assert [holder for holder, _ in held] == [None, None]
    assert sum(index for _, index in held) in (5, 6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_signal_a_block_ends_by_itself(node: NodeProcess, program: str) -> None:
    name = f"{program} by itself"
    filled(node, name)
    text = PROGRAMS[program].replace("in consumer:", "in consumer.messages(stop_at_end=True):")
    done = subprocess.run(
        [sys.executable, "-c", text, node.address, name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == b"stopped by None"
    assert held_and_saved(node, name) == [(None, 3), (None, 3)]
