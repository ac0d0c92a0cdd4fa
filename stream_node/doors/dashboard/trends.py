"""Trends: the lag of consumers and the rates of streams in the last quarter of an hour, as charts show them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from sys import intern
from time import time
from typing import NamedTuple

import structlog
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from stream_node.doors.dashboard.page import DashboardPage
from stream_node.doors.http.app import json_response
from stream_node.doors.metrics.snapshot import read_figures
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.thread_runner import ThreadRunner

INTERVAL_S = 15.0
LOOKS_MAX = 60
"""The number of retained samples: a quarter of an hour."""
NAMES_MAX = 500
READING_PAUSES = 20.0
"""A sample that took long is followed by a pause of this many times its duration."""

logger = structlog.get_logger(__name__)


class Look(NamedTuple):
    """One sample. written: the number of messages ever written, by stream. lags: by consumer and stream."""

    time_s: float
    written: dict[str, int]
    lags: dict[tuple[str, str], int]


class Trends:
    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=LOOKS_MAX)

    async def watch(self, runner: ThreadRunner) -> None:
        while True:
            began_s = trio.current_time()
            try:
                found = await read_figures(runner, NAMES_MAX)
            except StorageClosed:
                return
            except StorageError as error:
                logger.error("figures_not_read", reason=str(error))
            else:
                # Each name is in memory once, and not once for each sample.
                written = {intern(each.name): each.written for each in found.streams}
                lags = {(intern(each.client_id), intern(each.stream)): each.lag for each in found.consumers}
                self._looks.append(Look(time(), written, lags))
            await trio.sleep(max(INTERVAL_S, READING_PAUSES * (trio.current_time() - began_s)))

    async def send_stream(self, page: DashboardPage) -> Response:
        """Sends a stream's times, written messages per second, and largest visible lag, as JSON."""
        name = page.query.get("name", "")
        page.need(STREAM_RIGHTS, name)
        points = []
        for before, look in pairwise(self._looks):
            lags = [
                lag for (client, stream), lag in look.lags.items() if stream == name and page.may(Right.INDEX, client)
            ]
            points.append((look.time_s, _rate(before, look, name), max(lags, default=None)))
        return _columns(page, points, 3)

    async def send_consumer(self, page: DashboardPage) -> Response:
        """Sends a consumer's times, lag, and messages per second written and read, as JSON."""
        client_id, name = page.query.get("client", ""), page.query.get("stream", "")
        page.need(Right.INDEX, client_id)
        page.need(STREAM_RIGHTS, name)
        points = []
        for before, look in pairwise(self._looks):
            lag, lag_before = look.lags.get((client_id, name)), before.lags.get((client_id, name))
            rate = read = _rate(before, look, name)
            if rate is not None and lag is not None and lag_before is not None:
                # Messages that were written and do not wait were read, or deleted before.
                read = max(0.0, rate - (lag - lag_before) / (look.time_s - before.time_s))
            points.append((look.time_s, lag, rate, read if lag is not None else None))
        return _columns(page, points, 4)


def _rate(before: Look, look: Look, name: str) -> float | None:
    if name not in before.written or name not in look.written or look.time_s <= before.time_s:
        return None
    # A stream that was made again begins anew.
    return max(0, look.written[name] - before.written[name]) / (look.time_s - before.time_s)


def _columns(page: DashboardPage, points: Sequence[tuple[float | None, ...]], width: int) -> Response:
    after_s = page.number("after")
    kept = [point for point in points if (point[0] or 0.0) > after_s]
    return json_response({"columns": list(zip(*kept, strict=True)) or [()] * width})
