"""The command `stream-node push`: pushes messages from files, standard input or an argument to a stream."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.client import open_partition, open_target, ranges_of, with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions, PartitionOptions, complete_stream, not_empty
from stream_node.cli.output import AS_JSON, ProgressLine, counted, say, say_text
from stream_node.cli.streams.messages import LENGTH, MessageInput, parse_ndjson, read_inputs, split_key
from stream_node.cli.values import INDEX_MAX, CommandFailed, UsageError, parse_headers

if TYPE_CHECKING or RUNS:
    import trio

    from stream_client import PartitionedPublisher, Publisher, Push, PushesFailed, StreamClient, StreamNotFound


class PushOptions(NamedTuple):
    partition: Annotated[
        int | None,
        typer.Option(min=0),
        "The partition of all messages. Without it, the key of each message chooses, and messages without a "
        "key go to the partitions in rotation; with --ndjson, a line may name its partition.",
    ] = None
    data: Annotated[str | None, "Push this text as one message."] = None
    file_per_message: Annotated[bool, "Push each file, or all of standard input, as one message."] = False
    length_framed: Annotated[bool, "The length of each message precedes it (u32, big-endian)."] = False
    key: Annotated[str | None, "The key of every message."] = None
    keys: Annotated[bool, "Each line is a key, a tab and the message, as `pull --keys` prints it."] = False
    ndjson: Annotated[bool, "Each line is a message in JSON, as `pull --ndjson` prints it."] = False
    crlf: Annotated[bool, "Lines end with CR LF, as on Windows. Without it, a CR belongs to the message."] = False
    header: Annotated[list[str] | None, "NAME=VALUE", "A header of every message. May be repeated."] = None
    all_partitions: Annotated[
        bool, "Spread the messages as without --partition, also those whose lines, with --ndjson, name a partition."
    ] = False
    idempotent: Annotated[
        bool, "Store each message once. A push with an unknown result is repeated until it is known."
    ] = False
    repeat: Annotated[int, typer.Option(min=1), "Push the whole input this many times."] = 1
    rate: Annotated[float | None, typer.Option(min=0.001), "The maximum number of messages per second."] = None
    window: Annotated[int, typer.Option(min=1), "The maximum number of unconfirmed pushes to a partition."] = 1_000

    def check(self, files: list[Path]) -> None:
        """Raises UsageError if two options exclude each other, and CommandFailed if a file is missing."""
        kinds = (self.data is not None, self.file_per_message, self.length_framed, self.keys, self.ndjson)
        if sum(kinds) > 1:
            raise UsageError(
                "--data, --file-per-message, --length-framed, --keys and --ndjson are five kinds of input; choose one"
            )
        if self.ndjson and (self.key is not None or self.header):
            raise UsageError("with --ndjson each line has its own key and headers; leave --key and --header out")
        if self.data is not None and files:
            raise UsageError("--data is pushed in place of files; leave one of them out")
        for file in files:
            # At their first push, many users write the message itself in the place of a file.
            if not file.exists():
                raise CommandFailed(f"{file}: there is no such file; to push this text itself, write --data")
        if self.keys and self.key is not None:
            raise UsageError("--key and --keys both say what the key is; leave one out")
        PartitionOptions(self.partition, self.all_partitions).one()
        if self.crlf and (self.data is not None or self.file_per_message or self.length_framed):
            raise UsageError("--crlf says how lines end, and this input has no lines; leave it out")

    @property
    def around_bytes(self) -> int:
        """The size of the line end or of the length prefix of each message."""
        return LENGTH.size if self.length_framed else 0 if self.file_per_message else 1


DEFAULT_PUSH = PushOptions()


def push(
    stream: Annotated[
        str,
        typer.Argument(callback=not_empty, autocompletion=complete_stream),
        "The name of the stream. The stream is made if it does not exist.",
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(), "Files to push line by line. Without files, standard input."
    ] = None,
    node: NodeOptions = ANY_NODE,
    options: PushOptions = DEFAULT_PUSH,
) -> None:
    """Push the lines of the input as messages, and print the indexes at which they are stored, for each partition.

    The command ends when all messages are on the node's disk. If a push fails, the command lists the messages that are
    not stored and those whose result is unknown (see --idempotent).

    Example: journalctl --follow | stream-node push logs

    With a key, slowly: stream-node push orders --data paid --key 17 --header type=text --repeat 100 --rate 10

    With the keys of a file: stream-node push orders orders.tsv --keys

    The output of `pull --ndjson`, with keys and headers: stream-node push orders orders.ndjson --ndjson
    """
    files = files or []
    options.check(files)
    given = options.data, options.key
    text, key = (None if each is None else each.encode(errors="surrogateescape") for each in given)
    headers = parse_headers(options.header or [])

    def batches() -> Iterator[list[bytes]]:
        if text is not None:
            return iter([[text]])
        return read_inputs(files, whole=options.file_per_message, framed=options.length_framed, crlf=options.crlf)

    def message_of(line: bytes) -> MessageInput:
        if options.ndjson:
            return parse_ndjson(line)
        own_key, message = split_key(line) if options.keys else (key, line)
        return MessageInput(message, own_key, headers)

    from_input = text is None and not files
    line = ProgressLine(input_is_typed=from_input and sys.stdin.isatty())
    total_bytes = _total_bytes(text, files, options)

    async def run(client: StreamClient) -> None:
        lines = _read_messages(batches, options.repeat, from_input=from_input)
        await _Pushes(client, stream, options, line, total_bytes).push_all(lines, message_of)

    with_client(run, node)


class _Pushes:
    """The pushes of one run of the command, with the counts of each partition. total_bytes: the size of the input."""

    def __init__(
        self, client: StreamClient, stream: str, options: PushOptions, line: ProgressLine, total_bytes: int | None
    ) -> None:
        self._client = client
        self._stream = stream
        self._options = options
        self._line = line
        self._total_bytes = total_bytes
        self._sent = self._stored = 0
        self._partitions = defaultdict[int, _PartitionCounts](_PartitionCounts)
        self._started_s = time.monotonic()
        self._going_on = trio.CancelScope()

    async def push_all(self, lines: AsyncGenerator[bytes, None], message_of: Callable[[bytes], MessageInput]) -> None:
        """Pushes the input until its end or the first failure, and prints what is stored. A message that cannot be read
        or has no partition raises its error after those before it are confirmed. Raises PushesFailed."""
        fault: UsageError | OSError | StreamNotFound | None = None
        try:
            async with AsyncExitStack() as publishers, aclosing(lines):
                try:
                    await self._push_lines(publishers, lines, message_of)
                except (UsageError, OSError, StreamNotFound) as error:
                    # This message of the input is wrong. The messages before this one still get their confirms.
                    fault = error
        except (PushesFailed, trio.Cancelled):
            # Cancelled means that a signal, such as that of Ctrl-C, ends the command.
            self._report()
            if not AS_JSON.get():
                self._report_unconfirmed()
            raise
        if self._sent or fault is None:
            self._report()
        if fault is not None:
            raise fault

    async def _push_lines(
        self,
        publishers: AsyncExitStack,
        lines: AsyncGenerator[bytes, None],
        message_of: Callable[[bytes], MessageInput],
    ) -> None:
        """Pushes each message to its partition. `publishers` closes the publishers that are opened."""
        options, taken_bytes = self._options, 0
        # Whether each line of the input says its partition.
        as_said = options.ndjson and not options.all_partitions and options.partition is None
        by_partition: dict[int | None, Publisher | PartitionedPublisher] = {}

        async def open_publisher(partition: int | None) -> Publisher | PartitionedPublisher:
            place = self._client, self._stream
            stream = await (open_target(*place) if partition is None else open_partition(*place, partition))
            publisher = stream.publisher(window=options.window, idempotent=options.idempotent)
            by_partition[partition] = await publishers.enter_async_context(publisher)
            return by_partition[partition]

        if not as_said:
            # A wrong name fails here, and not when the first message arrives, which may take long.
            await open_publisher(options.partition)
        with self._line as progress, self._going_on:
            async for line in lines:
                if options.rate is not None:
                    # A late message is not delayed.
                    await trio.sleep(max(0.0, self._started_s + self._sent / options.rate - time.monotonic()))
                message = message_of(line)
                partition = message.partition if as_said else options.partition
                publisher = by_partition.get(partition) or await open_publisher(partition)
                self._watch(await publisher.push(message.data, key=message.key, headers=message.headers))
                if progress.enabled:
                    taken_bytes += len(line) + options.around_bytes
                    rate_now = self._stored / max(time.monotonic() - self._started_s, 1e-6)
                    facts = (f"{self._stored:,} messages", f"{rate_now:,.0f} a second")
                    progress.draw("pushing", taken_bytes, self._total_bytes, facts)

    def _watch(self, push: Push) -> None:
        self._sent += 1
        number, counts = self._sent, self._partitions[push.partition]
        counts.unknown.add(number)

        def count() -> None:
            if push.error is None or not push.error.in_doubt:
                counts.unknown.discard(number)
            if push.error is not None:
                if not push.error.in_doubt:
                    counts.not_stored.append(number)
                self._going_on.cancel()
                return
            self._stored += 1
            counts.stored += 1
            # The node does not remember the index of an old duplicate.
            if push.index >= 0:
                counts.first_index = min(counts.first_index, push.index)
                counts.last_index = max(counts.last_index, push.index)

        push.when_done(count)

    def _report(self) -> None:
        """Prints the number and the indexes of the stored messages by partition; one line if nothing was pushed."""
        seconds = time.monotonic() - self._started_s
        for partition in sorted(self._partitions) or [self._options.partition or 0]:
            counts = self._partitions[partition]
            first, last = (counts.first_index, counts.last_index) if counts.last_index >= 0 else (None, None)
            report: dict[str, Any] = {"stream": self._stream, "partition": partition, "pushed": counts.stored}
            report |= {"failed": len(counts.not_stored) + len(counts.unknown), "first_index": first, "last_index": last}
            report |= {"not_stored": ranges_of(counts.not_stored), "unknown": ranges_of(counts.unknown)}
            where = "" if first is None else f" at {first}" if first == last else f" at {first} to {last}"
            text = f"{counted(counts.stored, 'message')} in {self._stream}/{partition}{where} ({seconds:.2f} s)"
            say(report | {"seconds": round(seconds, 6)}, text)

    def _report_unconfirmed(self) -> None:
        """Prints, for people, which messages are not stored, and which may be stored."""
        for partition, counts in sorted(self._partitions.items()):
            states = ((counts.not_stored, "not stored"), (counts.unknown, "unknown, may be stored or not"))
            for numbers, state in (each for each in states if each[0]):
                ranges = ranges_of(numbers)
                named = ", ".join(f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges)
                count = counted(len(numbers), "message")
                say_text(f"{count} for {self._stream}/{partition} {state}: number {named}")


class _PartitionCounts:
    """The pushes to one partition. not_stored, unknown: messages, by their numbers in the whole input, from 1. A
    message is unknown while it has no answer, and after an error that does not show whether it was stored."""

    def __init__(self) -> None:
        self.stored = 0
        self.not_stored: list[int] = []
        self.unknown: set[int] = set()
        # Without a stored message, the first index is above every other one, and the last below.
        self.first_index, self.last_index = INDEX_MAX, -1


async def _read_messages(
    batches: Callable[[], Iterator[list[bytes]]], times: int, *, from_input: bool
) -> AsyncGenerator[bytes, None]:
    """Yields the messages of the input `times` times. A thread reads, so pushes go on while input is slow.
    from_input: standard input can be read only once, so its messages are kept."""
    kept: list[list[bytes]] = []
    for time_number in range(times):
        source = iter(kept) if from_input and time_number else batches()
        while True:
            batch = await trio.to_thread.run_sync(next, source, None, abandon_on_cancel=True)
            if batch is None:
                break
            if from_input and times > 1 and not time_number:
                kept.append(batch)
            for message in batch:
                yield message


def _total_bytes(text: bytes | None, files: list[Path], options: PushOptions) -> int | None:
    if text is not None:
        return options.repeat * (len(text) + options.around_bytes)
    try:
        found = [file.stat() for file in files] if files else [os.fstat(sys.stdin.fileno())]
    except OSError:
        return None
    if not all(stat.S_ISREG(each.st_mode) for each in found):
        return None
    return options.repeat * sum(each.st_size for each in found)
