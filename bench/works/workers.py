"""A node with two workers beside a node with one process: two clients, each with a stream of its own.

The clients take cores too. So the processor time of the node for one message is measured as well: with it, the bench
says how many messages the node could take if the clients were elsewhere and each process had a core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from bench.peers.servers import family_cpu_seconds
from stream_client import blocking
from stream_node.fleet.cluster.member import fixed_view
from stream_node.fleet.cluster.view import StoredMember, shard_of
from stream_node.fleet.worker_place import worker_name
from stream_node.node.process import NodeProcess
from stream_service.names import stream_address

WINDOW = 1_000
SIZE_BYTES = 100
ROUNDS, SECONDS = 5, 3.0
COUNTS = (1, 2)


class Measured(msgspec.Struct, frozen=True):
    """One measurement. rate: messages in a second. cpu_us: microseconds of the node's processor time for a message."""

    workers: int
    rate: float
    cpu_us: float

    @property
    def capacity(self) -> float:
        """Messages in a second if each process of the node had a core, and the clients used none of these cores."""
        return self.workers / self.cpu_us * 1e6


def streams_of(count: int) -> list[str]:
    """The name of one stream for each worker."""
    view = fixed_view([StoredMember(worker_name(number), "", str(number), 0, False) for number in range(count)])
    names: dict[str, str] = {}
    for number in range(1_000):
        name = f"bench{number}"
        names.setdefault(view.shards[shard_of(stream_address(name, 0))].owner, name)
    return [names[owner] for owner in sorted(names)]


def measure(workers: int, *, seconds: float, direct: bool) -> Measured:
    """Measures one node. direct: whether each client connects to the worker that serves its stream."""
    names = streams_of(2)
    with (
        TemporaryDirectory(dir=".", prefix="bench-workers") as folder,
        NodeProcess(Path(folder) / "data", arguments=("--workers", str(workers))) as node,
    ):
        addresses = [_address_of(node.address, name, direct=direct) for name in names]
        before_s = family_cpu_seconds(node.pid)
        pushers = [_start(address, name, seconds) for address, name in zip(addresses, names, strict=True)]
        told = [json.loads(pusher.communicate()[0]) for pusher in pushers]
        cpu_s = family_cpu_seconds(node.pid) - before_s
    pushed = sum(each["pushed"] for each in told)
    spent_s = max(each["seconds"] for each in told)
    return Measured(workers, pushed / spent_s, cpu_s / pushed * 1e6)


def _address_of(address: str, name: str, *, direct: bool) -> str:
    """Creates a stream. Returns the address at which its client connects."""
    while True:
        with blocking.connect(address) as client:
            client.create(name)
            owner = client.find_owner(name)
        # Each worker has an address for clients, and another one that only the other workers know.
        if not direct:
            return address
        if owner is not None:
            return owner


def _start(address: str, name: str, seconds: float) -> subprocess.Popen[bytes]:
    arguments = ["-m", "bench.works.workers", "client", address, name, str(seconds)]
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)


def push_for(address: str, name: str, seconds: float) -> dict[str, float]:
    """Pushes with a full window for `seconds`. Returns the number of confirmed messages, and how long they took."""
    with blocking.connect(address) as client:
        stream = client.create(name)
        began_s = time.monotonic()
        data = bytes(SIZE_BYTES)
        count = 0
        with stream.publisher(window=WINDOW) as publisher:
            while time.monotonic() < began_s + seconds:
                for _ in range(WINDOW):
                    publisher.push(data)
                count += WINDOW
        return {"pushed": count, "seconds": time.monotonic() - began_s}


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["client"]:
        _, address, name, seconds = arguments
        print(json.dumps(push_for(address, name, float(seconds))))
        return
    rounds = int(arguments[0]) if arguments else ROUNDS
    ways = {"one process": (1, False), "two workers": (2, False), "two workers, clients at the owner": (2, True)}
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (workers, direct) in ways.items():
            found[name].append(measure(workers, seconds=SECONDS, direct=direct))
    one = found["one process"]
    print(f"two clients, window {WINDOW}, {SIZE_BYTES} B, {rounds} rounds in turn; ratios to one process by round")
    for name, these in found.items():
        rates = [each.rate / base.rate for each, base in zip(these, one, strict=True)]
        capacities = [each.capacity / base.capacity for each, base in zip(these, one, strict=True)]
        print(
            f"{name}: {median(each.rate for each in these):,.0f} messages/s, ratio {_span(rates)}; "
            f"{median(each.cpu_us for each in these):.1f} us of the node for a message, "
            f"capacity with clients elsewhere {_span(capacities)}"
        )


def _span(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main(sys.argv[1:])
