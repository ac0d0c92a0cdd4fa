"""BenchNode: a node to be measured, in a child process with a fresh data directory. It also counts the node's syncs."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.processes import cpu_seconds, memory_bytes
from stream_node.node.process import NodeProcess

SYNCS_PER_CHECKPOINT = 2
"""A checkpoint syncs the write-ahead log and then the file; a commit is one sync of the log. The node writes its
statistics before the last syncs at its end, so these are not counted."""


class BenchNode(NodeProcess):
    """A node whose data lies under the working directory, so on a disk and not in a memory file system.

    data_dir: a directory that is kept; without it the node gets a fresh one, which is removed at the end.
    fsyncs_per_second: over the whole life of the node; None before `finish`, or without the node's statistics.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        grouped: bool = True,
        arguments: Sequence[str] = (),
    ) -> None:
        """grouped: whether pushes share transactions. If not, each push is a transaction of its own, for comparison."""
        self._directory = tempfile.TemporaryDirectory(prefix=".bench-", dir=".")
        place = Path(self._directory.name)
        super().__init__(
            data_dir if data_dir is not None else place / "data",
            arguments=arguments,
            environment=environment,
            log_file=place / "node.log",
        )
        self._module = "stream_node" if grouped else "bench.servers.ungrouped"
        self._started_s = 0.0
        self.fsyncs_per_second: float | None = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", self._module, *super().command()[3:]]

    def memory_bytes(self) -> int:
        return memory_bytes(self.pid)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def __enter__(self) -> BenchNode:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        self._started_s = time.perf_counter()
        return self

    def finish(self) -> float | None:
        """Stops the node in good order. Returns its syncs a second."""
        lived_s = time.perf_counter() - self._started_s
        self.stop()
        for line in self.log_file.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("event") == "stopped":
                syncs = entry["commits"] + SYNCS_PER_CHECKPOINT * entry["checkpoints"]
                self.fsyncs_per_second = syncs / lived_s
        return self.fsyncs_per_second

    def written_bytes(self) -> int:
        """The bytes that the node has had written to the disk until now (Linux); 0 if the system does not report it."""
        try:
            fields = Path(f"/proc/{self.pid}/io").read_text().split()
        except OSError:
            return 0
        return int(fields[fields.index("write_bytes:") + 1])

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._directory.cleanup()
