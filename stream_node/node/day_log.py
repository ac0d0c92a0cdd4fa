"""The log lines that a node writes about itself: its start, its busiest clients, repeated events, and its stop.
docs/operating.md lists the questions about a day that these lines answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog
import trio

from ockam.identity.token import hide_tokens
from ockam.transport.roster import Roster, Traffic
from stream_node.node.config_sources import Setting
from stream_node.node.logs import REPEATED
from stream_node.node.parts import ServerStatistics
from stream_node.version import __version__

CLIENTS_EVERY_S = 3_600.0
CLIENTS_MAX = 10

logger = structlog.get_logger(__name__)


def log_started(settings: Iterable[Setting], addresses: list[str], http: list[str], grpc: Sequence[str] = ()) -> None:
    """Logs the version of a node, its addresses, and each setting that was given, with its origin."""
    shown = ((each, each.value if isinstance(each.value, tuple) else (each.value,)) for each in settings if each.where)
    given = [f"{each.name}={hide_tokens(','.join(map(str, values)))} ({each.where})" for each, values in shown]
    logger.info("started", version=__version__, addresses=addresses, http=http, grpc=list(grpc), settings=given)


class DayLog:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._before: dict[str, Traffic] = {}
        self._started_s = self._since_s = trio.current_time()

    async def run(self) -> None:
        while True:
            await trio.sleep(1)
            REPEATED.tell(logger)
            if trio.current_time() >= self._since_s + CLIENTS_EVERY_S:
                self._report_to_clients()

    def end(self, found: ServerStatistics) -> None:
        """Writes the counts since the last lines, and that the node has stopped. found: the statistics of its run."""
        self._report_to_clients()
        REPEATED.tell(logger, is_end=True)
        logger.info(
            "stopped",
            up_s=round(trio.current_time() - self._started_s, 1),
            connections=found.tcp.accepted,
            http_requests=0 if found.http is None else sum(found.http.requests.values()),
            commits=found.storage.commits,
            checkpoints=found.storage.checkpoints,
            stored=found.storage.rows,
            pushes_failed=found.services.pushes_failed,
            refused=found.services.refused + found.services.index.refused,
        )

    def _report_to_clients(self) -> None:
        before, self._before = self._before, self._roster.traffic()
        grown = [(party, now.less(before.get(party, Traffic()))) for party, now in self._before.items()]
        busiest = sorted(grown, key=lambda each: -(each[1].received_bytes + each[1].sent_bytes))[:CLIENTS_MAX]
        clients = [
            f"{party} sent {each.received_bytes} bytes in {each.received} messages and received {each.sent_bytes} in "
            f"{each.sent}"
            for party, each in busiest
            if each.received or each.sent
        ]
        since_s, self._since_s = self._since_s, trio.current_time()
        if clients:
            logger.info("busiest_clients", seconds=round(self._since_s - since_s), clients=clients)
