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

from spark_export.errors import ConnectionBroken, OptionError, SourceError, SourceUnreachable
from spark_export.exporter.errors import FolderNotSeen, RangeIncomplete
from spark_export.exporter.model import ExportTask, FileEntry, LeftOutStream
from spark_export.exporter.tables.file_target import open_target
from spark_export.exporter.tables.write_files import TableWriter, check_complete
from spark_export.source.node_client import NodeConnection
from spark_export.source.options import ReadOptions, read_options
from spark_export.source.plan import ReadRange
from spark_export.source.range_reader import RangeReader

PROGRESS = ">QQ"
"""The `struct` format of a progress file: written rows and bytes. A compiled `Struct` cannot be sent to an executor."""
PROGRESS_BYTES = struct.calcsize(PROGRESS)
PROGRESS_SUFFIX = ".progress"


@dataclass(frozen=True)
class TaskSettings:
    """The settings that all tasks of a run share.

    source: the options of the Spark data source that reads the node, such as its endpoint.
    folder: the folder for the files of tasks, and for their progress.
    with_stream: whether the files have a column `stream`.
    codec: the Parquet compression.
    store: the address on a store to which tasks write their files, or empty for files in `folder`. With a store, tasks
        on other machines need no access to `folder`.
    store_options: the options of the store, without secrets, since Spark shows the options.
    hive: whether each file is in a folder `stream=…/date=…`.
    """

    source: dict[str, str]
    folder: str = ""
    with_stream: bool = False
    codec: str = "zstd"
    store: str = ""
    store_options: dict[str, str] = field(default_factory=dict)
    hive: bool = False


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: complete and synced files, and the streams that could not be read.

    files: the files, with paths relative to `TaskSettings.folder` or `TaskSettings.store`.
    left_out: the streams of which a part could not be read. The task returns no files of these streams, but other tasks
        can have written some.
    """

    files: list[FileEntry]
    left_out: list[LeftOutStream]


def run_task(task: ExportTask, settings: TaskSettings) -> TaskResult:
    """Executes a task once. The caller removes the files after an error, and those of streams that are left out.

    If a stream cannot be read, the task goes on with the other streams. Raises SourceUnreachable if the node no longer
    answers, FolderNotSeen, StoreError and OSError.
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
    left_out: dict[str, LeftOutStream] = {}
    try:
        for piece in task.pieces:
            if piece.stream in left_out:
                continue
            assigned = json.dumps({piece.stream: [piece.partition]})
            chosen = {"assign": assigned, "includeHeaders": "true", "failOnDataLoss": "true"}
            options = read_options(settings.source | chosen)
            wanted = ReadRange(piece.stream, piece.partition, piece.start_index, piece.end_index, piece.made_us)
            try:
                for batch in check_complete(piece, RangeReader(wanted, options).batches()):
                    writer.write(piece.stream, piece.era, batch)
                    if progress is not None:
                        os.pwrite(progress, struct.pack(PROGRESS, writer.rows, writer.data_bytes), 0)
            except (SourceError, RangeIncomplete) as error:
                if isinstance(error, OptionError) or not _is_of_the_stream(error, options):
                    raise
                # The rows that were read before the error must not be published without the rows after them.
                writer.discard(piece.stream)
                left_out[piece.stream] = LeftOutStream(piece.stream, f"{piece.stream}/{piece.partition}: {error}")
        return TaskResult(writer.close(), list(left_out.values()))
    finally:
        writer.abort()
        if progress is not None:
            os.close(progress)


def _open_progress(path: Path, settings: TaskSettings) -> int | None:
    """Creates the progress file of a task. Returns its descriptor; None if a task on a store has no such folder."""
    if path.parent.is_dir():
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    if settings.store:
        return None
    raise FolderNotSeen(
        f"the executor on {socket.gethostname()} does not see {path.parent}: a cluster exports into a folder that all "
        "machines see under one path, or to a store such as s3://BUCKET/PREFIX"
    )


def _is_of_the_stream(error: Exception, options: ReadOptions) -> bool:
    """Returns whether an error concerns only the stream that was being read, so that the task can go on.

    The node also closes the connection at a damaged page of one stream. So this function sends another request, and
    returns False if the node does not answer.
    """
    if options.path is not None or not isinstance(error, (SourceUnreachable, ConnectionBroken)):
        return True
    try:
        with NodeConnection.to(options) as node:
            next(node.list_streams(), None)
    except SourceError:
        return False
    return True


def read_progress(folder: Path) -> tuple[int, int]:
    """Returns the rows and bytes of data that tasks have written. A repeated task counts twice; only for a display."""
    rows = data_bytes = 0
    for path in folder.glob(f"*{PROGRESS_SUFFIX}"):
        content = path.read_bytes()
        if len(content) == PROGRESS_BYTES:
            found = struct.unpack(PROGRESS, content)
            rows, data_bytes = rows + found[0], data_bytes + found[1]
    return rows, data_bytes
