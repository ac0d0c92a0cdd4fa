"""A consumer process of the demo. It reads some partitions and appends their messages to a file until it is killed.

    python -m stream_node.demo.consumer NODE VIA STREAM PARTITIONS CLIENT_ID FILE

The file has one line for each message: its partition, its index and its data as a JSON list, with the data in base64.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import trio

from ockam.actors.address import tcp
from stream_client import connect

RECORDS = msgspec.json.Decoder(tuple[int, int, bytes])


async def consume(node: str, via: str, name: str, partitions: list[int], client_id: str, file: Path) -> None:
    with file.open("a+b") as out:
        # A consumer that was killed may have left an incomplete record at the end.
        out.seek(0)
        out.truncate(out.read().rfind(b"\n") + 1)
        async with connect(node, via=(tcp(via),)) as client:
            stream = await client.create_partitioned(name, max(partitions) + 1)
            async for partition, message in stream.consumer(client_id, partitions=partitions).messages():
                # Each message is flushed before its position is saved, so that a kill loses none.
                out.write(msgspec.json.encode((partition, message.index, message.data)) + b"\n")
                out.flush()


class ConsumerProcesses:
    """The consumer processes of the demo, each with a file for its messages.
    door: the node to which they connect. store: the node that has the stream. partitions: by name of the consumer."""

    def __init__(
        self, directory: Path, door: str, store: str, stream: str, partitions: Mapping[str, Sequence[int]]
    ) -> None:
        self._directory = directory
        self._arguments = (door, store, stream)
        self._partitions = partitions
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> ConsumerProcesses:
        for name in self._partitions:
            self.start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str) -> None:
        partitions = ",".join(map(str, self._partitions[name]))
        with (self._directory / f"{name}.log").open("ab") as log:
            program = (sys.executable, "-m", "stream_node.demo.consumer", *self._arguments)
            self._processes[name] = subprocess.Popen(
                [*program, partitions, name, self._file(name)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def records(self, name: str) -> list[tuple[int, int, bytes]]:
        """Returns the partition, index and data of each record. An incomplete last one is left out."""
        content = self._file(name).read_bytes() if self._file(name).exists() else b""
        return RECORDS.decode_lines(content[: content.rfind(b"\n") + 1])

    async def wait_more(self) -> None:
        """Waits until each consumer that has a file has written more to it."""
        sizes = {name: self._file(name).stat().st_size for name in self._partitions if self._file(name).exists()}
        while True:
            if all(self._file(name).stat().st_size > size for name, size in sizes.items()):
                return
            await trio.sleep(0.01)

    async def wait_read(self, last_indexes: Mapping[int, int]) -> None:
        """Waits until all partitions are read. Raises RuntimeError if a consumer process has ended."""
        for name, partitions in self._partitions.items():
            wanted = {(partition, last_indexes[partition]) for partition in partitions if partition in last_indexes}
            while not wanted <= {(partition, index) for partition, index, _ in self.records(name)}:
                if self._processes[name].poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self._directory / f'{name}.log').read_text()[-500:]}")
                await trio.sleep(0.1)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.records"


if __name__ == "__main__":
    node, via, name, partitions, client_id, file = sys.argv[1:]
    trio.run(consume, node, via, name, [int(part) for part in partitions.split(",")], client_id, Path(file))
