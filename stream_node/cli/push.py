"""`stream-node push`: from files, standard input or an argument into a stream-partition."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.client import open_partition, with_client
from stream_node.cli.messages import read_inputs
from stream_node.cli.options import ContextOption, JsonOption, NodeOption, PartitionOption, ViaOption
from stream_node.cli.output import counted, say
from stream_node.cli.values import UsageError, parse_headers

if TYPE_CHECKING:
    from stream_service.client import Push, StreamClient

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
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Stored with every message; may be repeated.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Push all of it so many times.")] = 1,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most so many messages a second.")] = None,
    window: Annotated[int, typer.Option(min=1, help="How many pushes may wait for their confirm.")] = 1_000,
    as_json: JsonOption = False,
) -> None:
    """Push messages, one a line, and say where they were stored. Done means: on disk.

    Example: journalctl | stream-node push logs

    With a key, slowly: stream-node push orders --data paid --key 17 --header type=text --repeat 100 --rate 10
    """
    if sum((data is not None, file_per_message, length_framed)) > 1:
        raise UsageError("--data, --file-per-message and --length-framed are three kinds of input; choose one")
    if data is not None and files:
        raise UsageError("--data is pushed in place of files; leave one of them out")
    key_bytes = None if key is None else key.encode(errors="surrogateescape")
    headers = parse_headers(header or [])

    def messages() -> Iterator[bytes]:
        if data is not None:
            yield data.encode(errors="surrogateescape")
        else:
            yield from read_inputs(files or [], whole=file_per_message, framed=length_framed)

    async def run(client: StreamClient) -> None:
        target = await open_partition(client, stream, partition)
        tally = _Tally()
        with _rate_shown() as show:
            async with target.publisher(window) as publisher:
                for message in _repeated(messages, repeat, from_input=data is None and not files):
                    if rate is not None:
                        await _pace(tally, rate)
                    tally.watch(await publisher.push(message, key=key_bytes, headers=headers))
                    show(tally)
        seconds = time.monotonic() - tally.started_s
        report: dict[str, Any] = {"stream": target.name, "partition": partition, "pushed": tally.stored}
        report |= {"first_index": tally.first_index, "last_index": tally.last_index, "seconds": round(seconds, 6)}
        first, last = tally.first_index, tally.last_index
        where = "" if first is None else f" at {first}" if first == last else f" at {first} to {last}"
        text = f"{counted(tally.stored, 'message')} in {target.name}/{partition}{where} ({seconds:.2f} s)"
        say(as_json, report, text)

    with_client(run, node, context, via)


class _Tally:
    """What has been pushed, and where it was stored."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.sent = self.stored = 0
        self.first_index: int | None = None
        self.last_index: int | None = None

    def watch(self, push: Push) -> None:
        self.sent += 1
        push.when_done(lambda: self._count(push))

    def _count(self, push: Push) -> None:
        if push.error is None:
            self.stored += 1
            self.first_index = push.index if self.first_index is None else min(self.first_index, push.index)
            self.last_index = push.index if self.last_index is None else max(self.last_index, push.index)


def _repeated(messages: Callable[[], Iterator[bytes]], times: int, *, from_input: bool) -> Iterator[bytes]:
    """Standard input can be read once only, so it is kept where it is needed again."""
    if times > 1 and from_input:
        kept = list(messages())
        for _ in range(times):
            yield from kept
        return
    for _ in range(times):
        yield from messages()


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
