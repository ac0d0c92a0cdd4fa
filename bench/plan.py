"""Plan: how much a run of the bench does. There is one for a whole run, and one for a smoke run of some seconds."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of messages, unless the name says otherwise.

    rounds: how often the systems that are compared take turns. single: requests that wait for each answer.
    seconds: a sample of compared pushes ends after this time, or with its last message.
    delivered_rate, delivered_seconds: pushes a second to a consumer that waits, and for how long.
    load_percents: the loads under which pushes are timed, in percent of the most that a system can do.
    shared_messages: messages that two consumers share.
    group_members: members of a group that are started at once, each with ten partitions. rest_seconds: how long they
    then rest; each renews its leases about every three seconds.
    deleted: messages of a stream that are deleted in each way. retained_seconds: how long a publisher pushes under a
    retention.
    single_clients: the numbers of clients that push one message at a time, in turn with the peers.
    many_streams: the numbers of streams to which one client pushes, in turn with the peers.
    existing: partitions that only exist. opened: those of them that are opened.
    sizes_bytes, streams, clients, logs: the steps in which the growth of cost is followed.
    large_pushed_bytes, large_pulled_bytes: the sizes of large messages that are compared with peers.
    followers: numbers of followers of one stream, and the messages a second; follow_seconds: for how long.
    http_seconds: how long each kind of request over HTTP is repeated.
    memory: messages pushed to see whether memory grows. idle_connections: connections opened to see the cost of one.
    exported: messages brought into Parquet by Spark. export_seconds: after this time the bench `export` begins no
    round. visible: messages whose way through a daemon on Spark is timed; each takes about two seconds.
    slow_seconds: how long each side pushes with a slow sync. sleeping_workers: actors whose memory is measured.
    user_tests: tests of a user's file, each with a node.
    rule_turns: short turns of pushes with and without rules, in each round.
    flood_turns: how often a flood, or the trouble of a worker, begins and stands still, for each window.
    flood_limited: whether a flood is measured with limits for the flooder, too, and not only with the default limits.
    watch_seconds: how long a nearly idle node is measured. watch_turns: turns of pushes with and without watching.
    watched_messages: pushes of a turn.
    backfilled: blocks that one node fetches from another. live_blocks: blocks published meanwhile, one by one.
    """

    rounds: int = 5
    messages: int = 400_000
    seconds: float = 5.0
    size_bytes: int = 100
    single: int = 1_000
    windows: tuple[int, ...] = (1, 100, 1_000, 10_000)
    delivered_rate: float = 1_000.0
    delivered_seconds: float = 5.0
    load_percents: tuple[int, ...] = (10, 50, 80)
    shared_messages: int = 1_000_000
    group_members: int = 100
    rest_seconds: float = 20.0
    deleted: int = 800_000
    retained_seconds: float = 30.0
    sizes_bytes: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000, MIB)
    volume_bytes: int = 128 * MIB
    large_pushed_bytes: tuple[int, ...] = (1_000_000, 15_000_000)
    large_pulled_bytes: tuple[int, ...] = (10_000, 1_000_000)
    streams: tuple[int, ...] = (1, 10, 100, 1_000)
    many_streams: tuple[int, ...] = (1_000, 10_000)
    single_clients: tuple[int, ...] = (1_000,)
    existing: int = 100_000
    opened: int = 2_000
    clients: tuple[int, ...] = (1, 10, 100, 1_000)
    consumers: tuple[int, ...] = (1, 10, 100)
    fanout_messages: int = 20_000
    followers: tuple[tuple[int, float], ...] = ((100, 50.0), (800, 5.0))
    follow_seconds: float = 6.0
    http_seconds: float = 3.0
    logs: tuple[int, ...] = (100_000, 1_000_000, 10_000_000, 50_000_000)
    memory: int = 10_000_000
    idle_connections: int = 1_000
    exported: int = 2_000_000
    export_seconds: float = 150.0
    visible: int = 30
    backfilled: int = 4_000
    live_blocks: int = 200
    rule_turns: int = 50
    flood_turns: int = 10
    flood_limited: bool = True
    watch_seconds: float = 15.0
    watch_turns: int = 12
    watched_messages: int = 250_000
    sleeping_workers: int = 100_000
    user_tests: int = 3_000
    slow_publishers: int = 64
    slow_sync_ms: int = 5
    slow_seconds: float = 3.0


QUICK = Plan(
    rounds=1,
    messages=2_000,
    seconds=1.0,
    single=50,
    delivered_seconds=0.2,
    load_percents=(50,),
    shared_messages=4_000,
    group_members=3,
    rest_seconds=1.0,
    deleted=20_000,
    retained_seconds=1.0,
    windows=(1, 1_000),
    sizes_bytes=(10, 10_000),
    volume_bytes=MIB,
    large_pushed_bytes=(100_000,),
    large_pulled_bytes=(10_000,),
    streams=(1, 10),
    many_streams=(10,),
    single_clients=(10,),
    existing=1_000,
    opened=200,
    clients=(1, 10),
    consumers=(1, 10),
    fanout_messages=500,
    followers=((3, 20.0),),
    follow_seconds=0.2,
    http_seconds=0.2,
    logs=(2_000, 20_000),
    memory=20_000,
    exported=20_000,
    visible=0,
    backfilled=150,
    live_blocks=2,
    idle_connections=20,
    rule_turns=1,
    flood_turns=1,
    watch_seconds=0.5,
    watch_turns=1,
    watched_messages=2_000,
    sleeping_workers=1_000,
    user_tests=20,
    slow_publishers=16,
    slow_seconds=0.3,
)
