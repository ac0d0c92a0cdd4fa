"""Work that is measured in turn with other systems (A B A B), so that the ratios hold on a noisy machine.

Every client, of the peers and of ours, is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import msgspec

from bench.measure import PAGE_MESSAGES
from bench.own import Own
from bench.peers import Peer, Work
from bench.plan import MIB, Plan
from bench.report import Sample
from bench.servers.bench_node import BenchNode
from stream_node.node.config import ENVIRONMENT_PREFIX

DELIVERED = "deliver"
LOADED = "at rate"
MANY = "push to many streams"
MANY_WINDOW = 10_000
BY_CLIENTS = "push by many clients"
CLIENT_LIMITS = {f"{ENVIRONMENT_PREFIX}IDENTITY_CONNECTIONS_MAX": "10000"}
"""A setting of the node: all clients of the bench are one identity."""
LOADED_WINDOW = 1_000
"""The window of the pushes that measure the highest rate of a system. The loads are percentages of this rate."""
SINGLE_SECONDS = 2.0
"""The length of a sample of single pushes: some thousand pushes."""
LOADED_ROUNDS = 3
"""Few rounds, since no goal is about these loads."""
BLOCKING = ", blocking client"
CONSUMER = ", consumer"
LARGE_PUSHED, LARGE_PULLED = "push of large messages", "pull of large messages"
UNCONFIRMED_BYTES_MAX = 64 * MIB
TIMED_MIN = 50_000
"""About the least number of pushes that are timed in a load with a rate."""


def pushes(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Durable pushes of one publisher, for every window of the plan but 1, which `latencies` measures."""
    for window in plan.windows:
        if window == 1:
            continue
        load = _load(plan, window=window)
        for round_ in range(plan.rounds):
            for own in owns:
                with own.node() as node:
                    sample = own.measure(node, "push", work="push", round_=round_, stream="bench.0", **load)
                    yield msgspec.structs.replace(sample, fsyncs_per_second=node.finish())
            for peer in peers:
                if peer.does(Work.PUSH, window):
                    yield peer.measure(Work.PUSH, round_, stream=peer.new_stream(), **load)


def many_streams(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Durable pushes of one client to many streams in turn, with MANY_WINDOW unconfirmed in all, and the same pushes by
    the peers whose client can send them in one pipeline."""
    for streams in plan.many_streams:
        load = {**_load(plan, window=min(MANY_WINDOW, plan.messages)), "streams": streams}
        for round_ in range(plan.rounds):
            for own in owns:
                with own.node() as node:
                    sample = own.measure(node, "push_in_turn", work=MANY, round_=round_, stream="bench", **load)
                    sample = msgspec.structs.replace(sample, fsyncs_per_second=node.finish())
                yield msgspec.structs.replace(sample, streams=streams)
            for peer in peers:
                if peer.kind.work == "redis":
                    sample = peer.measure(Work.PUSH, round_, stream=peer.new_stream(), named=MANY, **load)
                    yield msgspec.structs.replace(sample, streams=streams)


def many_clients(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Many clients, each with a connection and a stream, that push one message at a time."""
    for clients in plan.single_clients:
        load = {**_load(plan, window=1), "streams": clients}
        for round_ in range(plan.rounds):
            for own in owns:
                with BenchNode(environment={**own.environment, **CLIENT_LIMITS}) as node:
                    sample = own.measure(node, "clients", work=BY_CLIENTS, round_=round_, stream="bench", **load)
                yield msgspec.structs.replace(sample, streams=clients, clients=clients)
            for peer in peers:
                if peer.kind.work == "redis":
                    sample = peer.measure(Work.CLIENTS, round_, stream=peer.new_stream(), named=BY_CLIENTS, **load)
                    yield msgspec.structs.replace(sample, streams=clients, clients=clients)


def latencies(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Single durable pushes, each confirmed before the next."""
    load = {**_load(plan, window=1), "seconds": min(plan.seconds, SINGLE_SECONDS)}
    with ExitStack() as stack:
        nodes = _nodes(owns, stack)
        for round_ in range(plan.rounds):
            for own, node in nodes:
                for action, client in (("latency", ""), ("latency_blocking", BLOCKING)):
                    sample = own.measure(node, action, work="latency", round_=round_, stream="bench.0", **load)
                    yield msgspec.structs.replace(sample, system=own.system + client)
            for peer in peers:
                if peer.does(Work.LATENCY):
                    yield peer.measure(Work.LATENCY, round_, stream=peer.new_stream(), **load)


def pulls(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Stored messages read from the first to the last, a thousand a page. Ours are read page after page, and by a
    consumer, which asks for the next page before it decodes the present one."""
    load = _load(plan, window=PAGE_MESSAGES)
    fill = {**load, "seconds": 1e9}
    streams = {peer: peer.new_stream() for peer in peers if peer.does(Work.PULL)}
    for peer, stream in streams.items():
        peer.measure(Work.FILL, 0, stream=stream, **fill)
    with ExitStack() as stack:
        nodes = _nodes(owns, stack)
        for own, node in nodes:
            own.measure(node, "fill", work="fill", round_=0, stream="bench.0", **fill)
        for round_ in range(plan.rounds):
            for own, node in nodes:
                for action, client in (("pull", ""), ("follow", CONSUMER)):
                    sample = own.measure(node, action, work="pull", round_=round_, stream="bench.0", **load)
                    yield msgspec.structs.replace(sample, system=own.system + client)
            for peer, stream in streams.items():
                yield peer.measure(Work.PULL, round_, stream=stream, **load)


def large(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Durable pushes of large messages, and large messages pulled, ours by a consumer; in turn with the peers whose
    client sends several messages as one pipeline."""
    others = [peer for peer in peers if peer.kind.work == "redis"]
    for size_bytes in plan.large_pushed_bytes:
        load = _volume(plan, size_bytes, window=max(1, UNCONFIRMED_BYTES_MAX // size_bytes))
        for round_ in range(plan.rounds):
            for own in owns:
                with own.node() as node:
                    yield own.measure(node, "push", work=LARGE_PUSHED, round_=round_, stream="bench.0", **load)
            for peer in others:
                yield peer.measure(Work.PUSH, round_, stream=peer.new_stream(), named=LARGE_PUSHED, **load)
    with ExitStack() as stack:
        nodes = _nodes(owns, stack)
        for size_bytes in plan.large_pulled_bytes:
            load, stream = _volume(plan, size_bytes, window=PAGE_MESSAGES), f"bench.{size_bytes}"
            fill = {**load, "window": max(1, min(PAGE_MESSAGES, UNCONFIRMED_BYTES_MAX // size_bytes))}
            for own, node in nodes:
                own.measure(node, "push", work="fill", round_=0, stream=stream, **fill)
            for peer in others:
                peer.measure(Work.PUSH, 0, stream=stream, **fill)
            for round_ in range(plan.rounds):
                for own, node in nodes:
                    yield own.measure(node, "follow", work=LARGE_PULLED, round_=round_, stream=stream, **load)
                for peer in others:
                    yield peer.measure(Work.PULL, round_, stream=stream, named=LARGE_PULLED, **load)


def deliveries(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """The times from pushes at a fixed rate to a consumer that waits for the messages."""
    load: dict[str, Any] = {"rate": plan.delivered_rate, "seconds": plan.delivered_seconds}
    load["size_bytes"] = plan.size_bytes
    load["messages"] = int(plan.delivered_rate * plan.delivered_seconds)
    with ExitStack() as stack:
        nodes = _nodes(owns, stack)
        for round_ in range(plan.rounds):
            for own, node in nodes:
                stream = f"bench.{round_}"
                yield own.measure(node, "deliver", work=DELIVERED, round_=round_, stream=stream, **load)
            for peer in peers:
                if peer.does(Work.DELIVER):
                    yield peer.measure(Work.DELIVER, round_, stream=peer.new_stream(), named=DELIVERED, **load)


def loads(plan: Plan, owns: Sequence[Own], peers: Sequence[Peer]) -> Iterator[Sample]:
    """Pushes at percentages of the highest rate of each system. The highest rate is measured first.

    Each push is timed from the moment at which it was due, so a push that had to wait counts with its wait.
    """
    top = _load(plan, window=LOADED_WINDOW)
    rated = [peer for peer in peers if peer.does(Work.AT_RATE)]
    with ExitStack() as stack:
        nodes = _nodes(owns, stack)
        most: dict[str, list[float]] = {}
        for round_ in range(min(plan.rounds, LOADED_ROUNDS)):
            for own, node in nodes:
                found = own.measure(node, "push", work="push", round_=round_, stream="most", **top)
                most.setdefault(own.system, []).append(found.per_second)
            for peer in rated:
                found = peer.measure(Work.PUSH, round_, stream=peer.new_stream(), **top)
                most.setdefault(peer.name, []).append(found.per_second)
        for percent in plan.load_percents:
            for round_ in range(min(plan.rounds, LOADED_ROUNDS)):
                for own, node in nodes:
                    load = _at(plan, median(most[own.system]), percent)
                    sample = own.measure(node, "at_rate", work=LOADED, round_=round_, stream="rated", **load)
                    yield msgspec.structs.replace(sample, load_percent=percent)
                for peer in rated:
                    load = _at(plan, median(most[peer.name]), percent)
                    sample = peer.measure(Work.AT_RATE, round_, stream=peer.new_stream(), named=LOADED, **load)
                    yield msgspec.structs.replace(sample, load_percent=percent)


def _nodes(owns: Sequence[Own], stack: ExitStack) -> list[tuple[Own, BenchNode]]:
    return [(own, stack.enter_context(own.node())) for own in owns]


def _load(plan: Plan, *, window: int) -> dict[str, Any]:
    """A load that ends after the messages of the plan, or after its seconds if these pass first."""
    return {"messages": plan.messages, "seconds": plan.seconds, "size_bytes": plan.size_bytes, "window": window}


def _volume(plan: Plan, size_bytes: int, *, window: int) -> dict[str, Any]:
    return {"messages": max(10, plan.volume_bytes // size_bytes), "size_bytes": size_bytes, "window": window}


def _at(plan: Plan, most: float, percent: int) -> dict[str, Any]:
    rate = most * percent / 100
    messages = max(1, int(rate * plan.seconds))
    fields = {"messages": messages, "seconds": plan.seconds, "size_bytes": plan.size_bytes, "rate": rate}
    return {**fields, "timed_every": max(1, messages // TIMED_MIN)}
