"""Reads the messages of index ranges for the tasks of the small engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from spark_export.errors import OptionError, SourceError, SourceUnreachable
from spark_export.source.options import read_options
from spark_export.source.plan import ReadRange
from spark_export.source.range_reader import RangeReader
from spark_export.tables.errors import RangeIncomplete
from spark_export.tables.model import IndexRange


class ExportReader:
    """Reads ranges from a node, or from its database file.

    source: the options of the Spark format that say where the node is. answers: asks the node something; raises if the
        node does not answer.
    """

    def __init__(self, source: Mapping[str, str], answers: Callable[[], object]) -> None:
        self._source = {"columns": "stream", **source}
        self._answers = answers

    def read(self, wanted: IndexRange) -> Iterator[pa.RecordBatch]:
        """Yields the messages of a range, in order. Raises SourceError."""
        of = wanted.of
        chosen = {"assign": json.dumps({of.stream: [of.partition]}), "includeHeaders": "true", "failOnDataLoss": "true"}
        options = read_options({**self._source, **chosen})
        part = ReadRange(of.stream, of.partition, wanted.begin, wanted.end, of.created_us)
        yield from RangeReader(part, options).batches()

    def is_of_stream(self, error: Exception) -> bool:
        """Returns whether an error concerns only the stream that was being read, so that a task can go on.

        The node also closes the connection at a damaged page of one stream. So this function asks the node something
        else, and returns False if the node does not answer.
        """
        if not isinstance(error, (SourceError, RangeIncomplete)) or isinstance(error, OptionError):
            return False
        if "path" not in self._source and isinstance(error, SourceUnreachable):
            try:
                self._answers()
            except Exception:
                return False
        return True
