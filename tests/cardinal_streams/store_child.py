"""A process that follows a recording with a chain store and a journal, and is killed where it was told to be.

Arguments: the recording, the folder of the chain store, and a place of the application with the number of the visit,
such as `before_done:3`. The places of the storage are those of `stream_storage.failpoint`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

import trio

from block_manager.transactions import Write
from cardinal_streams.consume.consuming import consume
from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED
from cardinal_streams.transports.file_transport import FileTransport
from tests.cardinal_streams.chain_journal import write_of

PARTITIONS = 2
PLACES = ("before_done", "after_done", "within_write")


async def run(recording: str, folder: str, place: str, left: int) -> None:
    def reach(here: str) -> None:
        nonlocal left
        if here == place:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    transport = FileTransport(recording, partitions=PARTITIONS)
    async with consume(
        SIMULATED, transport, chain_store=folder, start=GENESIS, save_interval_s=0, stop_at_end=True
    ) as updates:
        async for update in updates:
            reach("before_done")
            rows = write_of(update.removed, update.added)

            def write(connection: sqlite3.Connection, rows: Write = rows) -> None:
                rows(connection)
                reach("within_write")

            update.done(write)
            reach("after_done")


if __name__ == "__main__":
    name, _, count = sys.argv[3].partition(":")
    trio.run(run, sys.argv[1], sys.argv[2], name, int(count or 0))
