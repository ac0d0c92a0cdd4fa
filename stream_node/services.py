"""Which services a node has: the one place that puts storage, routing and workers together.

The server, the simulation and the tests all start their nodes here, so that what is tested is what runs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from index_service.worker import IndexService, IndexStatistics
from ockam.node import Node
from storage.contract import Operation, StreamRecord
from storage.database import Database
from storage.runner import Runner
from stream_node.config import Config
from stream_service.limits import StreamLimits
from stream_service.workers.service import StreamDirectory, register_service

LIST_PAGE = 10_000


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def random_id() -> str:
    """16 hex digits from the system's randomness."""
    return secrets.token_hex(8)


def stored_streams(database: Database) -> list[StreamRecord]:
    """All streams in the database; about 200 bytes of memory each."""
    session = database.read_session()
    try:
        records: list[StreamRecord] = []
        after = None
        while page := session.log.list_streams(after=after, limit=LIST_PAGE):
            records += page
            after = (page[-1].name, page[-1].partition)
        return records
    finally:
        session.close()


def deliver_done(node: Node, done: list[Operation]) -> None:
    """Tell everybody whose operation is committed, in one batch, so that each connection sends once."""
    with node.batch():
        for operation in done:
            operation.on_done(operation)


class ServicesStatistics(msgspec.Struct, frozen=True):
    """streams: stream-partitions served; for the next five see `stream_service.counters.StreamCounters`."""

    streams: int
    refused: int
    creates_failed: int
    pushes_failed: int
    pulls_failed: int
    write_failure: str | None
    index: IndexStatistics


class Services:
    """The stream service and the index service of one node.

    now_us, new_id: time and randomness, parameters so that a simulation can own them.
    """

    def __init__(
        self,
        node: Node,
        storage: Runner,
        config: Config,
        *,
        now_us: Callable[[], int] = wall_clock_us,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        limits = StreamLimits(
            partitions_max=config.partitions_max,
            streams_max=config.streams_max,
            pull_bytes_max=config.pull_bytes_max,
            error_delay_s=config.error_delay_s,
        )
        self._config = config
        self._node = node
        self._directory = StreamDirectory(node, storage, limits=limits, now_us=now_us, new_id=new_id)
        self._index = IndexService(storage, now_us)

    def start(self, stored: list[StreamRecord]) -> None:
        """Serve the streams that are stored, and whatever is created from now on."""
        for record in stored:
            self._directory.open_stream(record)
        register_service(self._directory, self._config.service_addresses)
        self._index.register(self._node, self._config.index_addresses)

    def statistics(self) -> ServicesStatistics:
        counters = self._directory.counters
        return ServicesStatistics(
            streams=self._directory.count,
            refused=counters.refused,
            creates_failed=counters.creates_failed,
            pushes_failed=counters.pushes_failed,
            pulls_failed=counters.pulls_failed,
            write_failure=counters.write_failure,
            index=self._index.statistics(),
        )
