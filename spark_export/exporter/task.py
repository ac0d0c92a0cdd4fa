"""What a task does: read its pieces from the node and write them as files. It runs on executors, or in a thread.

It needs the standard library, pyarrow and PySpark only; `spark_export.registration.send_by_value` sends the rest along.
Everything that a task makes is in one folder that is there before it starts, under names that no other attempt has.
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
    """How tasks read and write. source: options of the source, such as its endpoint. folder: where files go.

    with_stream: whether the files have a column `stream`. codec: Parquet's compression.
    """

    source: dict[str, str]
    folder: str = ""
    with_stream: bool = False
    codec: str = "zstd"


def run_task(task: Task, settings: TaskSettings) -> list[FileEntry]:
    """The files of one attempt, whole and synced, with names below `settings.folder`.

    Raises RangeIncomplete, and SourceErrors of the reader. What a failed attempt leaves is swept with the folder.
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
    """Rows and bytes of data that the attempts in that folder have taken so far.

    An attempt that was given up counts with the one that replaced it: it is a figure to look at.
    """
    rows = data_bytes = 0
    for path in folder.glob(f"*{PROGRESS_SUFFIX}"):
        content = path.read_bytes()
        if len(content) == PROGRESS_BYTES:
            found = struct.unpack(PROGRESS, content)
            rows, data_bytes = rows + found[0], data_bytes + found[1]
    return rows, data_bytes
