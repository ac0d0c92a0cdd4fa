"""Messages as record batches of Arrow. This module talks to no node. It needs the package `pyarrow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stream_service.extensions import RichMessage


class ArrowBatches:
    """Makes record batches of the messages of one partition, all with one schema.

    decode: adds columns to each batch; None for the messages as they are.
    """

    def __init__(self, stream: str, partition: int, decode: Callable[[Any], Any] | None) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("to_arrow needs the package pyarrow: pip install pyarrow") from error
        self._arrow = pyarrow
        self._place = (stream, partition)
        self._decode = decode
        # Decoding an empty batch shows the columns that the decoder adds.
        self._schema = self.batch(()).schema

    def batch(self, messages: Sequence[RichMessage]) -> Any:
        pa, count = self._arrow, len(messages)
        header = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)])
        headers = [[{"key": one.name, "value": one.value} for one in each.headers] or None for each in messages]
        columns = {
            "stream": pa.array([self._place[0]] * count, pa.string()),
            "partition": pa.array([self._place[1]] * count, pa.int32()),
            "index": pa.array([each.index for each in messages], pa.int64()),
            "timestamp": pa.array([each.time_us for each in messages], pa.timestamp("us", tz="UTC")),
            "key": pa.array([each.key for each in messages], pa.binary()),
            "data": pa.array([each.data for each in messages], pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.field("element", header, False))),
        }
        made = pa.RecordBatch.from_pydict(columns)
        return made if self._decode is None else self._decode(made)

    def reader(self, batches: Iterable[Any]) -> Any:
        """Returns a `pyarrow.RecordBatchReader` over batches of this object."""
        return self._arrow.RecordBatchReader.from_batches(self._schema, batches)
