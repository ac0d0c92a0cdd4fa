"""`stream-node push`, `pull` and `consume`: the stream client at the command line."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from stream_node.cli.options import ContextOption, JsonOption, NodeOption, PartitionOption, ViaOption
from stream_node.cli.output import counted

if TYPE_CHECKING:
    from stream_service.client import RichMessage, Stream, StreamClient, StreamMessage


def register(app: typer.Typer) -> None:
    for command in (push, pull, consume):
        app.command()(command)


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
    window: Annotated[int, typer.Option(min=1, help="How many pushes may wait for their confirm.")] = 1_000,
    as_json: JsonOption = False,
) -> None:
    """Push messages, one a line, and say where they were stored. Done means: on disk.

    Example: journalctl | stream-node push logs
    """

    async def run(client: StreamClient) -> None:
        target = await _partition(client, stream, partition)
        started_s = time.monotonic()
        pushes = []
        with ExitStack() as stack:
            lines: Iterable[bytes] = [data.encode()] if data is not None else _lines(files or [], stack)
            async with target.publisher(window) as publisher:
                pushes = [await publisher.push(line) for line in lines]
        indexes = [each.result() for each in pushes]
        seconds = time.monotonic() - started_s
        report: dict[str, Any] = {"stream": target.name, "partition": partition, "pushed": len(indexes)}
        report |= {"first_index": min(indexes, default=None), "last_index": max(indexes, default=None)}
        if as_json:
            typer.echo(json.dumps({**report, "seconds": round(seconds, 6)}))
        else:
            first, last = report["first_index"], report["last_index"]
            where = "" if not indexes else f" at {first}" if first == last else f" at {first} to {last}"
            typer.echo(f"{counted(len(indexes), 'message')} in {target.name}/{partition}{where} ({seconds:.2f} s)")

    _with_client(run, node, context, via)


def pull(
    stream: Annotated[str, typer.Argument(help="The stream's name.")],
    index: Annotated[int, typer.Option(min=0, help="From here on; 0 is the earliest stored.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="At most so many messages.")] = 10,
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    partition: PartitionOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Print stored messages, one a line.

    Example: stream-node pull logs --index 100 --limit 5 --json
    """

    async def run(client: StreamClient) -> None:
        source = await _partition(client, stream, partition)
        next_index, left = index, limit
        while left > 0 and (page := await source.pull(next_index, left)):
            for message in page:
                _print(message, partition, as_json)
            next_index, left = page[-1].index + 1, left - len(page)

    _with_client(run, node, context, via)


def consume(
    stream: Annotated[str, typer.Argument(help="The stream's name.")],
    client_id: Annotated[str, typer.Option("--client", help="Whose position to resume and to save.")],
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    partition: PartitionOption = 0,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end instead of stopping.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print messages from this client's saved position on, and save how far it came.

    Example: stream-node consume logs --client mailer --follow
    """
    from index_service.client import SavedIndexes
    from stream_service.client import Consumer

    async def run(client: StreamClient) -> None:
        source = await _partition(client, stream, partition)
        positions = SavedIndexes(client, client_id)
        consumer = Consumer(source, positions)
        async for message in consumer.messages(stop_at_end=not follow):
            _print(message, partition, as_json)
        await positions.get(source.name, partition)

    _with_client(run, node, context, via)


def _with_client(run: Any, node: str | None, context: str | None, via: list[str] | None) -> None:
    """Run an async function with a client of that node."""
    import trio

    from ockam.address import tcp
    from stream_node.contexts import resolve_target
    from stream_service.client import connect

    target = resolve_target(node, context, via or ())

    async def main() -> None:
        route = tuple(tcp(hop) for hop in target.via)
        async with connect(target.address, via=route) as client:
            await run(client)

    trio.run(main)


async def _partition(client: StreamClient, name: str, partition: int) -> Stream:
    if partition == 0:
        return await client.create(name)
    return (await client.create_partitioned(name, partition + 1)).partitions[partition]


def _lines(files: list[Path], stack: ExitStack) -> Iterator[bytes]:
    """Lines without their line ends, of each file in turn."""
    sources: list[BinaryIO] = [stack.enter_context(file.open("rb")) for file in files] or [sys.stdin.buffer]
    for source in sources:
        for line in source:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _print(message: StreamMessage | RichMessage, partition: int, as_json: bool) -> None:
    """One message: its bytes, or JSON with `data` as text where it is UTF-8 and else as `data_base64`."""
    if not as_json:
        sys.stdout.buffer.write(message.data + b"\n")
        sys.stdout.buffer.flush()
        return
    row: dict[str, Any] = {"partition": partition, "index": message.index}
    try:
        row["data"] = message.data.decode()
    except UnicodeDecodeError:
        row["data_base64"] = base64.b64encode(message.data).decode()
    typer.echo(json.dumps(row))
