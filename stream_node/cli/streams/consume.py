"""The commands `stream-node consume` and `tail`, which read growing streams."""

from __future__ import annotations

import array
import fcntl
import os
import select
import stat
import sys
import termios
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stream_node.cli.client import open_source, with_client
from stream_node.cli.options import (
    ALL_PARTITIONS,
    ANY_NODE,
    RUNS,
    FollowOption,
    NodeOptions,
    PartitionOptions,
    StreamArgument,
    complete_consumer,
    not_empty,
)
from stream_node.cli.output import tell
from stream_node.cli.streams.messages import FailOnHoleOption, Printer, flush
from stream_node.cli.streams.pull import BARE_DATA, FromOption, LastOption, PrintOptions, StopOption, begin_at
from stream_node.cli.values import UsageError

if TYPE_CHECKING or RUNS:
    import trio

    from stream_client import LeaseLost, LeaseMember, RichMessage, SavedIndexes, Stream, StreamClient
    from stream_client.consume.consumer import Messages
    from stream_client.share.shared_consumer import SharedMessages

TAIL_MESSAGES = 10
PIPE_BYTES = 4096
"""The size of the smallest pipe: one page of memory. With larger pages, the smallest pipe is larger, too."""


def consume(
    stream: StreamArgument,
    client_id: Annotated[
        str,
        typer.Option("--client", callback=not_empty, autocompletion=complete_consumer),
        "The name of the consumer whose position is resumed and saved.",
    ],
    node: NodeOptions = ANY_NODE,
    partitions: PartitionOptions = ALL_PARTITIONS,
    share: Annotated[
        bool, "Share the partitions with every other process that runs this command with the same --client."
    ] = False,
    follow: FollowOption = False,
    limit: StopOption = None,
    printing: PrintOptions = BARE_DATA,
    fail_on_hole: FailOnHoleOption = False,
) -> None:
    """Print the messages after the saved position of a consumer, and save the new position.

    Example: stream-node consume logs --client mailer --follow

    One partition, for a program: stream-node consume orders --client billing --partition 2 --json

    In several processes, each with some of the partitions: stream-node consume orders --client billing --share --follow
    """

    # PositionReset or StreamRemade. The consumer goes on by itself: at the position that somebody has set, or at the
    # beginning of the stream that was created again.
    def on_event(event: Exception) -> None:
        tell(str(event))

    partition = partitions.one()
    if share and partition is not None:
        raise UsageError("--partition chooses one, and --share shares all; leave one out")
    printer = Printer(stream, printing.format(), fail_on_hole)

    async def run(client: StreamClient) -> None:
        left = limit
        _take_singly()

        async def show_all(messages: SharedMessages | Messages[tuple[int, RichMessage]]) -> None:
            nonlocal left
            async with aclosing(messages):
                async for at, message in messages:
                    printer.write(message, at)
                    # The position is saved next, only behind messages that the reader of a pipe has taken.
                    flush()
                    await _output_taken()
                    left = None if left is None else left - 1
                    if left == 0:
                        break

        if share:
            async with (await client.get_stream(stream)).shared_consumer(
                LeaseMember(client, client_id), on_hole=printer.note_hole, on_event=on_event
            ) as member:
                # A member that loses its leases, for example in a long pause, joins its group again.
                going_on = True
                while going_on:
                    try:
                        await show_all(member.messages(stop_at_end=not follow))
                        going_on = False
                    except LeaseLost as lost:
                        tell(str(lost))
            return
        source = await open_source(client, stream, partition)
        async with source.consumer(
            SavedIndexes(client, client_id), on_hole=printer.note_hole, on_event=on_event
        ) as consumer:
            await show_all(consumer.messages(stop_at_end=not follow))

    with_client(run, node, waits=follow)


def tail(
    stream: StreamArgument,
    start: FromOption = None,
    last: LastOption = None,
    node: NodeOptions = ANY_NODE,
    partitions: PartitionOptions = ALL_PARTITIONS,
    limit: StopOption = None,
    printing: PrintOptions = BARE_DATA,
    fail_on_hole: FailOnHoleOption = False,
) -> None:
    """Print the last messages, then new ones as they arrive, until Ctrl-C. No position is saved.

    Example: stream-node tail logs --last 100 --times

    Only new messages, of one partition: stream-node tail orders --from new --partition 2
    """
    partition = partitions.one()
    printer = Printer(stream, printing.format(), fail_on_hole)
    begin = begin_at(None, start, TAIL_MESSAGES if start is None and last is None else last)

    async def run(client: StreamClient) -> None:
        sources = (await open_source(client, stream, partition)).partitions
        left = limit

        async def show_all(source: Stream) -> None:
            nonlocal left
            follower = source.follow(begin, on_hole=printer.note_hole)
            while page := await follower.next_page():
                for message in page:
                    if left == 0:
                        return
                    printer.write(message, source.partition)
                    flush()
                    left = None if left is None else left - 1
                    if left == 0:
                        nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for source in sources:
                nursery.start_soon(show_all, source)

    with_client(run, node, waits=True)


def _take_singly() -> None:
    """Makes a pipe at standard output so small that it is writable only while it is empty."""
    # The system refuses to shrink a pipe that already has more than a page in it; `_output_taken` then proves less.
    with suppress(OSError):
        if _is_pipe():
            fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)


async def _output_taken() -> None:
    """Waits until the reader of a pipe has taken everything. Raises BrokenPipeError if it went away. No position must
    be saved behind messages that nobody read. On Linux, a pipe of one page is writable exactly while it is empty;
    elsewhere, all output counts as taken."""
    if not _is_pipe():
        return
    outlet = sys.stdout.fileno()
    poll = select.poll()
    poll.register(outlet, select.POLLOUT)
    # Most readers are quick, and waiting in the event loop takes longer than they do.
    if not poll.poll(0):
        await trio.lowlevel.wait_writable(outlet)
    unread = array.array("i", [0])
    fcntl.ioctl(outlet, termios.FIONREAD, unread)
    if unread[0] and any(state & select.POLLERR for _, state in poll.poll(0)):
        raise BrokenPipeError("the reader of standard output is gone")


def _is_pipe() -> bool:
    return sys.platform == "linux" and stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
