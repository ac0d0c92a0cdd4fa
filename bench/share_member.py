"""One member of the group in `bench/works/share.py`: a process that reads its share of a stream's partitions.

    python -m bench.share_member NODE VIA STREAM PARTITIONS GROUP MESSAGES MEMBERS

VIA: a node that forwards, or empty. MESSAGES: how many each partition has. It prints `ready` when it has its
partitions, waits for a line, and prints the times of its start and of its last message, in nanoseconds of the
performance counter.
"""

from __future__ import annotations

import sys
import time

import trio

from ockam.actors.address import tcp
from stream_client import connect

READY = b"ready\n"


async def read(node: str, via: str, name: str, partitions: int, group_name: str, messages: int, members: int) -> None:
    share = partitions // members
    async with connect(node, via=(tcp(via),) if via else ()) as client:
        stream = await client.create_partitioned(name, partitions)
        async with stream.shared_consumer(group_name) as group:
            # The node first gives all partitions to the first member, which then returns the share of the others.
            received = group.messages()
            while len(group.fences) != share:
                await group.follow_leases()
                await trio.sleep(0.02)
            sys.stdout.buffer.write(READY)
            sys.stdout.flush()
            await trio.to_thread.run_sync(sys.stdin.readline)
            started_ns, left = time.perf_counter_ns(), share * messages
            async for _ in received:
                left -= 1
                if not left:
                    break
            ended_ns = time.perf_counter_ns()
    sys.stdout.write(f"{started_ns} {ended_ns}\n")


if __name__ == "__main__":
    node, via, name, partitions, group_name, messages, members = sys.argv[1:]
    trio.run(read, node, via, name, int(partitions), group_name, int(messages), int(members))
