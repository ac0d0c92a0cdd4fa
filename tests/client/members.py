"""Members of a shared consumer, each a process of its own that writes down what it processes. It judges nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.command import ROOT
from tests.support.served import PATIENCE_S

MEMBER = """
import os, pathlib, sys, trio
from ockam.actors.address import tcp
from stream_client import LeaseLost, LeaseMember, SecureChannel, connect

async def main(node, name, *via):
    peer = os.environ.get("CHANNEL_PEER")
    channel = SecureChannel(identity=pathlib.Path(os.environ["CHANNEL_IDENTITY"]), peer=peer) if peer else None
    async with connect(node, via=tuple(map(tcp, via)), channel=channel) as client:
        stream = await client.get_stream("shared")
        member = LeaseMember(client, "c", member_id=name)
        # Small pages, so that what is taken over is begun before what was held is read to its end.
        async with stream.shared_consumer(member, page_messages=20, save_messages=50) as consumer:
            while True:
                try:
                    async for partition, message in consumer:
                        print(partition, message.index, consumer.fences[partition], flush=True)
                        await trio.sleep(0.002)
                except LeaseLost:
                    print("lost", flush=True)

trio.run(main, *sys.argv[1:])
"""


def start_member(address: str, name: str, output: Path, *via: str, **environment: str) -> subprocess.Popen[bytes]:
    """via: the node that has the stream, if the one at `address` only forwards. With CHANNEL_IDENTITY (a file) and
    CHANNEL_PEER (an identifier), it uses a secure channel."""
    with output.open("wb") as file:
        command = [sys.executable, "-c", MEMBER, address, name, *via]
        surrounding = os.environ | environment
        return subprocess.Popen(command, stdout=file, cwd=ROOT, stdin=subprocess.DEVNULL, env=surrounding)


def lines(file: Path) -> list[str]:
    """Whole lines only."""
    return file.read_text().rpartition("\n")[0].splitlines()


def processed(file: Path) -> list[tuple[int, int, int]]:
    """Partition, index and fence of each message that a member has processed."""
    rows = [tuple(map(int, line.split())) for line in lines(file) if line != "lost"]
    return [(partition, index, fence) for partition, index, fence in rows]


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 2 * PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
