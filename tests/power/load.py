"""The load of the power cuts: a recorded node under mixed work, and clients that write down every answer of the node.

An answer to a client is a mark in the trace, behind the events that made the answer true. Each message names itself
(`payload`), so the auditor can judge any message that it finds on a disk.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from block_node.blocks.generator import BlockShape, ChainGenerator
from index_service.extensions import LEASE, Lease, LeaseRequest
from stream_client import blocking
from stream_client.blocking import SavedIndexes, StreamClient
from stream_node.node.process import NodeProcess
from stream_service.extensions import Retention
from stream_storage.sqlite.database import FILE_NAME
from tests.power.recording import Recording
from tests.support.blocks import join_block, signing_keys

CHILD = Path(__file__).with_name("power_child.py")
MESSAGE_BYTES = 700
LATER_ERA = 100
"""How many messages are pushed after a restore. Their indexes may have had other messages before."""
LEASE_TTL_S = 0.2
BLOCKS = 4


def payload(stream: str, incarnation: int, number: int) -> bytes:
    """A message. incarnation: which stream of this name it belongs to, since streams are deleted and made anew.

    number: its place among all messages of this incarnation.
    """
    return f"{stream}/{incarnation} {number} ".encode().ljust(MESSAGE_BYTES + number % 7 * 400, b".")


def parse(data: bytes) -> tuple[str, int, int]:
    """Stream, incarnation and number of a message, which must be as `payload` made it."""
    name, number, _ = data.split(b" ", 2)
    stream, incarnation = name.decode().split("/")
    assert data == payload(stream, int(incarnation), int(number)), f"no message of ours: {data[:60]!r}"
    return stream, int(incarnation), int(number)


class RecordedNode(NodeProcess):
    """`stream-node serve`, recorded, with smaller sizes."""

    def command(self) -> list[str]:
        return [sys.executable, str(CHILD), "command", *super().command()[3:]]


class Load:
    """The work of the clients, and how many messages each stream has."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.mark = recording.mark
        self.root = recording.root
        self.data = self.root / "new" / "a" / "data"
        settings = {"RETENTION_INTERVAL_S": "0.1", "LEASE_TTL_S": str(LEASE_TTL_S), "LOG_LEVEL": "error"}
        self.node = RecordedNode(
            self.data,
            environment={
                **recording.environment,
                **{f"STREAM_NODE_{name}": value for name, value in settings.items()},
            },
            log_file=self.root.parent / "node.log",
        )
        self.incarnations: dict[str, int] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._requests = 0

    def run(self) -> None:
        """Do all steps. At the end of each, the client writes down what the node has told it."""
        with self.node:
            with blocking.connect(self.node.address) as client, self.pushing("busy"):
                self.create(client, "plain", "gone", "kept")
                self.push_singly(client, "plain", 20)
                self.push_together(client, "plain", 60)
                self.save(client, "plain", 7)
                self.lease(client, "plain", 2)
                self.push_together(client, "gone", 20)
                self.delete_and_make_anew(client, "gone")
                self.keep(client, "kept", 10)
                self.truncate(client, "plain", 15)
                self.publish_blocks()
                self.save(client, "plain", 30)
                self.back_up("new/b0/first")
                self.export(client, "plain")
                self.push_singly(client, "plain", 10)
                self.export(client, "plain")
            self.node.kill()
            self.node.start()
            with blocking.connect(self.node.address) as client, self.pushing("busy"):
                self.push_together(client, "plain", 30)
                self.lease(client, "plain", 2)
                self.save(client, "plain", 60)
            assert self.node.stop() == 0
            self.restore("new/b0/first")
            self.node.start()
            with blocking.connect(self.node.address) as client:
                self.push_together(client, "plain", 20)
                self.lease(client, "plain", 2)
                self.delete_and_make_anew(client, "gone")
            assert self.node.stop() == 0

    def create(self, client: StreamClient, *names: str) -> None:
        for name in names:
            self.mark("creating", stream=name, incarnation=self.incarnations.get(name, 0))
            client.create(name)
            self.mark("created", stream=name)

    def push_singly(self, client: StreamClient, name: str, count: int) -> None:
        """Push messages one by one, so that each has a transaction of its own."""
        stream = client.create(name)
        for _ in range(count):
            number = self._next(name)
            index = stream.push(payload(name, self._incarnation(name), number))
            self.mark("pushed", stream=name, index=index, incarnation=self._incarnation(name), number=number)

    def push_together(self, client: StreamClient, name: str, count: int) -> None:
        """Push with many unconfirmed messages. Each one is written down when its own confirm has come."""
        with client.create(name).publisher() as publisher:
            incarnation = self._incarnation(name)
            numbers = [self._next(name) for _ in range(count)]
            pushes = [publisher.push(payload(name, incarnation, number)) for number in numbers]
            for number, push in zip(numbers, pushes, strict=True):
                index = publisher.wait(push)
                self.mark("pushed", stream=name, index=index, incarnation=incarnation, number=number)

    @contextmanager
    def pushing(self, name: str) -> Iterator[None]:
        """A client that pushes all the time, in a thread and over a connection of its own."""
        ended, failures = threading.Event(), list[BaseException]()

        def push() -> None:
            try:
                with blocking.connect(self.node.address) as client:
                    self.create(client, name)
                    while not ended.wait(0.1):
                        self.push_together(client, name, 2)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not failures, failures

    def save(self, client: StreamClient, name: str, index: int) -> None:
        SavedIndexes(client, "reader").save(name, {0: index})
        self.mark("saved", client="reader", stream=name, index=index)

    def lease(self, client: StreamClient, name: str, partitions: int) -> None:
        """Get leases of all partitions, as soon as nobody else may hold them, and give them back."""
        granted: Sequence[Lease] = ()
        member = f"member {self._requests}"
        while len(granted) < partitions:
            granted = self._ask_lease(client, name, member, partitions, granted, leave=False)
            for each in granted:
                self.mark("leased", client="group", stream=name, partition=each.partition, fence=each.fence)
        self._ask_lease(client, name, member, partitions, granted, leave=True)

    def _ask_lease(
        self, client: StreamClient, name: str, member: str, partitions: int, held: Sequence[Lease], *, leave: bool
    ) -> Sequence[Lease]:
        self._requests += 1
        request = LeaseRequest(self._requests, "group", name, member, partitions, list(held), leave)
        return client.session.ask("stream_index_service", LEASE, request).leases

    def delete_and_make_anew(self, client: StreamClient, name: str) -> None:
        self.mark("deleting", stream=name)
        client.get_stream(name).delete()
        self.mark("deleted", stream=name)
        self.incarnations[name] = self._incarnation(name) + 1
        self.create(client, name)
        self.push_singly(client, name, 4)

    def truncate(self, client: StreamClient, name: str, before: int) -> None:
        self.mark("truncating", stream=name, before=before)
        client.create(name).truncate(before)
        self.mark("truncated", stream=name, before=before)

    def keep(self, client: StreamClient, name: str, messages: int) -> None:
        """Have a stream keep its newest messages, and wait until older ones are gone."""
        self.mark("keeping", stream=name, messages=messages)
        stream = client.create(name)
        stream.set_retention(Retention(messages=messages))
        self.push_together(client, name, 3 * messages)
        while (first := stream.info().first_index) < 2 * messages:
            pass
        self.mark("truncated", stream=name, before=first)

    def publish_blocks(self) -> None:
        folder = self.root.parent / "chain"
        folder.mkdir()
        chain = ChainGenerator(signing_keys(), shape=BlockShape(item_count=8, item_bytes=300))
        blocks = [join_block(chain.next_items()) for _ in range(BLOCKS)]
        for number, block in enumerate(blocks):
            (folder / f"{number}.blk").write_bytes(block)
        self._command("block", "publish", folder, "--node", self.node.address)
        self.mark("published", blocks=blocks)

    def back_up(self, name: str) -> None:
        folder = self.root / name
        self.mark("backing up", folder=name)
        self._command("backup", folder, "--data-dir", self.data)
        self.mark("backed up", folder=name, content=read_content(folder / FILE_NAME))

    def restore(self, name: str) -> None:
        self.mark("restoring", folder=name)
        self._command("restore", self.root / name, "--data-dir", self.data, "--over")
        self.mark("restored", folder=name)
        self.incarnations = {
            stream: incarnation + LATER_ERA
            for stream, incarnation in {"plain": 0, "busy": 0, **self.incarnations}.items()
        }

    def export(self, client: StreamClient, name: str) -> None:
        """Export the stream to a table. Without the libraries of the export, nothing happens."""
        if not all(map(find_spec, ("pyarrow", "aiosqlite"))):
            return
        info = client.create(name).info()
        self.mark("exporting", stream=name)
        self.recording.run(CHILD, "export", self.root / "new" / "lake", self.node.address, name)
        self.mark("exported", stream=name, first=info.first_index, end=info.next_index)

    def _command(self, *arguments: str | Path) -> None:
        self.recording.run(CHILD, "command", *arguments)

    def _incarnation(self, name: str) -> int:
        return self.incarnations.setdefault(name, 0)

    def _next(self, name: str) -> int:
        key = (name, self._incarnation(name))
        self._numbers[key] = self._numbers.get(key, -1) + 1
        return self._numbers[key]


def read_content(database: Path) -> Mapping[str, Any]:
    """What a database says, with SQLite and nothing of ours.

    streams: name, partition, first and next index and, by index, what `parse` says of each message. saved, fences: rows
    of client, stream, partition and index or fence. floor: that of the fences. blocks: messages of the block node.
    """
    location = f"file:{quote(os.fspath(database))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(location, uri=True)) as connection:

        def rows(table: str, columns: str) -> list[Any]:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            return connection.execute(f"SELECT {columns} FROM {table}").fetchall() if there else []

        streams: dict[tuple[str, int], dict[str, Any]] = {}
        ids: dict[int, dict[str, Any]] = {}
        for stream_id, name, partition, first, end in rows("streams", "id, name, partition, first_index, next_index"):
            ids[stream_id] = {"first": first, "end": end, "messages": {}}
            streams[name, partition] = ids[stream_id]
        blocks: list[bytes] = []
        for stream_id, index, data in rows("messages", "stream_id, idx, data"):
            if ids[stream_id] is streams.get(("block_node.blocks", 0)):
                blocks.append(data)
            else:
                ids[stream_id]["messages"][index] = parse(data)
        return {
            "streams": [[name, partition, each] for (name, partition), each in streams.items()],
            "saved": [list(row) for row in rows("saved_indexes", "client_id, stream_name, partition, idx")],
            "fences": [list(row) for row in rows("lease_fences", "client_id, stream_name, partition, fence")],
            "floor": max((row[0] for row in rows("lease_floor", "fence")), default=0),
            "blocks": blocks,
        }
