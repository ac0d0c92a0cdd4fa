"""Writes log lines to stderr, one for each event: as text at a terminal, otherwise as JSON."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any, TextIO, cast

import structlog
import structlog.tracebacks

from stream_node.cli.values import printable
from stream_node.node import log_writer
from stream_node.node.log_writer import LogWriter

FIRST_S, LONGEST_S = 1.0, 3_600.0
"""The shortest and the longest time between two lines about one event. Each is twice the one before."""
QUIET_S = 600.0
"""An event that has not come for this long is a new one."""
EVENTS_MAX = 1_000
"""The largest number of different events that are remembered. Further ones are written each time."""
REPEATED_LEVELS = frozenset({"warning", "error", "critical"})
NUMBERED = frozenset({"partition", "index", "block"})
"""The fields whose numbers name the subject of an event. Other numbers are amounts, and differ each time."""
_DIGITS = re.compile(r"\d+")


class _Event:
    __slots__ = ("count", "interval_s", "latest", "level", "until_s")

    def __init__(self, level: str, now_s: float) -> None:
        self.level = level
        self.interval_s = FIRST_S
        self.until_s = now_s + FIRST_S
        self.count = 0
        self.latest: dict[str, Any] = {}

    def take(self, now_s: float) -> int:
        """Returns the number of events that were not written, and begins to count anew."""
        count, self.count = self.count, 0
        self.interval_s = min(2 * self.interval_s, LONGEST_S)
        self.until_s = now_s + self.interval_s
        return count


class RepeatedEvents:
    """A processor of structlog that drops and counts repeated warnings and errors. Threads share it.

    A source that is down causes the same line at each try. The first one is written at once. While the event goes on, a
    line reports its count after one second, then after two, up to once in an hour."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._events: dict[Hashable, _Event] = {}

    def __call__(self, logger: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if level not in REPEATED_LEVELS or "repeated" in event:
            return event
        key, now_s = _key_of(event), self._now_s()
        with self._lock:
            known = self._events.get(key)
            if known is None:
                if len(self._events) < EVENTS_MAX:
                    self._events[key] = _Event(level, now_s)
                return event
            if now_s < known.until_s:
                known.count += 1
                known.latest = dict(event)
                raise structlog.DropEvent
            count = known.take(now_s)
        return {**event, "repeated": count + 1} if count else event

    def tell(self, logger: Any, *, is_end: bool = False) -> None:
        """Writes the events that were counted for long enough; all of them at the end. It is called every second."""
        now_s, due = self._now_s(), []
        with self._lock:
            for key, event in list(self._events.items()):
                if event.count and (is_end or now_s >= event.until_s):
                    due.append((event.level, {**event.latest, "repeated": event.take(now_s)}))
                elif not event.count and now_s >= event.until_s + QUIET_S:
                    del self._events[key]
        for level, fields in due:
            getattr(logger, level)(fields.pop("event"), **fields)


def _key_of(event: Mapping[str, Any]) -> Hashable:
    """Returns the part that equal events share: their texts, without the port of a peer and the numbers of a reason."""
    return tuple(
        (name, _DIGITS.sub("0", value) if name == "reason" else value.rpartition(":")[0] if name == "peer" else value)
        for name, value in event.items()
        if isinstance(value, str) or name in NUMBERED
    )


LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
PLAIN = "\x1b[0m"
TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
"""Turns an exception into its traceback, without the local variables: these could be keys, tokens or messages."""


REPEATED = RepeatedEvents()
"""The repeated events of this process. A node writes the counts each second."""


class NodeLogger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]
    """The class of all loggers. `set_level` changes its methods: those below the level do nothing, at no cost."""


def set_level(level: str) -> None:
    """Changes the lowest level that is logged, one of `LEVELS`, also for the loggers that exist."""
    logging.getLogger().setLevel(LEVELS[level])
    for name, method in vars(structlog.make_filtering_bound_logger(LEVELS[level])).items():
        if not name.startswith("__"):
            setattr(NodeLogger, name, method)


def configure_logs(level: str, *, counts_repeated: bool = False) -> None:
    """Sends all log lines of this process to stderr, including those of libraries.
    counts_repeated: whether repeated events are counted (`REPEATED`); the caller has to write the counts."""
    level_and_time = (structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True))
    written: tuple[structlog.typing.Processor, ...]
    # People read text, programs read JSON.
    if sys.stderr.isatty():
        coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        written = (structlog.processors.format_exc_info, HumanLine(coloured))
    else:
        written = (TRACEBACKS, structlog.processors.JSONRenderer())
    # All lines go through one thread, so that no task waits for the reader of stderr.
    writer = log_writer.writer_of_process = LogWriter(sys.stderr)
    atexit.register(writer.close)
    handler = logging.StreamHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *level_and_time],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
        )
    )
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    # The node reports an upgrade in its own words.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *((REPEATED,) if counts_repeated else ()),
            *level_and_time,
            *written,
        ],
        wrapper_class=NodeLogger,
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, writer)),
        cache_logger_on_first_use=True,
    )
    set_level(level)


class HumanLine:
    """Formats an event for people, such as `08:15:00Z warning push failed stream=orders reason='the disk is full'`.
    Fields whose values are mappings are left out: they are for programs, which read JSON. Control characters in the
    text are escaped, because peers choose some of it."""

    def __init__(self, coloured: bool) -> None:
        self._coloured = coloured

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        time = str(event.pop("timestamp", ""))[11:19]
        level = str(event.pop("level", method))
        traceback = event.pop("exception", None)
        what = printable(str(event.pop("event", "")).replace("_", " "))
        colour = COLOURS.get(level, "") if self._coloured else ""
        head = f"{time}Z {colour}{level:7}{PLAIN if colour else ''}  {what}"
        fields = [f"{name}={_shown(value)}" for name, value in event.items() if not isinstance(value, Mapping)]
        lines = ["  ".join(filter(None, (head, " ".join(fields))))]
        lines += (f"    {printable(each)}" for each in str(traceback).splitlines()) if traceback else ()
        return "\n".join(lines)


def _shown(value: object) -> str:
    """Returns a simple word unchanged, any other value in quotes, so that a reader sees where it ends."""
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(" '\"="):
        return value
    return printable(repr(value))
