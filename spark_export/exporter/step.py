"""A step of an export, which is one commit of its table."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from spark_export.tables.model import IndexRange

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ExportStep:
    """A step of an export, which is one commit of the table.

    run: the number of the run. rows: the number of exported messages, also of those whose key is forgotten.
    data_bytes, file_bytes: the size of the messages' data, and of the files.
    """

    run: int
    ranges: tuple[IndexRange, ...]
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    seconds: float

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.ranges)


async def log_step(step: ExportStep) -> None:
    """Logs a committed step. Programs pass this function to `Exporter.run`, which otherwise logs no steps."""
    logger.info("step published", run=step.run, rows=step.rows, files=step.files, seconds=round(step.seconds, 3))
