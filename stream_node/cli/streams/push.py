"""The command `stream-node push`: pushes messages from files, standard input or an argument to a stream."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.client import open_partition, open_target, ranges_of, with_client
from stream_node.cli.completion import complete_stream
from stream_node.cli.options import ANY_NODE, NodeOptions, PartitionOptions, not_empty
from stream_node.cli.output import AS_JSON, counted, say
from stream_node.cli.printable import printable
from stream_node.cli.progress import ProgressLine
from stream_node.cli.streams.messages import LENGTH, MessageInput, parse_ndjson, read_inputs, split_key
from stream_node.cli.values import CommandFailed, UsageError, parse_headers

if TYPE_CHECKING:
    from stream_client import PartitionedPublisher, Publisher, Push, StreamClient

StreamArgument = Annotated[
    str,
    typer.Argument(
        callback=not_empty,
        help="The name of the stream. The stream is made if it does not exist.",
        autocompletion=complete_stream,
    ),
]
FilesArgument = Annotated[
    list[Path] | None, typer.Argument(help="Files to push line by line. Without files, standard input.")
]
PushPartitionOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="The partition of all messages. Without it, the key of each message chooses, and messages without a key "
        "go to the partitions in rotation; with --ndjson, a line may name its partition.",
    ),
]
DataOption = Annotated[str | None, typer.Option(help="Push this text as one message.")]
WholeOption = Annotated[bool, typer.Option(help="Push each file, or all of standard input, as one message.")]
FramedInputOption = Annotated[bool, typer.Option(help="The length of each message precedes it (u32, big-endian).")]
KeyOption = Annotated[str | None, typer.Option(help="The key of every message.")]
KeyedLinesOption = Annotated[
    bool, typer.Option(help="Each line is a key, a tab and the message, as `pull --keys` prints it.")
]
NdjsonInputOption = Annotated[bool, typer.Option(help="Each line is a message in JSON, as `pull --ndjson` prints it.")]
CrlfOption = Annotated[
    bool, typer.Option(help="Lines end with CR LF, as on Windows. Without it, a CR belongs to the message.")
]
HeaderOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every message. May be repeated.")
]
SpreadOption = Annotated[
    bool,
    typer.Option(
        help="Spread the messages as without --partition, also those whose lines, with --ndjson, name a partition."
    ),
]
IdempotentOption = Annotated[
    bool, typer.Option(help="Store each message once. A push with an unknown result is repeated until it is known.")
]
RepeatOption = Annotated[int, typer.Option(min=1, help="Push the whole input this many times.")]
RateOption = Annotated[float | None, typer.Option(min=0.001, help="The maximum number of messages per second.")]
WindowOption = Annotated[int, typer.Option(min=1, help="The maximum number of unconfirmed pushes to a partition.")]


def push(
    stream: StreamArgument,
    files: FilesArgument = None,
    node: NodeOptions = ANY_NODE,
    partition: PushPartitionOption = None,
    data: DataOption = None,
    file_per_message: WholeOption = False,
    length_framed: FramedInputOption = False,
    key: KeyOption = None,
    keys: KeyedLinesOption = False,
    ndjson: NdjsonInputOption = False,
    crlf: CrlfOption = False,
    header: HeaderOption = None,
    all_partitions: SpreadOption = False,
    idempotent: IdempotentOption = False,
    repeat: RepeatOption = 1,
    rate: RateOption = None,
    window: WindowOption = 1_000,
) -> None:
    """Push the lines of the input as messages, and print the indexes at which they are stored, for each partition.

    The command ends when all messages are on the node's disk. If a push fails, the command lists the messages that are
    not stored and those whose result is unknown (see --idempotent).

    Example: journalctl --follow | stream-node push logs

    With a key, slowly: stream-node push orders --data paid --key 17 --header type=text --repeat 100 --rate 10

    With the keys of a file: stream-node push orders orders.tsv --keys

    The output of `pull --ndjson`, with keys and headers: stream-node push orders orders.ndjson --ndjson
    """
    _check(data, files, file_per_message, length_framed, keys, ndjson, key, header=header)
    PartitionOptions(partition, all_partitions).one()
    if crlf and (data is not None or file_per_message or length_framed):
        raise UsageError("--crlf says how lines end, and this input has no lines; leave it out")
    fixed_key = None if key is None else key.encode(errors="surrogateescape")
    stored_headers = parse_headers(header or [])

    def batches() -> Iterator[list[bytes]]:
        if data is not None:
            yield [data.encode(errors="surrogateescape")]
        else:
            yield from read_inputs(files or [], whole=file_per_message, framed=length_framed, crlf=crlf)

    def message_of(line: bytes) -> MessageInput:
        if ndjson:
            return parse_ndjson(line)
        own_key, message = split_key(line) if keys else (fixed_key, line)
        return MessageInput(message, own_key, stored_headers)

    as_said = ndjson and not all_partitions and partition is None
    text = None if data is None else data.encode(errors="surrogateescape")
    extent = _extent(text, files or [], repeat, whole=file_per_message, framed=length_framed)
    typed = data is None and not files and sys.stdin.isatty()
    job = _Job(stream, partition, as_said, idempotent, window, rate, extent=extent, input_is_typed=typed)

    async def run(client: StreamClient) -> None:
        lines = _read_messages(batches, repeat, from_input=data is None and not files)
        await _push_all(client, job, lines, message_of)

    with_client(run, node)


def _check(
    data: str | None,
    files: list[Path] | None,
    file_per_message: bool,
    length_framed: bool,
    keys: bool,
    ndjson: bool,
    key: str | None,
    header: list[str] | None,
) -> None:
    """Raises UsageError if two options exclude each other, and CommandFailed if a file is missing."""
    if sum((data is not None, file_per_message, length_framed, keys, ndjson)) > 1:
        raise UsageError(
            "--data, --file-per-message, --length-framed, --keys and --ndjson are five kinds of input; choose one"
        )
    if ndjson and (key is not None or header):
        raise UsageError("with --ndjson each line has its own key and headers; leave --key and --header out")
    if data is not None and files:
        raise UsageError("--data is pushed in place of files; leave one of them out")
    for file in files or []:
        # Many a first push has the message itself in this place.
        if not file.exists():
            raise CommandFailed(f"{file}: there is no such file; to push this text itself, write --data")
    if keys and key is not None:
        raise UsageError("--key and --keys both say what the key is; leave one out")


class _Job(NamedTuple):
    """The destination and the manner of a push.
    partition: the partition of all messages; None: the key of each message chooses, and messages without a key go to
    all partitions in turn. as_said: whether a message may name its partition itself. window: the maximum number of
    unconfirmed pushes. rate: the maximum number of messages per second."""

    stream: str
    partition: int | None
    as_said: bool
    idempotent: bool
    window: int
    rate: float | None
    extent: _Extent
    input_is_typed: bool


async def _push_all(
    client: StreamClient, job: _Job, lines: AsyncGenerator[bytes, None], message_of: Callable[[bytes], MessageInput]
) -> None:
    """Pushes the input until its end or the first failure. Prints the number and the indexes of the stored messages.
    Raises PushesFailed if a push failed. Raises UsageError, OSError or StreamNotFound if a message cannot be read or
    has no partition; the messages before it are still pushed and confirmed."""
    import trio

    from stream_client import PushesFailed, StreamNotFound

    counts = PushCounts()
    fault: UsageError | OSError | StreamNotFound | None = None
    try:
        async with AsyncExitStack() as publishers, aclosing(lines):
            push = await _opened(client, job, publishers)
            try:
                await _push_lines(push, lines, message_of, job, counts)
            except (UsageError, OSError, StreamNotFound) as error:
                # This message of the input is wrong. The messages before this one still get their confirms.
                fault = error
    except (PushesFailed, trio.Cancelled):
        # Cancelled means that a signal, such as that of Ctrl-C, ends the command.
        _report(counts, job)
        if not AS_JSON.get():
            print_unconfirmed(counts, job.stream)
        raise
    if counts.sent or fault is None:
        _report(counts, job)
    if fault is not None:
        raise fault


async def _opened(
    client: StreamClient, job: _Job, publishers: AsyncExitStack
) -> Callable[[MessageInput], Awaitable[Push]]:
    """Returns a function that pushes one message to its partition. Raises StreamNotFound.
    The stack `publishers` gets the opened publishers, and closes them at its end."""
    options: dict[str, Any] = {"window": job.window, "idempotent": job.idempotent}
    by_partition: dict[int | None, Publisher | PartitionedPublisher] = {}

    async def open_publisher(partition: int | None) -> Publisher | PartitionedPublisher:
        stream = await (
            open_target(client, job.stream) if partition is None else open_partition(client, job.stream, partition)
        )
        publisher = by_partition[partition] = await publishers.enter_async_context(stream.publisher(**options))
        return publisher

    async def push(message: MessageInput) -> Push:
        partition = message.partition if job.as_said else job.partition
        publisher = by_partition.get(partition) or await open_publisher(partition)
        return await publisher.push(message.data, key=message.key, headers=message.headers)

    if not job.as_said:
        # The first message may take long to arrive. The publisher is opened before it, so that a wrong name fails at
        # once.
        await open_publisher(job.partition)
    return push


async def _push_lines(
    push: Callable[[MessageInput], Awaitable[Push]],
    lines: AsyncGenerator[bytes, None],
    message_of: Callable[[bytes], MessageInput],
    job: _Job,
    counts: PushCounts,
) -> None:
    import trio

    taken_bytes = 0
    with ProgressLine(input_is_typed=job.input_is_typed) as progress, trio.CancelScope() as going_on:
        counts.on_failure = going_on.cancel
        async for line in lines:
            if job.rate is not None:
                await _pace(counts, job.rate)
            counts.watch(await push(message_of(line)))
            if progress.enabled:
                taken_bytes += len(line) + job.extent.around_bytes
                rate_now = counts.stored / max(time.monotonic() - counts.started_s, 1e-6)
                facts = (f"{counts.stored:,} messages", f"{rate_now:,.0f} a second")
                progress.draw("pushing", taken_bytes, job.extent.total_bytes, facts)


def _report(counts: PushCounts, job: _Job) -> None:
    """Prints the number and the indexes of the stored messages, for each partition that was pushed to.
    If nothing was pushed, prints 0 messages for the chosen partition, or for partition 0."""
    seconds = time.monotonic() - counts.started_s
    for partition in sorted(counts.partitions) or [job.partition or 0]:
        stored = counts.partitions.get(partition, PartitionCounts())
        first, last = stored.first_index, stored.last_index
        report: dict[str, Any] = {"stream": job.stream, "partition": partition, "pushed": stored.count}
        report |= {"failed": stored.sent - stored.count, "first_index": first, "last_index": last}
        report |= {"not_stored": ranges_of(stored.not_stored), "unknown": ranges_of(stored.unknown)}
        where = "" if first is None else f" at {first}" if first == last else f" at {first} to {last}"
        text = f"{counted(stored.count, 'message')} in {job.stream}/{partition}{where} ({seconds:.2f} s)"
        say(report | {"seconds": round(seconds, 6)}, text)


async def _read_messages(
    batches: Callable[[], Iterator[list[bytes]]], times: int, *, from_input: bool
) -> AsyncGenerator[bytes, None]:
    """Yields the messages of the whole input `times` times. A thread reads, so pushes continue while input is slow.
    from_input: whether this is standard input. It can be read only once, so its messages are kept for repetitions."""
    import trio

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


async def _pace(counts: PushCounts, rate: float) -> None:
    """Waits until the next message is due at `rate` messages per second. A late message is not delayed."""
    import trio

    await trio.sleep(max(0.0, counts.started_s + counts.sent / rate - time.monotonic()))


class _Extent(NamedTuple):
    """The size of the input, if known. around_bytes: the line end or the length prefix of each message."""

    total_bytes: int | None
    around_bytes: int


def _extent(data: bytes | None, files: list[Path], repeat: int, *, whole: bool, framed: bool) -> _Extent:
    around_bytes = LENGTH.size if framed else 0 if whole else 1
    if data is not None:
        return _Extent(repeat * (len(data) + around_bytes), around_bytes)
    try:
        found = [file.stat() for file in files] if files else [os.fstat(sys.stdin.fileno())]
    except OSError:
        return _Extent(None, around_bytes)
    if not all(stat.S_ISREG(each.st_mode) for each in found):
        return _Extent(None, around_bytes)
    return _Extent(repeat * sum(each.st_size for each in found), around_bytes)


class PushCounts:
    """The counts of pushed messages. started_s: on the monotonic clock. on_failure: called after each failed push."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.sent = self.stored = 0
        self.partitions: dict[int, PartitionCounts] = {}
        self.on_failure: Callable[[], None] = lambda: None

    def watch(self, push: Push) -> None:
        self.sent += 1
        number, stored = self.sent, self.partitions.setdefault(push.partition, PartitionCounts())
        stored.sent += 1
        stored.unknown.add(number)
        push.when_done(lambda: self._count(push, number))

    def _count(self, push: Push, number: int) -> None:
        stored = self.partitions[push.partition]
        if push.error is None or not push.error.in_doubt:
            stored.unknown.discard(number)
        if push.error is None:
            self.stored += 1
            stored.count += 1
            # The node does not remember the index of an old duplicate.
            if push.index < 0:
                return
            stored.first_index = push.index if stored.first_index is None else min(stored.first_index, push.index)
            stored.last_index = push.index if stored.last_index is None else max(stored.last_index, push.index)
        else:
            if not push.error.in_doubt:
                stored.not_stored.append(number)
            self.on_failure()


class PartitionCounts:
    """The results of the pushes to one partition. count: how many messages are stored.
    not_stored, unknown: the positions of the other messages in the whole input, counted from 1. A message is unknown
    while it has no answer, and after an error that does not show whether it was stored."""

    def __init__(self) -> None:
        self.sent = self.count = 0
        self.not_stored: list[int] = []
        self.unknown: set[int] = set()
        self.first_index: int | None = None
        self.last_index: int | None = None


def print_unconfirmed(counts: PushCounts, stream: str) -> None:
    """Prints the messages that are not stored or whose result is unknown, for people; programs use the JSON report."""
    for partition in sorted(counts.partitions):
        stored = counts.partitions[partition]
        for numbers, state in ((stored.not_stored, "not stored"), (stored.unknown, "unknown, may be stored or not")):
            if numbers:
                ranges = ranges_of(numbers)
                named = ", ".join(f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges)
                count = counted(len(numbers), "message")
                typer.echo(printable(f"{count} for {stream}/{partition} {state}: number {named}"))
