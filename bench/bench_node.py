"""The node that is measured: a child process on a fresh data directory, which tells at its end how often it synced."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from stream_node.process import NodeProcess

SYNCS_PER_CHECKPOINT = 2
"""Of the write-ahead log and then of the file; a commit is one sync of the log. What the node closes with comes after
its statistics."""


class BenchNode(NodeProcess):
    """A node whose data lies under the working directory, so on a disk and not in a memory file system.

    data_dir: a directory that is kept; without it a fresh one, removed at the end.
    fsyncs_per_second: over the whole life; None before `finish`, or where the node did not say.
    """

    def __init__(
        self, data_dir: Path | None = None, *, environment: Mapping[str, str] | None = None, grouped: bool = True
    ) -> None:
        """grouped: False makes every push a transaction of its own, for comparison."""
        self._directory = tempfile.TemporaryDirectory(prefix=".bench-", dir=".")
        place = Path(self._directory.name)
        super().__init__(
            data_dir if data_dir is not None else place / "data", environment=environment, log_file=place / "node.log"
        )
        self._module = "stream_node" if grouped else "bench.ungrouped"
        self._started_s = 0.0
        self.fsyncs_per_second: float | None = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", self._module, *super().command()[3:]]

    def __enter__(self) -> BenchNode:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        self._started_s = time.perf_counter()
        return self

    def finish(self) -> float | None:
        """Stop it in good order; its syncs per second."""
        lived_s = time.perf_counter() - self._started_s
        self.stop()
        for line in self.log_file.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("event") == "stopped":
                storage = entry["statistics"]["storage"]
                syncs = storage["commits"] + SYNCS_PER_CHECKPOINT * storage["checkpoints"]
                self.fsyncs_per_second = syncs / lived_s
        return self.fsyncs_per_second

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._directory.cleanup()
