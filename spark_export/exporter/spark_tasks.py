"""The tasks of a run as a data source of Spark: each partition is a task, and its rows name the files that the task
wrote.

Only these rows go through the JVM, and the source works with a master and over Spark Connect. Spark repeats a task that
failed; the rows are those of the one attempt that succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_export.exporter.model import FileEntry, Piece, Task
from spark_export.exporter.task import TaskSettings, run_task

FORMAT = "stream_node_export"
OPTION = "job"


class ExportSource(DataSource):
    """The data source. Its option `job` has the tasks and settings as `encode_job` encodes them."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "entry string"

    def reader(self, schema: object) -> DataSourceReader:
        options: Mapping[str, str] = self.options
        return ExportReader(*decode_job(options[OPTION]))


class ExportReader(DataSourceReader):
    """Reads the data source: one partition for each task."""

    def __init__(self, tasks: Sequence[Task], settings: TaskSettings) -> None:
        self._tasks = tasks
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        for entry in run_task(partition.value, self._settings):
            yield (json.dumps(asdict(entry)),)


def encode_job(tasks: Sequence[Task], settings: TaskSettings) -> str:
    """Encodes tasks and settings as JSON. Options are text, and Spark's planner lacks our modules, so it cannot
    unpickle our objects."""
    return json.dumps({"tasks": [asdict(task) for task in tasks], "settings": asdict(settings)})


def decode_job(text: str) -> tuple[list[Task], TaskSettings]:
    job = json.loads(text)
    tasks = [Task(each["number"], tuple(Piece(**piece) for piece in each["pieces"])) for each in job["tasks"]]
    return tasks, TaskSettings(**job["settings"])


def decode_entry(text: str) -> FileEntry:
    return FileEntry(**json.loads(text))
