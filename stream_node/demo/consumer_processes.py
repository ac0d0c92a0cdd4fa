"""Starts and kills the consumer processes of the demo, and reads the messages that they have received."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from stream_node.demo.consumer import read_records


class ConsumerProcesses:
    """The consumer processes of the demo, from the start to the end of a block. Each has a file for its messages.
    door: the node to which the consumers connect. store: the node that has the stream, which they reach through the
    door. partitions: by the name of the consumer."""

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
            self._processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stream_node.demo.consumer",
                    *self._arguments,
                    partitions,
                    name,
                    self._file(name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def records(self, name: str) -> list[tuple[int, int, bytes]]:
        """Returns the partition, index and data of every message that this consumer has read, before and after its
        kill."""
        return read_records(self._file(name))

    async def wait_more(self) -> None:
        """Waits until each consumer has written at least one more message to its file."""
        sizes = {name: self._file(name).stat().st_size for name in self._partitions if self._file(name).exists()}
        while True:
            if all(self._file(name).stat().st_size > size for name, size in sizes.items()):
                return
            await trio.sleep(0.01)

    async def wait_read(self, last_indexes: Mapping[int, int]) -> None:
        """Waits until all partitions are read up to their last index. Raises RuntimeError if a consumer process has
        ended."""
        for name, partitions in self._partitions.items():
            wanted = {(partition, last_indexes[partition]) for partition in partitions if partition in last_indexes}
            while not wanted <= {(partition, index) for partition, index, _ in self.records(name)}:
                if self._processes[name].poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self._directory / f'{name}.log').read_text()[-500:]}")
                await trio.sleep(0.1)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.records"
