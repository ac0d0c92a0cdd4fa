"""One task: it reads its pieces from the node and writes them as files. Tasks run on executors, or in a thread.

A task needs the standard library, pyarrow and PySpark only; `spark_export.registration.send_by_value` sends our own
modules along. A task writes all its files into one existing folder, under names that no other attempt uses.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

from spark_export.exporter.model import FileEntry, Task
from spark_export.exporter.write_files import TableWriter, check_complete
from spark_export.options import read_options
from spark_export.plan import Range
from spark_export.range_reader import RangeReader

PROGRESS = ">QQ"
"""Rows and bytes. Not a compiled `Struct`, which cannot be sent to an executor."""
PROGRESS_BYTES = struct.calcsize(PROGRESS)
PROGRESS_SUFFIX = ".progress"


@dataclass(frozen=True)
class TaskSettings:
    """The settings of all tasks of a run. source: the options of the data source, such as its endpoint. folder: the
    folder for files. with_stream: whether the files have a column `stream`. codec: the compression of Parquet.
    """

    source: dict[str, str]
    folder: str = ""
    with_stream: bool = False
    codec: str = "zstd"


def run_task(task: Task, settings: TaskSettings) -> list[FileEntry]:
    """Carries out one attempt at a task. Returns its complete and synced files, with names relative to
    `settings.folder`.

    Raises RangeIncomplete, and SourceErrors of the reader. The run removes files of failed attempts together with the
    folder.
    """
    folder = Path(settings.folder)
    attempt = f"{task.number:05d}-{uuid.uuid4().hex}"
    writer = TableWriter(folder, attempt, with_stream=settings.with_stream, codec=settings.codec)
    progress = os.open(folder / f"{attempt}{PROGRESS_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for piece in task.pieces:
            assigned = json.dumps({piece.stream: [piece.partition]})
            chosen = {"assign": assigned, "includeHeaders": "true", "failOnDataLoss": "true"}
            wanted = Range(piece.stream, piece.partition, piece.start_index, piece.end_index, piece.made_us)
            reader = RangeReader(wanted, read_options(settings.source | chosen))
            for batch in check_complete(piece, reader.batches()):
                writer.write(piece.stream, piece.era, batch)
                os.pwrite(progress, struct.pack(PROGRESS, writer.rows, writer.data_bytes), 0)
        return writer.close()
    finally:
        writer.abort()
        os.close(progress)


def read_progress(folder: Path) -> tuple[int, int]:
    """The rows and bytes that the attempts in this folder have written so far.

    An abandoned attempt counts, and so does the one that replaced it: the figure only serves as a display.
    """
    rows = data_bytes = 0
    for path in folder.glob(f"*{PROGRESS_SUFFIX}"):
        content = path.read_bytes()
        if len(content) == PROGRESS_BYTES:
            found = struct.unpack(PROGRESS, content)
            rows, data_bytes = rows + found[0], data_bytes + found[1]
    return rows, data_bytes
