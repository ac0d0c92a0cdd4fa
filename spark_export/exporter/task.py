"""Runs one task: reads parts of partitions from the node and writes the messages as Parquet files.

Tasks run on Spark executors, or in threads of the exporter. A task needs only the standard library, pyarrow and
PySpark; `spark_export.registration.send_by_value` sends the modules of this project to executors. A task writes all its
files into one existing folder. The file names contain a random id, so that a repeated task overwrites no file.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from spark_export.exporter.errors import FolderNotSeen
from spark_export.exporter.file_target import open_target
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
    files of tasks, and for their progress. with_stream: whether the files have a column `stream`. codec: the Parquet
    compression. store: the address in a store below which tasks write their files, or empty for files in `folder`;
    tasks on other machines then do not see `folder`, and do not need it. store_options: the options of the store,
    without secrets, since Spark shows them. hive: whether each file is in a folder `stream=…/date=…`.
    """

    source: dict[str, str]
    folder: str = ""
    with_stream: bool = False
    codec: str = "zstd"
    store: str = ""
    store_options: dict[str, str] = field(default_factory=dict)
    hive: bool = False


def run_task(task: Task, settings: TaskSettings) -> list[FileEntry]:
    """Executes a task once. Returns the complete and synced files, with paths relative to `settings.folder`, or to
    `settings.store`.

    Raises FolderNotSeen, RangeIncomplete, and SourceErrors of the reader. After an error, the files written so far
    stay until the run removes them.
    """
    folder = Path(settings.folder)
    attempt = f"{task.number:05d}-{uuid.uuid4().hex}"
    progress = _open_progress(folder / f"{attempt}{PROGRESS_SUFFIX}", settings)
    writer = TableWriter(
        open_target(folder, settings.store, settings.store_options),
        f"part-{attempt}" if settings.hive else attempt,
        with_stream=settings.with_stream,
        hive=settings.hive,
        codec=settings.codec,
    )
    try:
        for piece in task.pieces:
            assigned = json.dumps({piece.stream: [piece.partition]})
            chosen = {"assign": assigned, "includeHeaders": "true", "failOnDataLoss": "true"}
            wanted = Range(piece.stream, piece.partition, piece.start_index, piece.end_index, piece.made_us)
            reader = RangeReader(wanted, read_options(settings.source | chosen))
            for batch in check_complete(piece, reader.batches()):
                writer.write(piece.stream, piece.era, batch)
                if progress is not None:
                    os.pwrite(progress, struct.pack(PROGRESS, writer.rows, writer.data_bytes), 0)
        return writer.close()
    finally:
        writer.abort()
        if progress is not None:
            os.close(progress)


def _open_progress(path: Path, settings: TaskSettings) -> int | None:
    """Makes a task's progress file. Returns its descriptor, or None on another machine that writes to a store.

    Raises FolderNotSeen.
    """
    if path.parent.is_dir():
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    if settings.store:
        return None
    raise FolderNotSeen(
        f"the executor on {socket.gethostname()} does not see {path.parent}: a cluster exports into a folder that all "
        "machines see under one path, or to a store such as s3://BUCKET/PREFIX"
    )


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
