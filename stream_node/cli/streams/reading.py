"""The commands `stream-node pull`, which prints stored messages, and `consume` and `tail`, which follow a stream."""

from __future__ import annotations

import array
import fcntl
import os
import select
import shlex
import stat
import sys
import termios
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
from stream_node.cli.output import AS_JSON, counted, tell
from stream_node.cli.streams.messages import LOOKED_MAX, FailOnHoleOption, Match, Printer, PrintFormat, flush
from stream_node.cli.values import START_HELP, UsageError, parse_start, utc_now

if TYPE_CHECKING or RUNS:
    import trio

    from stream_client import (
        FromEnd,
        LeaseLost,
        LeaseMember,
        RequestRefused,
        RichMessage,
        SavedIndexes,
        Stream,
        StreamClient,
        StreamMessage,
    )
    from stream_client.arguments import StartLike
    from stream_client.consume.consumer import Messages
    from stream_client.consume.page import find_holes
    from stream_client.share.shared_consumer import SharedMessages

FromOption = Annotated[str | None, typer.Option("--from"), "START", f"Where to begin: {START_HELP}"]
LastOption = Annotated[int | None, typer.Option(min=1), "Begin this number of messages before the end."]
StopOption = Annotated[int | None, typer.Option(min=1), "Stop after this number of messages."]
PULL_LIMIT = 10
TAIL_MESSAGES = 10
PIPE_BYTES = 4096
"""The size of the smallest pipe: one page of memory. With larger pages, the smallest pipe is larger, too."""


class PrintOptions(NamedTuple):
    keys: Annotated[bool, "Print each message's key too."] = False
    headers: Annotated[bool, "Print each message's headers too."] = False
    times: Annotated[bool, "Print each message's time of publication too."] = False
    ndjson: Annotated[
        bool, "Print everything that is stored of each message, in JSON. `push --ndjson` can read it."
    ] = False
    raw: Annotated[bool, "Do not escape control characters at a terminal. Elsewhere they are never escaped."] = False

    def format(self, *, framed: bool = False) -> PrintFormat:
        """Returns the print format. Raises UsageError if the options cannot be combined. framed: --length-framed."""
        as_json = AS_JSON.get()
        if framed and (self.keys or self.headers or self.times or as_json or self.ndjson):
            raise UsageError(
                "--length-framed prints the data of a message and nothing else; use --ndjson alone, which has its key, "
                "headers, time and data"
            )
        escaped = sys.stdout.isatty() and not self.raw
        keys, headers, times = (each or self.ndjson for each in (self.keys, self.headers, self.times))
        return PrintFormat(keys, headers, times, as_json or self.ndjson, framed, escaped)


BARE_DATA = PrintOptions()


def pull(
    ctx: typer.Context,
    stream: StreamArgument,
    index: Annotated[
        int | None, typer.Option(min=0), "The first index to read. 0 means the earliest stored message."
    ] = None,
    start: FromOption = None,
    last: LastOption = None,
    limit: Annotated[int | None, typer.Option(min=0), f"The number of messages, at most ({PULL_LIMIT})."] = None,
    node: NodeOptions = ANY_NODE,
    partitions: PartitionOptions = ALL_PARTITIONS,
    printing: PrintOptions = BARE_DATA,
    length_framed: Annotated[bool, "Print the length in front of each message (u32, big-endian)."] = False,
    fail_on_hole: FailOnHoleOption = False,
    grep: Annotated[str | None, "TEXT", "Print only messages that contain TEXT."] = None,
    grep_key: Annotated[str | None, "TEXT", "Print only messages whose key contains TEXT."] = None,
    grep_header: Annotated[
        str | None, "NAME[=TEXT]", "Print only messages with this header, whose value contains TEXT."
    ] = None,
    scan: Annotated[
        int, typer.Option(min=1), "With --grep…: the number of messages that are looked at, at most."
    ] = LOOKED_MAX,
) -> None:
    """Print stored messages, one per line. --keys, --headers and --times add columns before the message.

    Example: stream-node pull logs --index 100 --limit 5 --json

    The messages of the last two hours: stream-node pull logs --from 2h --limit 1000 --times

    Those of one customer among the last 100,000: stream-node pull orders --last 100000 --scan 100000 --grep-key c-17

    At a terminal, control characters in messages are escaped, unless --raw is given.

    Everything, in a form that `push` reads: stream-node pull logs --limit 1000000 --ndjson

    Of a stream with several partitions, one is printed after the other, or only that of --partition. --index, --from,
    --last and --limit apply to each partition.
    """
    partition = partitions.one()
    print_format = printing.format(framed=length_framed)
    begin = begin_at(index, start, last)
    wanted = limit if limit is not None else last if last is not None else PULL_LIMIT
    unsaid = limit is None and last is None
    match = Match.of(grep_key, grep_header, grep)

    # Every node has the plain protocol, so our own protocol is used only where the plain one does not suffice: it has
    # no keys, headers and times, and begins at an index.
    is_plain = isinstance(begin, int) and not (print_format.keys or print_format.headers or print_format.times)

    async def run(client: StreamClient) -> None:
        for source in (await open_source(client, stream, partition)).partitions:
            printer = Printer(stream, print_format, fail_on_hole)
            if match is not None:
                await _pull_matching(source, begin, scan if limit is None else limit, scan, match, printer)
                continue
            resume_index = await _pull(source, begin, wanted, is_plain, printer)
            if unsaid and resume_index is not None:
                await _report_more(source, resume_index, ctx)

    with_client(run, node)


async def _pull(source: Stream, begin: Any, left: int, is_plain: bool, printer: Printer) -> int | None:
    """Prints up to `left` messages. Returns the next index; None at the end of the stream, or if it is not known.
    is_plain: whether to use the protocol of the specification, which returns no keys, headers and times."""
    messages: Sequence[StreamMessage | RichMessage]
    while left > 0:
        if is_plain:
            messages = await source.pull(begin, left)
            resume_index = messages[-1].index + 1 if messages else 0
        else:
            page = await source.pull_page(begin, left)
            messages, resume_index = page.messages, page.resume_index
        if not messages:
            return None
        _write_page(messages, begin, source.partition, printer)
        begin, left = resume_index, left - len(messages)
    return begin if isinstance(begin, int) else None


async def _pull_matching(
    source: Stream, begin: StartLike, left: int, scan: int, match: Match, printer: Printer
) -> None:
    """Prints up to `left` matching messages among the next `scan` ones. Prints on stderr where the search ended."""
    looked = found = 0
    while looked < scan and found < left and (page := await source.pull_page(begin, scan - looked)).messages:
        fitting = [each for each in page.messages if match.fits(each)][: left - found]
        is_enough = found + len(fitting) == left
        seen = [each for each in page.messages if not is_enough or each.index <= fitting[-1].index]
        _write_page(seen, begin, source.partition, printer, match)
        begin, looked, found = seen[-1].index + 1, looked + len(seen), found + len(fitting)
    place = f"{source.name}/{source.partition}"
    # A search that read no message has no index to continue at. One that came to the end has no message to read.
    on = f"; go on with --index {begin}" if looked and not (looked < scan and found < left) else ""
    tell(f"{found:,} of {counted(looked, 'message')} in {place} match{on}")


def _write_page(
    messages: Sequence[Any], begin: StartLike, partition: int, printer: Printer, match: Match | None = None
) -> None:
    """Prints the matching messages of a page. begin: the start that was asked for; 0: the earliest stored message."""
    for hole in find_holes(messages, begin if isinstance(begin, int) and begin else None):
        printer.note_hole(partition, *hole)
    try:
        for message in messages:
            printer.write(message, partition, is_wanted=match is None or match.fits(message))
    finally:
        flush()


async def _report_more(source: Stream, resume_index: int, ctx: typer.Context) -> None:
    """Prints on stderr how many messages follow, if any, and a command that prints them."""
    try:
        more = (await source.info()).next_index - resume_index
    except RequestRefused:
        # This peer cannot tell where its stream ends, so the next page is counted.
        more = len(await source.pull(resume_index, PULL_LIMIT))
    if more > 0:
        partition = {"partition": source.partition, "all_partitions": None}
        again = _command_again(ctx, **partition, index=resume_index, start=None, limit=more)
        tell(f"{counted(more, 'more message')} in {source.name}/{source.partition}: to print them: {again}")


def _command_again(ctx: typer.Context, **changed: Any) -> str:
    """Returns the present command as a shell line: the parameters of the command line, changed as given (None leaves
    a parameter out). Values of the environment and of the contexts are not repeated."""
    words = ctx.command_path.split()
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        typed = ctx.params[name] if source is not None and source.name == "COMMANDLINE" else None
        value = changed.get(name, typed)
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is None or each is False:
                continue
            words += [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
            words += [] if each is True else [str(each)]
    return shlex.join(words)


def begin_at(index: int | None, start: str | None, last: int | None) -> StartLike:
    """Returns the start of a pull, by default the earliest message. Raises UsageError for more than one option."""
    if sum(each is not None for each in (index, start, last)) > 1:
        raise UsageError("--index, --from and --last each say where to begin; choose one")
    if start is not None:
        return parse_start(start, utc_now())
    return FromEnd(last) if last is not None else index or 0


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

    # The event is a PositionReset or a StreamRemade. The consumer then goes on by itself: at the position that somebody
    # has set, or at the beginning of the stream that was created again.
    def on_event(event: Exception) -> None:
        tell(str(event))

    partition = partitions.one()
    if share and partition is not None:
        raise UsageError("--partition chooses one, and --share shares all; leave one out")
    printer = Printer(stream, printing.format(), fail_on_hole)

    async def run(client: StreamClient) -> None:
        left = limit
        # A pipe this small is writable only while it is empty. The system refuses to shrink one that already has more
        # than a page in it; `_output_taken` then proves less.
        with suppress(OSError):
            if _is_pipe():
                fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)

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
            shared, lease = await client.get_stream(stream), LeaseMember(client, client_id)
            async with shared.shared_consumer(lease, on_hole=printer.note_hole, on_event=on_event) as member:
                # A member that loses its leases, for example in a long pause, joins its group again.
                while True:
                    try:
                        return await show_all(member.messages(stop_at_end=not follow))
                    except LeaseLost as lost:
                        tell(str(lost))
        source = await open_source(client, stream, partition)
        saved = SavedIndexes(client, client_id)
        async with source.consumer(saved, on_hole=printer.note_hole, on_event=on_event) as consumer:
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
