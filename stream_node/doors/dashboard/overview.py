"""The overview: the present troubles, the statistics of the node, and its rates as charts. Trends: the lag of
consumers and the rates of streams in the last quarter of an hour, as charts show them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from sys import intern
from typing import NamedTuple

import structlog
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME, STREAM_RIGHTS, Right
from stream_node import __version__
from stream_node.care.patience import Patience
from stream_node.care.trouble import CurrentTroubles, Trouble, TroubleKind
from stream_node.doors.dashboard import troubles
from stream_node.doors.dashboard.history import History, MirrorWatch, Point, Silence
from stream_node.doors.dashboard.listing import read_positions
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.dashboard.rendering import link, number
from stream_node.doors.http.app import json_response
from stream_node.doors.metrics.snapshot import read_figures
from stream_node.fleet.worker_place import has_own_databases
from stream_node.node.identity.endings import Ending, read_endings
from stream_node.node.parts import NodeParts
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.thread_runner import ThreadRunner

ENDINGS_EVERY_S = 5.0
"""The shortest time between two readings of the files of certificates and tokens."""
READ_EVERY_S = 1.0
"""The shortest time between two searches for troubles, for all browsers, commands and scrapes together."""
_MORE: dict[TroubleKind, tuple[str, str]] = {
    "consumer_stuck": ("consumers are stuck", "/consumers"),
    "consumer_beyond_end": ("consumers have positions beyond the end of their stream", "/consumers"),
    "publisher_silent": ("publishers are silent", "/streams"),
    "member_silent": ("members are silent", "/cluster"),
    "token_ends": ("tokens end soon, or have ended", "/access"),
    "block_sources_disagree": ("block sources have another chain", "/blocks"),
    "block_source_failing": ("block sources fail", "/blocks"),
}
"""The text for the troubles of a kind that are not listed, and their page. The other kinds are about mirrors."""


class Overview:
    """The overview of one node. The dashboard's task updates `history`, `silence`, `block_silence` and `mirrors`."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self.history = History()
        self.silence = Silence()
        self.block_silence = Silence()
        self.mirrors = MirrorWatch()
        self._started_s = time.time()
        self._patience = Patience()
        self._consumers_behind = 0
        self._stuck: list[Trouble] = []
        self._troubles = CurrentTroubles(())
        self._read_at_s = float("-inf")
        self._endings: list[Ending] = []
        self._endings_at_s = float("-inf")
        self._reading = trio.Lock()

    async def page(self, page: DashboardPage) -> Response:
        if not page.may(OPERATOR, EVERY_NAME):
            return page.show("overview_closed.html")
        parts = self._parts
        statistics = parts.statistics()
        return page.show(
            "overview.html",
            troubles=listed(await self.troubles()),
            worker=parts.remote_streams.name if parts.remote_streams and has_own_databases(parts.config) else "",
            point=self.history.latest(),
            statistics=statistics,
            condition=parts.condition,
            least_bytes=parts.config.free_disk_bytes_min,
            consumers_behind=self._consumers_behind,
            up_s=max(0.0, time.time() - self._started_s),
            version=__version__,
            data_dir=parts.config.data_dir,
        )

    async def rates(self, page: DashboardPage) -> Response:
        """Returns the points of the charts as JSON, a list for each chart. With `after`, only the later points."""
        page.need(OPERATOR, EVERY_NAME)
        points = self.history.points(page.number("after"))
        rounded = [tuple(None if each is None else round(each, 3) for each in point) for point in points]
        return _columns(page, rounded, len(Point._fields))

    async def troubles(self) -> CurrentTroubles:
        """Returns the troubles of now, or of less than READ_EVERY_S ago.
        While the database cannot be read, the troubles of consumers are those that were known last."""
        self._parts.services.trials.again()
        async with self._reading:
            if trio.current_time() >= self._read_at_s + READ_EVERY_S:
                self._troubles = await self._look()
                self._read_at_s = trio.current_time()
        return self._troubles

    async def _look(self) -> CurrentTroubles:
        unread: str | None = None
        now_us = round(time.time() * 1e6)
        try:
            found = await read_positions(self._parts.runner)
        except StorageError as error:
            unread = str(error)
        else:
            self._consumers_behind = len(found.waiting)
            # The positions have the time of the streams, which differs from the wall clock after a jump.
            streams_us = self._parts.services.now_us()
            # With many consumers this takes long, and clients must be served meanwhile.
            settings = self._parts.config.consumer_stuck_after
            self._stuck = await trio.to_thread.run_sync(
                troubles.find_stuck, found, self._patience, settings, streams_us
            )
        if trio.current_time() >= self._endings_at_s + ENDINGS_EVERY_S:
            self._endings = await trio.to_thread.run_sync(read_endings, self._parts.config)
            self._endings_at_s = trio.current_time()
        now_s = trio.current_time()
        return CurrentTroubles(
            (
                *troubles.of_database(self._parts, unread),
                *troubles.of_disk(self._parts, self.history.latest()),
                *troubles.of_cluster(self._parts),
                *self.mirrors.find(now_s),
                *troubles.of_endings(self._endings, now_us / 1e6),
                *troubles.of_blocks(self._parts, self.block_silence.find(now_s)),
                *self._stuck,
                *troubles.of_publishers(self.silence.find(now_s)),
            )
        )


def listed(current: CurrentTroubles) -> list[Trouble]:
    """Returns the troubles that a page lists: the first ones of each kind, and one entry that counts the others."""
    found: list[Trouble] = []
    for same, left_out in current.listed():
        found += same
        if left_out:
            last = same[-1]
            what, path = _MORE.get(last.kind, ("streams are in the same trouble", "/mirrors"))
            title, remedy = f"{number(left_out)} more {what}", "Mend them like those above."
            found.append(Trouble(last.kind, title, remedy, link(path), "All of them", is_early=last.is_early))
    return found


INTERVAL_S = 15.0
LOOKS_MAX = 60
"""The number of retained samples: a quarter of an hour."""
NAMES_MAX = 500
READING_PAUSES = 20.0
"""A sample, or a search for troubles, is followed by a pause of this many times its duration."""

logger = structlog.get_logger(__name__)


class Look(NamedTuple):
    """One sample for the trends. written: by stream, the messages ever written. lags: by consumer and stream."""

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
                self._looks.append(Look(time.time(), written, lags))
            await trio.sleep(max(INTERVAL_S, READING_PAUSES * (trio.current_time() - began_s)))

    async def send_stream(self, page: DashboardPage) -> Response:
        """Sends a stream's times, written messages per second, and largest visible lag, as JSON."""
        name = page.get("name")
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
        client_id, name = page.get("client"), page.get("stream")
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
