"""Executes the tasks of a run as a Spark data source: reading one partition of the source executes one task.

The rows of a partition describe the files that the task wrote. Only these rows pass through the JVM. The source works
with a Spark master and over Spark Connect. Spark repeats a task that failed, and returns the rows of the execution that
succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_export.exporter.model import ExportTask, FileEntry, LeftOutStream, RangePart
from spark_export.exporter.runs.task import TaskSettings, run_task
from spark_export.source.sent_code import Sendable
from spark_export.source.sent_modules import TASK_MODULES

FORMAT = "stream_node_export"
OPTION = "job"


class ExportSource(Sendable, DataSource):
    """A Spark data source that executes the tasks of its option `job` (from `encode_job`), one for each partition."""

    modules = TASK_MODULES

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "entry string"

    def reader(self, schema: object) -> DataSourceReader:
        options: Mapping[str, str] = self.options
        return ExportReader(*decode_job(options[OPTION]))


class ExportReader(Sendable, DataSourceReader):
    modules = TASK_MODULES

    def __init__(self, tasks: Sequence[ExportTask], settings: TaskSettings) -> None:
        self._tasks = tasks
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        written = run_task(self._tasks[partition.value], self._settings)
        rows = [asdict(each) for each in written.files] + [asdict(each) for each in written.left_out]
        for row in rows:
            yield (json.dumps(row),)


def encode_job(tasks: Sequence[ExportTask], settings: TaskSettings) -> str:
    """Returns tasks and settings as JSON text. Spark's planner lacks the modules of this project, so it cannot
    unpickle."""
    return json.dumps({"tasks": [asdict(task) for task in tasks], "settings": asdict(settings)})


def decode_job(text: str) -> tuple[list[ExportTask], TaskSettings]:
    job = json.loads(text)
    tasks = [ExportTask(each["number"], tuple(RangePart(**piece) for piece in each["pieces"])) for each in job["tasks"]]
    return tasks, TaskSettings(**job["settings"])


def decode_entry(text: str) -> FileEntry | LeftOutStream:
    """Returns a file that a task wrote, or a stream that a task left out, from a row of the data source."""
    fields = json.loads(text)
    return LeftOutStream(**fields) if "reason" in fields else FileEntry(**fields)
