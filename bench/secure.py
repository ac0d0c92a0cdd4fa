"""Measures what the secure channel costs: pushes per second with and without it, at several windows, in one run.

    python -m bench.secure [--rounds 5]

One node in a child process serves both. Rounds alternate, and the medians are compared, so that other load on the
machine meets both alike. The processor time of the node and of the client for one message is measured, too: it depends
less on other load than the rate.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import trio

from secure_channel.identity_file import create_identity
from secure_channel.trust_list import save_trusted
from stream_client import SecureChannel, connect
from stream_node.process import NodeProcess

WINDOWS = {1: 300, 100: 10_000, 1_000: 40_000}
"""The windows, and the number of messages of each measurement."""
DATA = b"x" * 100


class Measured(NamedTuple):
    """One measurement: messages per second, and microseconds of processor time for a message at both sides."""

    rate: float
    client_us: float
    node_us: float


async def measure(node: NodeProcess, window: int, options: dict[str, Any], name: str) -> Measured:
    """Pushes through one new connection, and returns what it took."""
    async with connect(node.address, **options) as client:
        stream = await client.create(name)
        count = WINDOWS[window]
        async with stream.publisher(window) as warm:
            for _ in range(count // 10):
                await warm.push(DATA)
        gc.collect()
        began_s, client_s, node_s = time.perf_counter(), time.process_time(), node.cpu_seconds()
        async with stream.publisher(window) as publisher:
            for _ in range(count):
                await publisher.push(DATA)
        took_s = time.perf_counter() - began_s
        client_s, node_s = time.process_time() - client_s, node.cpu_seconds() - node_s
        return Measured(count / took_s, 1e6 * client_s / count, 1e6 * node_s / count)


async def compare(node: NodeProcess, rounds: int, channel: SecureChannel) -> None:
    print(f"{'window':>6}  {'':8}{'messages/s':>12}{'client us':>11}{'node us':>9}")
    for window in WINDOWS:
        found: dict[str, list[Measured]] = {"plain": [], "channel": []}
        for number in range(rounds):
            for kind, options in (("plain", {}), ("channel", {"channel": channel})):
                found[kind].append(await measure(node, window, options, f"{kind}-{window}-{number}"))
        medians = {kind: Measured(*map(statistics.median, zip(*each, strict=True))) for kind, each in found.items()}
        for kind, each in medians.items():
            print(f"{window:>6}  {kind:8}{each.rate:>12,.0f}{each.client_us:>11.1f}{each.node_us:>9.1f}")
        ratio = medians["channel"].rate / medians["plain"].rate
        cpu = [sum(medians[kind][1:]) for kind in ("plain", "channel")]
        print(f"{'':6}  channel / plain: {ratio:.2f} of the rate, {cpu[0] / cpu[1]:.2f} by processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as text:
        folder, now_s = Path(text), int(time.time())
        own = create_identity(folder / "client.json", now_s)
        peer = create_identity(folder / "node" / "identity.json", now_s)
        save_trusted(folder / "node" / "trusted_identities", {own.identifier: "bench"})
        with NodeProcess(folder / "node") as node:
            trio.run(compare, node, rounds, SecureChannel(identity=own, peer=str(peer)))


if __name__ == "__main__":
    main()
