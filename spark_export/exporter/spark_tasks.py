"""Tasks of a run as a data source of Spark's: a partition is a task, its rows are the files that the task wrote.

Only this manifest goes through the JVM, and it works with a master as over Spark Connect. Spark tries a task that
failed again; the rows are those of the one attempt that succeeded.
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
    """Option `job`: tasks and settings as `encode_job` makes them."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "entry string"

    def reader(self, schema: object) -> DataSourceReader:
        options: Mapping[str, str] = self.options
        return ExportReader(*decode_job(options[OPTION]))


class ExportReader(DataSourceReader):
    """One partition a task."""

    def __init__(self, tasks: Sequence[Task], settings: TaskSettings) -> None:
        self._tasks = tasks
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        for entry in run_task(partition.value, self._settings):
            yield (json.dumps(asdict(entry)),)


def encode_job(tasks: Sequence[Task], settings: TaskSettings) -> str:
    """As JSON: options are text, and Spark's planner has nothing of ours to unpickle with."""
    return json.dumps({"tasks": [asdict(task) for task in tasks], "settings": asdict(settings)})


def decode_job(text: str) -> tuple[list[Task], TaskSettings]:
    job = json.loads(text)
    tasks = [Task(each["number"], tuple(Piece(**piece) for piece in each["pieces"])) for each in job["tasks"]]
    return tasks, TaskSettings(**job["settings"])


def decode_entry(text: str) -> FileEntry:
    return FileEntry(**json.loads(text))
