"""Mirroring: how fast a mirror is beside its source, and how far behind. `python -m bench.works.mirroring` prints it.

1. rate: one client pushes with a window of 1,000; when the client stops, how many of the messages that the source has
   stored does the mirror have?
2. lag: one client pushes at a steady rate; a follower of the mirror, in a process of its own, measures the time from
   the call of each push until it has the message. This includes the commit on the source.

Both nodes, the client and the follower share the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Annotated, Final

import trio
import typer

from bench.measure import push_in_turn
from bench.servers.bench_node import BenchNode
from stream_client import connect
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorRequest

STREAM: Final = "mirrored"
SIZE_BYTES: Final = 100
WINDOW: Final = 1_000
TICK_S: Final = 0.01
STAMP_BYTES: Final = 8
FOLLOW: Final = "follow"


async def _mirror(mirror: str, source: str) -> None:
    async with connect(source) as client:
        await client.create(STREAM)
    async with connect(mirror) as client:
        await client.session.ask(ADDRESS, MIRRORS, MirrorRequest(0, MirrorAction.ADD, STREAM, source, "", False))


async def _rate(source: str, mirror: str | None, messages: int) -> dict[str, float]:
    """Pushes, and counts what the mirror has at the end; None: there is no mirror."""
    async with connect(source) as client:
        stream = await client.create(STREAM)
        begin = (await stream.info()).next_index
        pushed = await push_in_turn([stream], messages=messages, size_bytes=SIZE_BYTES, window=WINDOW)
        if mirror is None:
            return {"pushed_per_s": round(messages / pushed.seconds)}
        copied, began_s = await _find_end(mirror) - begin, time.perf_counter()
        await _wait_end(mirror, begin + messages)
        drained_s = time.perf_counter() - began_s
    return {
        "pushed_per_s": round(messages / pushed.seconds),
        "copied_meanwhile": round(copied / messages, 3),
        "mirror_per_s": round(messages / (pushed.seconds + drained_s)),
        "ratio": round(pushed.seconds / (pushed.seconds + drained_s), 3),
        "drained_s": round(drained_s, 3),
    }


async def _find_end(address: str) -> int:
    async with connect(address) as client:
        found = await client.find_stream(STREAM)
        assert found is not None, "it was made"
        return (await found.partitions[0].info()).next_index


async def _wait_end(address: str, end: int) -> None:
    """Waits until the stream at this address has all messages up to this index."""
    async with connect(address) as client:
        found = await client.find_stream(STREAM)
        assert found is not None, "it was made"
        if end:
            async for message in found.partitions[0].follow(end - 1):
                if message.index >= end - 1:
                    return


async def _push_steadily(source: str, rate: int, seconds: float) -> int:
    """Pushes messages that begin with the time of their push. Returns their number."""
    rest = bytes(SIZE_BYTES - STAMP_BYTES)
    count = 0
    async with connect(source) as client:
        stream = await client.create(STREAM)
        async with stream.publisher(WINDOW) as publisher:
            began_s = time.perf_counter()
            while (now_s := time.perf_counter() - began_s) < seconds:
                while count < rate * now_s:
                    await publisher.push(time.time_ns().to_bytes(STAMP_BYTES, "big") + rest)
                    count += 1
                await trio.sleep(TICK_S)
            await publisher.flush()
    return count


async def _follow(mirror: str) -> None:
    """Prints a line when it follows, reads until its input ends, and then prints the lags."""
    lags_ns: list[int] = []
    async with connect(mirror) as client:
        stream = await client.find_stream(STREAM)
        assert stream is not None, "it was made"

        async def read(cancel: trio.CancelScope) -> None:
            with cancel:
                async for message in stream.partitions[0].follow((await stream.partitions[0].info()).next_index):
                    now_ns = time.time_ns()
                    lags_ns.append(now_ns - int.from_bytes(message.data[:STAMP_BYTES], "big"))

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(read, scope)
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            scope.cancel()
    lags_ns.sort()
    places = {name: lags_ns[min(len(lags_ns) - 1, int(len(lags_ns) * part))] for name, part in PARTS.items()}
    print(json.dumps({"messages": len(lags_ns), **{name: round(ns / 1e6, 1) for name, ns in places.items()}}))


PARTS: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}


def _lag(source: str, mirror: str, rate: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.works.mirroring", FOLLOW, mirror]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdin is not None
        assert follower.stdout.readline() == "ready\n"
        count = trio.run(_push_steadily, source, rate, seconds)
        end = trio.run(_find_end, source)
        trio.run(_wait_end, mirror, end)
        time.sleep(0.5)
        follower.stdin.close()
        found: dict[str, float] = json.loads(follower.stdout.read())
    return {"asked_per_s": rate, "pushed_per_s": round(count / seconds), **found}


def main(
    what: Annotated[str, typer.Argument(help="rate, lag or all.")] = "all",
    address: Annotated[str, typer.Argument(hidden=True)] = "",
    messages: int = 300_000,
    rate: int = 10_000,
    seconds: float = 20.0,
) -> None:
    """Measure a mirror beside its source."""
    if what == FOLLOW:
        trio.run(_follow, address)
        return
    with BenchNode() as source, BenchNode() as mirror:
        if what in ("rate", "all"):
            alone = trio.run(_rate, source.address, None, messages)
            typer.echo(json.dumps({"without a mirror": alone}))
        trio.run(_mirror, mirror.address, source.address)
        end = trio.run(_find_end, source.address)
        while trio.run(_find_end, mirror.address) < end:
            time.sleep(0.05)
        if what in ("rate", "all"):
            for _ in range(3):
                typer.echo(json.dumps({"rate": trio.run(_rate, source.address, mirror.address, messages)}))
        if what in ("lag", "all"):
            typer.echo(json.dumps({"lag": _lag(source.address, mirror.address, rate, seconds)}))


if __name__ == "__main__":
    typer.run(main)
