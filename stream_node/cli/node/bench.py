"""The commands `stream-node bench push|pull|latency|fanout`, which measure a node, and `demo`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.client import open_client, run_to_signal
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions
from stream_node.cli.output import AS_JSON, ProgressLine, columns, counted, say, tell
from stream_node.cli.values import CommandFailed

if TYPE_CHECKING or RUNS:
    import msgspec

    from stream_node.bench.run import Load, Result, Work, own_node, run
    from stream_node.cli.contexts import find_target, resolve_target
    from stream_node.node.process import NodeNotStarted, interrupted_by

CLIENTS_MAX = 1_000
"""The maximum number of clients. Each client needs a connection: an open file in this process, and one in the node."""
STAMPED_BYTES = 8
"""The number of bytes at the start of a fan-out message that hold the time of its push."""
HEAD = ("messages/s", "MB/s", "seconds", "p50", "p90", "p99", "p99.9", "max")

MessagesOption = Annotated[int, typer.Option(min=1), "The number of messages."]
SizeOption = Annotated[int, typer.Option(min=0), "BYTES", "The size of each message."]
StampedSizeOption = Annotated[int, typer.Option(min=STAMPED_BYTES), "BYTES", "The size of each message."]
WindowOption = Annotated[int, typer.Option(min=1), "The maximum number of unconfirmed pushes of each publisher."]
PublishersOption = Annotated[
    int,
    typer.Option(min=1, max=CLIENTS_MAX),
    "The number of publishers, each with a connection. They divide the messages among themselves.",
]
ReadersOption = Annotated[
    int,
    typer.Option(min=1, max=CLIENTS_MAX),
    "The number of readers that each pull all messages, each with a connection.",
]
ConsumersOption = Annotated[
    int,
    typer.Option(min=1, max=CLIENTS_MAX),
    "The number of consumers that each get every message, each with a connection.",
]
PageOption = Annotated[int, typer.Option(min=1), "The number of messages that a reader requests at a time."]


def push(
    messages: MessagesOption = 100_000,
    size: SizeOption = 100,
    window: WindowOption = 1_000,
    publishers: PublishersOption = 1,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Push messages, and measure the time until the last confirm. A confirmed message is on the node's disk.

    The latencies are those of single pushes, from the call to the confirm. They include the time that a push waits in
    the window.

    Example: stream-node bench push --messages 100000 --size 1000 --publishers 4
    """
    _measure("push", node, messages=messages, size_bytes=size, clients=publishers, window=window)


def pull(
    messages: MessagesOption = 100_000,
    size: SizeOption = 100,
    page: PageOption = 1_000,
    readers: ReadersOption = 1,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Pull stored messages, and measure the pulls. Each reader pulls all messages. The command first stores the
    messages, which is not measured.

    The latencies are those of single pulls, from the call to the page of messages.

    Example: stream-node bench pull --messages 100000 --page 100 --readers 4
    """
    _measure("pull", node, messages=messages, size_bytes=size, clients=readers, window=page)


def latency(
    messages: MessagesOption = 1_000,
    size: SizeOption = 100,
    publishers: PublishersOption = 1,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Measure single pushes. Each publisher waits for the confirm of a push before its next push.

    Example: stream-node bench latency --messages 1000 --publishers 10
    """
    _measure("latency", node, messages=messages, size_bytes=size, clients=publishers)


def fanout(
    messages: MessagesOption = 10_000,
    size: StampedSizeOption = 100,
    window: WindowOption = 100,
    consumers: ConsumersOption = 10,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Push messages to many consumers, and count the deliveries. Each consumer receives every message.

    The latencies are those of all deliveries, from the push to the receipt.

    Example: stream-node bench fanout --messages 10000 --consumers 100
    """
    _measure("fanout", node, messages=messages, size_bytes=size, clients=consumers, window=window)


def _measure(work: Work, node: NodeOptions, **load: int) -> None:
    """Runs a load (`stream_node.bench.run.Load`) on the chosen node, or on one started for the run."""
    # With --via the user has chosen a node. Without --node and a context, the route to it begins at the default node.
    target = node.target() if node.via else find_target(node.node, node.context, ())
    with ExitStack() as stack:
        # This is entered first: a signal must also end a node that is still starting, and its data must be removed.
        stack.enter_context(interrupted_by(signal.SIGTERM, signal.SIGHUP))
        if is_own := target is None:
            try:
                target = resolve_target(stack.enter_context(own_node()), None, ())
            except NodeNotStarted as error:
                raise CommandFailed(f"no node to measure: {error}") from error
        progress = stack.enter_context(ProgressLine())
        # Each run deletes its stream, also after a signal.
        result = run_to_signal(run, work, Load(**load), partial(open_client, target), progress.draw, tell)
    where = (target.address, *target.via)[-1]
    report: dict[str, Any] = {"node": None if is_own else where, **msgspec.to_builtins(result)}
    say(report, [f"{work}, {_about(result)}: {'a node for this run' if is_own else where}", *_table(result)])


def _about(result: Result) -> str:
    noun, rest = {
        "push": ("publisher", f"window {result.window:,}"),
        "pull": ("reader", f"{result.window:,} a page"),
        "latency": ("publisher", "each push confirmed before the next"),
        "fanout": ("consumer", f"window {result.window:,}"),
    }[result.work]
    messages = f"{result.messages:,} deliveries" if result.work == "fanout" else counted(result.messages, "message")
    return f"{messages} of {counted(result.size_bytes, 'byte')}, {counted(result.clients, noun)}, {rest}"


def _table(result: Result) -> Iterator[str]:
    figures = [f"{result.messages_per_second:,.0f}", f"{result.bytes_per_second / 1e6:,.1f}", f"{result.seconds:,.2f}"]
    figures += map(_time, msgspec.structs.astuple(result.latency_us)[1:])
    return columns([HEAD, figures], right=frozenset(range(len(HEAD))))


def _time(time_us: float) -> str:
    """Formats a time with a suitable unit: "640 µs", "1.34 ms", "2.50 s"."""
    for unit, divisor in (("s", 1e6), ("ms", 1e3)):
        if time_us >= divisor:
            value = time_us / divisor
            return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{time_us:.0f} µs"


def demo(
    input_dir: Annotated[Path | None, "The folder of the text files to push."] = None,
    with_export: Annotated[
        bool, typer.Option("--export/--no-export"), "Export the messages with Spark at the end, if Spark is installed."
    ] = True,
) -> None:
    """Start two nodes, push real text through them, kill processes, and prove that no confirmed message is lost.

    Example: stream-node demo
    """
    # The demo imports Rich and the block node, which the benchmark does not use.
    from stream_node.demo.run import run_demo

    run_demo(input_dir, with_export=with_export, as_json=AS_JSON.get())
