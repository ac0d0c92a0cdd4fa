"""Runs the command `stream-node bench` once: opens connections, creates a stream, runs a load, and deletes the stream.
It measures a given node, or one that it starts. It prints nothing but a message if the stream cannot be deleted."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import trio

from stream_client import ClientError, Stream, StreamClient
from stream_node.bench.loads import Load, Progress, Timed, fanout, latency, percentile, pull, push
from stream_node.node.process import NodeProcess

REMOVAL_TIMEOUT_S: Final = 10.0
"""The longest wait for the deletion of the test stream. After that the stream stays, so that the run ends."""
FILL_WINDOW: Final = 1_000

Work = Literal["push", "pull", "latency", "fanout"]
Connect = Callable[[], AbstractAsyncContextManager[StreamClient]]
Draw = Callable[[str, int, int], None]
"""Shows the progress of a step: its name, the number of messages done, and their total number."""


class Latency(msgspec.Struct, frozen=True):
    """Percentiles of the durations of single requests, in microseconds. timed: the number of measured requests."""

    timed: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, times_us: Sequence[float]) -> Latency:
        ordered = sorted(times_us)
        p50, p90, p99, p999 = (percentile(ordered, per_mille) for per_mille in (500, 900, 990, 999))
        return cls(timed=len(ordered), p50=p50, p90=p90, p99=p99, p999=p999, max=ordered[-1])


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. messages: of all clients together.
    latency_us: for pushes, the times from the call to the confirm; for pulls, from the call to the page; for a fan-out,
    from the push to the receipt by a consumer."""

    work: Work
    messages: int
    size_bytes: int
    clients: int
    window: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    latency_us: Latency


class _Kind(NamedTuple):
    """A kind of load, and how it uses the node. verb: for the progress line. is_filled: all messages are stored before
    the load. writers: the number of connections that only push, besides those of the clients."""

    load: Callable[[Sequence[Stream], Load, Progress], Awaitable[Timed]]
    verb: str
    writers: int = 0
    is_filled: bool = False


KINDS: Final[dict[Work, _Kind]] = {
    "push": _Kind(push, "pushing"),
    "pull": _Kind(pull, "pulling", is_filled=True),
    "latency": _Kind(latency, "pushing"),
    "fanout": _Kind(fanout, "delivering", writers=1),
}


async def run(work: Work, load: Load, connect: Connect, draw: Draw, tell: Callable[[str], None]) -> Result:
    """Measures a load on a new stream. Deletes the stream at the end, even if the load fails. Raises ClientError.
    tell: prints a message if the stream could not be deleted."""
    kind = KINDS[work]
    name = f"bench-{secrets.token_hex(6)}"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(connect())
        streams = [await stack.enter_async_context(_own_stream(first, name, tell))]
        # Each client has a connection of its own, as programs on other machines would have.
        for _ in range(load.clients + kind.writers - 1):
            client = await stack.enter_async_context(connect())
            streams.append(await client.create(name))
        if kind.is_filled:
            filling = Load(messages=load.messages, size_bytes=load.size_bytes, window=FILL_WINDOW)
            await push(streams[:1], filling, _counted(draw, "filling", load.messages))
        # Every client pulls every message, and every consumer gets every message.
        total = load.messages * (load.clients if work in ("pull", "fanout") else 1)
        timed = await kind.load(streams, load, _counted(draw, kind.verb, total))
    rate = timed.messages / timed.seconds
    return Result(
        work=work,
        messages=timed.messages,
        size_bytes=load.size_bytes,
        clients=load.clients,
        window=load.window,
        seconds=timed.seconds,
        messages_per_second=rate,
        bytes_per_second=rate * load.size_bytes,
        latency_us=Latency.of(timed.times_us),
    )


@contextmanager
def own_node() -> Iterator[str]:
    """Runs a node while the block runs, and yields its address. Raises NodeNotStarted, OSError.
    Its data is in the working directory: the system's folder for temporary files is often in memory."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as place:
        node = NodeProcess(Path(place) / "data", log_file=Path(place) / "node.log")
        try:
            node.start()
            yield node.address
        finally:
            node.kill()


@asynccontextmanager
async def _own_stream(client: StreamClient, name: str, tell: Callable[[str], None]) -> AsyncIterator[Stream]:
    stream = await client.create(name)
    try:
        yield stream
    finally:
        why = f"no answer within {REMOVAL_TIMEOUT_S:g} s"
        # This is shielded, so that an interrupted run also deletes its stream.
        with trio.move_on_after(REMOVAL_TIMEOUT_S, shield=True) as removal:
            try:
                await stream.delete()
            except ClientError as error:
                why = str(error)
            else:
                why = ""
        if removal.cancelled_caught or why:
            tell(f"the stream {name} is still on the node ({why}); to remove it: stream-node stream delete {name}")


def _counted(draw: Draw, verb: str, total: int) -> Progress:
    done = 0

    def progress(messages: int) -> None:
        nonlocal done
        done += messages
        draw(verb, done, total)

    return progress
