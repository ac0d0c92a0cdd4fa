"""Floods a node with everything that one identity can send, until it is killed.

    python -m bench.works.flooder HOST:PORT CA CERTIFICATE KEY

Three connections push with a huge window, pull the same pages again and again, and create streams. The program prints a
line when all three have begun.
"""

from __future__ import annotations

import itertools
import os
import sys

import trio

from stream_client import ClientError, Stream, Tls, connect

WINDOW = 20_000
SIZE_BYTES = 100
PULLS = 64
"""Pulls that are under way at one time."""
PAGE_MESSAGES = 1_000


async def push(stream: Stream) -> None:
    data = os.urandom(SIZE_BYTES)
    async with stream.publisher(WINDOW) as publisher:
        while True:
            await publisher.push(data)


async def pull(stream: Stream) -> None:
    while True:
        await stream.pull(0, PAGE_MESSAGES)


async def flood(address: str, tls: Tls) -> None:
    async with (
        connect(address, tls=tls) as pusher,
        connect(address, tls=tls) as puller,
        connect(address, tls=tls) as maker,
    ):
        stream, read = await pusher.create("flood"), await puller.create("flood")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push, stream)
            for _ in range(PULLS):
                nursery.start_soon(pull, read)
            print("flooding", flush=True)
            for number in itertools.count():
                try:
                    await maker.create(f"flood.{number}")
                except ClientError:
                    # The limit on created streams is exceeded. A flood goes on.
                    continue


def main() -> None:
    address, ca, certificate, key = sys.argv[1:]
    trio.run(flood, address, Tls(ca, certificate, key))


if __name__ == "__main__":
    main()
