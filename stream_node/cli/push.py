"""`stream-node push`: from files, standard input or an argument into a stream-partition."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.client import open_partition, with_client
from stream_node.cli.messages import read_inputs, split_key
from stream_node.cli.options import ContextOption, JsonOption, NodeOption, PartitionOption, ViaOption
from stream_node.cli.output import counted, say
from stream_node.cli.values import UsageError, parse_headers

if TYPE_CHECKING:
    from stream_service.client import (
        Header,
        PartitionedPublisher,
        PartitionedStream,
        Publisher,
        Push,
        Stream,
        StreamClient,
    )

SHOWN_EVERY_S = 0.1
"""Between two changes of the progress bar."""


def push(
    stream: Annotated[str, typer.Argument(help="The stream's name; it is made if it does not exist.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files to push line by line; standard input if none.")
    ] = None,
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    partition: PartitionOption = 0,
    data: Annotated[str | None, typer.Option(help="Push this one text instead of lines.")] = None,
    file_per_message: Annotated[
        bool, typer.Option("--file-per-message", help="Each file, or all of the input, is one message.")
    ] = False,
    length_framed: Annotated[
        bool, typer.Option("--length-framed", help="Each message stands behind its length (u32, big-endian).")
    ] = False,
    key: Annotated[str | None, typer.Option(help="Stored with every message.")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Each line is a key, a tab and the message, as `pull --keys` prints it.")
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Stored with every message; may be repeated.")
    ] = None,
    all_partitions: Annotated[
        bool, typer.Option("--all-partitions", help="Spread over the partitions that it has: by key, else in turn.")
    ] = False,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="Store each message once, also when a confirm gets lost.")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Push all of it so many times.")] = 1,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most so many messages a second.")] = None,
    window: Annotated[int, typer.Option(min=1, help="How many pushes may wait for their confirm.")] = 1_000,
    as_json: JsonOption = False,
) -> None:
    """Push messages, one a line, and say where they were stored, a line for each partition. Done means: on disk.

    Example: journalctl --follow | stream-node push logs

    With a key, slowly: stream-node push orders --data paid --key 17 --header type=text --repeat 100 --rate 10

    By the keys in a file: stream-node push orders orders.tsv --keys --all-partitions
    """
    if sum((data is not None, file_per_message, length_framed, keys)) > 1:
        raise UsageError("--data, --file-per-message, --length-framed and --keys are four kinds of input; choose one")
    if data is not None and files:
        raise UsageError("--data is pushed in place of files; leave one of them out")
    if keys and key is not None:
        raise UsageError("--key and --keys both say what the key is; leave one out")
    if all_partitions and partition:
        raise UsageError("--partition and --all-partitions say different things; leave one out")
    fixed_key = None if key is None else key.encode(errors="surrogateescape")
    stored_headers = parse_headers(header or [])

    def batches() -> Iterator[list[bytes]]:
        if data is not None:
            yield [data.encode(errors="surrogateescape")]
        else:
            yield from read_inputs(files or [], whole=file_per_message, framed=length_framed)

    def message_of(line: bytes) -> _Message:
        own_key, message = split_key(line) if keys else (fixed_key, line)
        return _Message(message, own_key, stored_headers)

    job = _Job(stream, None if all_partitions else partition, idempotent, window, rate, as_json)

    async def run(client: StreamClient) -> None:
        lines = _as_they_come(batches, repeat, from_input=data is None and not files)
        await _push_all(client, job, lines, message_of)

    with_client(run, node, context, via)


class _Job(NamedTuple):
    """Where to push and how; partition None: over all that the stream has."""

    stream: str
    partition: int | None
    idempotent: bool
    window: int
    rate: float | None
    as_json: bool


class _Message(NamedTuple):
    data: bytes
    key: bytes | None
    headers: Sequence[Header]


async def _push_all(
    client: StreamClient, job: _Job, lines: AsyncGenerator[bytes, None], message_of: Callable[[bytes], _Message]
) -> None:
    """Push what comes, up to the first push that fails, and say what was confirmed, also where something went wrong."""
    from stream_service.client import PushesFailed

    target: PartitionedStream | Stream
    if job.partition is None:
        target = await client.get_stream(job.stream)
    else:
        target = await open_partition(client, job.stream, job.partition)
    tally = _Tally()
    fault: UsageError | OSError | None = None
    try:
        async with target.publisher(job.window, idempotent=job.idempotent) as publisher, aclosing(lines):
            try:
                await _push_lines(publisher, lines, message_of, job.rate, tally)
            except (UsageError, OSError) as error:
                # The input is wrong here; what came before still gets its confirms.
                fault = error
    except (PushesFailed, KeyboardInterrupt):
        _report(tally, job)
        raise
    if tally.sent or fault is None:
        _report(tally, job)
    if fault is not None:
        raise fault


async def _push_lines(
    publisher: PartitionedPublisher | Publisher,
    lines: AsyncGenerator[bytes, None],
    message_of: Callable[[bytes], _Message],
    rate: float | None,
    tally: _Tally,
) -> None:
    import trio

    with _rate_shown() as show, trio.CancelScope() as going_on:
        tally.on_failure = going_on.cancel
        async for line in lines:
            if rate is not None:
                await _pace(tally, rate)
            message = message_of(line)
            tally.watch(await publisher.push(message.data, key=message.key, headers=message.headers))
            show(tally)


def _report(tally: _Tally, job: _Job) -> None:
    """What has been confirmed, for each partition that something was pushed to, or else for the first."""
    seconds = time.monotonic() - tally.started_s
    for partition in sorted(tally.partitions) or [job.partition or 0]:
        stored = tally.partitions.get(partition, _Stored())
        first, last = stored.first_index, stored.last_index
        report: dict[str, Any] = {"stream": job.stream, "partition": partition, "pushed": stored.count}
        report |= {"failed": stored.sent - stored.count, "first_index": first, "last_index": last}
        where = "" if first is None else f" at {first}" if first == last else f" at {first} to {last}"
        text = f"{counted(stored.count, 'message')} in {job.stream}/{partition}{where} ({seconds:.2f} s)"
        say(job.as_json, report | {"seconds": round(seconds, 6)}, text)


class _Stored:
    """Messages of one partition: sent, confirmed, and where they were stored."""

    def __init__(self) -> None:
        self.sent = self.count = 0
        self.first_index: int | None = None
        self.last_index: int | None = None


class _Tally:
    """What has been pushed since when, by partition. on_failure: called with each push that fails."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.sent = self.stored = 0
        self.partitions: dict[int, _Stored] = {}
        self.on_failure: Callable[[], None] = lambda: None

    def watch(self, push: Push) -> None:
        self.sent += 1
        self.partitions.setdefault(push.partition, _Stored()).sent += 1
        push.when_done(lambda: self._count(push))

    def _count(self, push: Push) -> None:
        if push.error is None:
            self.stored += 1
            stored = self.partitions[push.partition]
            stored.count += 1
            stored.first_index = push.index if stored.first_index is None else min(stored.first_index, push.index)
            stored.last_index = push.index if stored.last_index is None else max(stored.last_index, push.index)
        else:
            self.on_failure()


async def _as_they_come(
    batches: Callable[[], Iterator[list[bytes]]], times: int, *, from_input: bool
) -> AsyncGenerator[bytes, None]:
    """Messages so many times, read in a thread, so that confirms and sending go on while the input is waited for.

    Standard input can be read once only, so it is kept where it is needed again.
    """
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


async def _pace(tally: _Tally, rate: float) -> None:
    """Wait until the next message is due; those missed while the node was slow come at once."""
    import trio

    await trio.sleep(max(0.0, tally.started_s + tally.sent / rate - time.monotonic()))


@contextmanager
def _rate_shown() -> Iterator[Callable[[_Tally], None]]:
    """A line with count and rate on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda tally: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("pushing"), BarColumn(), TextColumn("{task.completed:,.0f} messages, {task.fields[rate]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate="")
        shown_s = 0.0

        def show(tally: _Tally) -> None:
            nonlocal shown_s
            now_s = time.monotonic()
            if now_s >= shown_s + SHOWN_EVERY_S:
                shown_s = now_s
                rate = tally.stored / max(now_s - tally.started_s, 1e-6)
                bar.update(task, completed=tally.stored, rate=f"{rate:,.0f} a second")

        yield show
