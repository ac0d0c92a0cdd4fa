"""Log lines: JSON, one event a line, on stderr. What is logged is the business of whoever logs."""

from __future__ import annotations

import atexit
import logging
import sys
from typing import TextIO, cast

import structlog

from stream_node.log_writer import LogWriter

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: str) -> None:
    """Send every log line of this process to stderr from now on, libraries' too. `level` is one of LEVELS."""
    level_and_time = (structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True))
    written = (structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer())
    writer = LogWriter(sys.stderr)
    atexit.register(writer.close)
    handler = logging.StreamHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *level_and_time],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
        )
    )
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *level_and_time, *written],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, writer)),
        cache_logger_on_first_use=True,
    )
