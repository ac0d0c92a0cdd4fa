"""The setting `traces` of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from stream_node.node.config import Config, ConfigError

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing

SERVICE = "stream-node"
"""The name of a node in its spans, unless OTEL_SERVICE_NAME gives another one."""

logger = structlog.get_logger(__name__)


def start_traces(config: Config) -> Tracing | None:
    """Returns the maker of the node's spans, or None if the setting `traces` is not given. Raises ConfigError."""
    if config.traces is None:
        return None
    # Only a node that traces loads OpenTelemetry, which takes a third of a second.
    from ockam.tracing.opening import TracingUnavailable, open_tracing

    try:
        return open_tracing(config.traces, SERVICE, _note_outage)
    except TracingUnavailable as error:
        raise ConfigError(f"traces: {error}") from error


def _note_outage(is_failing: bool) -> None:
    """Logs in one line that the collector begins to fail, or is back. The metrics have the numbers of lost spans."""
    if is_failing:
        logger.warning("traces_not_exported")
    else:
        logger.info("traces_exported_again")


async def end_traces(tracing: Tracing | None) -> None:
    if tracing is None:
        return
    with trio.CancelScope(shield=True):
        try:
            await trio.to_thread.run_sync(tracing.close)
        except RuntimeError:
            # The system has no room for one more thread. No other task is left, so this thread may wait.
            tracing.close()
    found = tracing.statistics()
    logger.info(
        "traces_ended", exported=found.exported, failed=found.failed, dropped=found.dropped, waiting=found.waiting
    )
