"""The exporter's requests to a node: for its streams, for the saved indexes of the export, and for messages.

`run_tasks` executes the tasks of a run, which read the messages, in threads of this process, without Spark and Java.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from spark_export.errors import OptionError, SourceError, SourceUnreachable
from spark_export.source.node import SYSTEM, TOKEN_OPTION, list_partitions, saved_indexes
from spark_export.source.options import compile_pattern, read_options
from spark_export.source.plan import ReadRange, StreamEnds
from spark_export.tables.errors import ExportStopped, RangeIncomplete
from spark_export.tables.filesystem import remove_files
from spark_export.tables.model import FilesPlan, Incarnation, IndexRange, TablePosition, TableState, Written
from stream_client import StreamNotFound, Tls, Token, blocking
from stream_client.blocking import SavedIndexes, set_position
from stream_storage.failpoint import failpoint

T = TypeVar("T")
PROGRESS_INTERVAL_S = 0.2
GIVE_UP_S = 1.0
"""How long `run_tasks` waits for its threads after a failure, in seconds. Then it returns, even if a task still
waits for the node."""


@dataclass(frozen=True)
class Selection:
    """A choice of streams: those in `streams`, and those whose whole name matches `pattern`; without both, all."""

    streams: tuple[str, ...] = ()
    pattern: str | None = None

    def takes(self, stream: str) -> bool:
        if self.pattern is None:
            return not self.streams or stream in self.streams
        return stream in self.streams or compile_pattern(self.pattern).fullmatch(stream) is not None


class NodeSide:
    """A node that the exporter reads. Every method opens its own connection, so none stays open between two runs.

    source: the options of the Spark format `stream_node` that read the node or its database, without its streams.
    """

    def __init__(
        self,
        address: str,
        tls: Tls | None = None,
        token: Token | None = None,
        *,
        data_dir: Path | None = None,
        verify_checksums: bool = False,
    ) -> None:
        self.address, self._tls, self._token = address, tls, token
        self.source = {"endpoint": address, "columns": "stream", "includeHeaders": "true", "failOnDataLoss": "true"}
        if token is not None:
            if token.file is None and token.variable is None:
                raise OptionError("token: give a file or an environment variable; Spark would show the token itself")
            self.source[TOKEN_OPTION] = f"env:{token.variable}" if token.file is None else f"file:{token.file}"
        if tls is not None:
            given = {"tlsCa": tls.ca or SYSTEM, "tlsCert": tls.certificate, "tlsKey": tls.key}
            given["tlsServerName"] = tls.server_name
            self.source |= {name: value for name, value in given.items() if value is not None}
        if verify_checksums:
            self.source["verifyChecksums"] = "true"
        if data_dir is not None:
            self.source["path"] = str(data_dir.absolute())

    def list_ends(self, selection: Selection) -> list[StreamEnds]:
        """Returns the partitions of the chosen streams. Raises StreamNotFound for a missing one, and ClientErrors."""
        with self._connect() as client:
            found = list_partitions(client, takes=selection.takes)
        missing = set(selection.streams) - {end.stream for end in found}
        if missing:
            raise StreamNotFound(f"{self.address} has no stream {sorted(missing)[0]!r}; see `stream-node stream list`")
        return found

    def read(self, wanted: IndexRange) -> Iterator[pa.RecordBatch]:
        """Yields the messages of a range, in order. Raises SourceError."""
        # A run without new messages does not load the module that reads messages.
        from spark_export.source.range_reader import RangeReader

        of = wanted.of
        options = read_options({**self.source, "assign": json.dumps({of.stream: [of.partition]})})
        part = ReadRange(of.stream, of.partition, wanted.begin, wanted.end, of.created_us)
        yield from RangeReader(part, options).batches()

    def is_of_stream(self, error: Exception) -> bool:
        """Returns whether an error of `read` concerns only the stream that was being read, so that a task can go on."""
        if not isinstance(error, (SourceError, RangeIncomplete)) or isinstance(error, OptionError):
            return False
        if "path" not in self.source and isinstance(error, SourceUnreachable):
            # The node also closes the connection at a damaged page of one stream, so it is asked something else.
            try:
                self.list_ends(Selection())
            except Exception:
                return False
        return True

    def load_positions(self, client_id: str) -> dict[tuple[str, int], int]:
        """Returns the saved indexes of a client, by stream and partition. Raises ClientErrors."""
        with self._connect() as client:
            return saved_indexes(client, client_id)

    def save_positions(self, client_id: str, moved: Mapping[Incarnation, int]) -> None:
        """Saves the next index of each incarnation under a client id, so that the node can show the lag. Raises
        ClientErrors."""
        by_stream: dict[str, dict[int, int]] = {}
        with self._connect() as client:
            positions = SavedIndexes(client, client_id)
            for of, end in moved.items():
                by_stream.setdefault(of.stream, {})[of.partition] = end
                if of.era and positions.get(of.stream, of.partition) > end:
                    # This saved index is from the deleted stream of the same name, and saving keeps the highest one.
                    set_position(client, client_id, of.stream, of.partition, end)
            for stream, indexes in by_stream.items():
                positions.save(stream, indexes)

    def find_put_back(
        self, ends: Iterable[StreamEnds], state: TableState, saved: Mapping[tuple[str, int], int]
    ) -> dict[str, str]:
        """Returns the streams whose node was restored to an earlier state and has grown again since, with the reason.

        Such a node has another message at the last exported index, and a saved position below the table's. A run that
        was killed after its commit leaves a lower position, too, but then the node has the message of the table.
        """
        latest, doubtful = state.latest(), list[tuple[Incarnation, TablePosition]]()
        for end in ends:
            of, position = latest.get((end.stream, end.partition), (None, TablePosition(0)))
            if of is None or of.created_us != end.created_us or not position.last_us:
                continue
            # A message that retention has deleted cannot be compared.
            is_there = end.first_index <= position.end - 1 < end.next_index
            if is_there and saved.get(of.place, 0) < position.end:
                doubtful.append((of, position))
        found: dict[str, str] = {}
        if not doubtful:
            return found
        with self._connect() as client:
            for of, position in doubtful:
                last = position.end - 1
                try:
                    page = client.get_stream(of.stream).get_partition(of.partition).pull_page(last, 1)
                except StreamNotFound:
                    # The stream was deleted after the listing.
                    continue
                # A truncation can have removed the message meanwhile. Delta's log has milliseconds.
                found_us = [each.time_us for each in page.messages if each.index == last]
                if found_us and found_us[0] // 1000 != position.last_us // 1000:
                    found[of.stream] = (
                        f"{of.stream}/{of.partition} was exported up to {position.end}, and the node has another "
                        f"message at index {last}: it was put back to an earlier state; export into a new table"
                    )
        return found

    def _connect(self) -> AbstractContextManager[blocking.StreamClient]:
        return blocking.connect(self.address, reconnect=None, tls=self._tls, token=self._token)


def run_tasks(
    tasks: Sequence[Sequence[IndexRange]],
    plan: FilesPlan,
    node: NodeSide,
    parallelism: int,
    on_rows: Callable[[int, int], None],
) -> Written:
    """Executes the tasks in threads, each once, and returns what they have written. Raises the first task's error.

    After an error, also one of `on_rows`, the files of all tasks are removed. on_rows: called about every
    PROGRESS_INTERVAL_S seconds with the rows and the bytes of message data that are written so far.
    """
    # A run without new messages does not load the module that writes files.
    from spark_export.tables.files import write_ranges

    waiting, done, stop = deque(enumerate(tasks)), list[Written](), threading.Event()
    progress: dict[int, tuple[int, int]] = {}

    def work() -> None:
        while not stop.is_set():
            try:
                number, task = waiting.popleft()
            except IndexError:
                return

            def told(rows: int, data_bytes: int, number: int = number) -> None:
                progress[number] = rows, data_bytes
                failpoint("writing")
                if stop.is_set():
                    raise ExportStopped("the run has ended without this task")

            written = write_ranges(task, node.read, plan, is_of_stream=node.is_of_stream, on_rows=told)
            done.append(written)
            if stop.is_set():
                # `run_tasks` may have removed the files of the tasks that were done, and does not wait for this one.
                remove_files(plan, written.files)

    workers = [in_thread(work, "export-task") for _ in range(min(parallelism, len(tasks)))]
    try:
        while True:
            ended, working = wait(workers, PROGRESS_INTERVAL_S, FIRST_EXCEPTION)
            for each in ended:
                each.result()
            if not working:
                return Written.together(done)
            found = list(progress.values())
            on_rows(sum(rows for rows, _ in found), sum(data_bytes for _, data_bytes in found))
    except BaseException:
        stop.set()
        wait(workers, GIVE_UP_S)
        # A task that is still at work removes its files itself.
        remove_files(plan, [each for written in done for each in written.files])
        raise


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Calls a function in a new thread, for which the end of the process does not wait."""
    future = Future[T]()
    future.set_running_or_notify_cancel()

    def main() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=main, name=name, daemon=True).start()
    return future
