"""Runs one task: reads parts of partitions from the node and writes the messages as Parquet files.

Tasks run on Spark executors, or in threads of the exporter. A task needs only the standard library, pyarrow and
PySpark; `spark_export.registration.send_by_value` sends the modules of this project to executors. A task writes all its
files into one existing folder. The file names contain a random id, so that a repeated task overwrites no file.
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
"""The `struct` format of a progress file: the numbers of written rows and of bytes of message data.

It is text, since a compiled `Struct` cannot be sent to an executor."""
PROGRESS_BYTES = struct.calcsize(PROGRESS)
PROGRESS_SUFFIX = ".progress"


@dataclass(frozen=True)
class TaskSettings:
    """The settings that all tasks of a run share.

    source: the options of the Spark data source that reads the node, such as its endpoint. folder: the folder for the
    files of tasks. with_stream: whether the files have a column `stream`. codec: the Parquet compression.
    """

    source: dict[str, str]
    folder: str = ""
    with_stream: bool = False
    codec: str = "zstd"


def run_task(task: Task, settings: TaskSettings) -> list[FileEntry]:
    """Executes a task once. Returns the complete and synced files, with paths relative to `settings.folder`.

    Raises RangeIncomplete, and SourceErrors of the reader. After an error, the files written so far stay in the folder
    until the run removes the folder.
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
    """Returns how many rows, and bytes of message data, all tasks have written into this folder so far.

    A failed task and its repetition both count, so the numbers are only good for a progress display.
    """
    rows = data_bytes = 0
    for path in folder.glob(f"*{PROGRESS_SUFFIX}"):
        content = path.read_bytes()
        if len(content) == PROGRESS_BYTES:
            found = struct.unpack(PROGRESS, content)
            rows, data_bytes = rows + found[0], data_bytes + found[1]
    return rows, data_bytes
