"""The tables of a report: one for the goals, one for each kind of work, one for the codecs. Figures are medians.

A table is headings and rows of text; `bench/show.py` prints it, `bench/write_tables.py` puts it into a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.plan import MIB
from bench.report import Goal, Report, Sample

KEYS = ("system", "window", "size_bytes", "streams", "clients", "log_messages", "load_percent")
"""The fields that tell the rows of a table apart. Samples that differ in the round alone make one row."""
KEY_HEADINGS = {
    "system": "who",
    "window": "window or page",
    "size_bytes": "bytes",
    "log_messages": "stored before",
    "load_percent": "% of its most",
}


class FigureTable(NamedTuple):
    title: str
    headings: list[str]
    rows: list[list[str]]


class Column(NamedTuple):
    """A column. figure: returns the value of a sample, or None if it has none."""

    heading: str
    figure: Callable[[Sample], float | None]
    form: str


def _mib_per_second(sample: Sample) -> float | None:
    return sample.bytes_per_second / MIB if sample.seconds else None


def _server_cpu_us(sample: Sample) -> float | None:
    """Processor time of the server for each message, in microseconds."""
    if sample.server_cpu_s is None or not sample.messages:
        return None
    return sample.server_cpu_s / sample.messages * 1e6


def _written_a_byte(sample: Sample) -> float | None:
    """The bytes that the server wrote to the disk for each byte of a message."""
    data_bytes = sample.messages * sample.size_bytes
    return None if sample.written_bytes is None or not data_bytes else sample.written_bytes / data_bytes


def _server_mib(sample: Sample) -> float | None:
    return None if sample.server_memory_bytes is None else sample.server_memory_bytes / MIB


COLUMNS = (
    Column("messages/s", lambda sample: sample.per_second if sample.seconds else None, "{:,.0f}"),
    Column("MiB/s", _mib_per_second, "{:,.1f}"),
    Column("p50 µs", lambda sample: sample.p50_us, "{:,.0f}"),
    Column("p99 µs", lambda sample: sample.p99_us, "{:,.0f}"),
    Column("p99.9 µs", lambda sample: sample.p999_us, "{:,.0f}"),
    Column("worst µs", lambda sample: sample.worst_us, "{:,.0f}"),
    Column("server CPU µs a message", _server_cpu_us, "{:,.1f}"),
    Column("CPU s", lambda sample: sample.cpu_s, "{:,.1f}"),
    Column("server MiB", _server_mib, "{:,.0f}"),
    Column("written a byte", _written_a_byte, "{:,.1f}"),
    Column("fsyncs/s", lambda sample: sample.fsyncs_per_second, "{:,.0f}"),
)
TITLES = {
    "push": "Durable pushes by window",
    "push to many streams": "Durable pushes of one client to many streams, 10,000 unconfirmed in all",
    "push to some of the streams that exist": "Durable pushes of one client to 1,000 of the streams that exist",
    "push by many clients": "Clients with a connection and a stream each, that push one message at a time",
    "latency": "Single durable pushes",
    "pull": "Stored messages pulled, 1,000 a page",
    "deliver": "From a push to a waiting consumer, 1,000 pushes a second",
    "at rate": "Pushes at 10, 50 and 80 % of the most of each system, each timed from when it was due",
    "share": "Two consumers that share a stream of four partitions behind a forwarding node",
    "group: from the start of its members to a message of each partition": "A consumer group starts",
    "group: the node, while nothing is pushed": "A consumer group that has nothing to do",
    "group: the node, while its members hold their leases and read nothing": "A consumer group that reads nothing",
    "group: from a member's kill to the next message of its partitions": "A member of a consumer group is killed",
    "deleting: messages of a stream beside single pushes to another stream": "Messages deleted beside single pushes",
    "deleting: room of deleted messages given back": "Room of deleted messages given back (messages are bytes)",
    "deleting: a retention by age beside a publisher": "Pushes beside a retention by age",
    "follow": "Followers of one stream on plain sockets (messages are deliveries)",
    "http": "Pushes and reads over HTTP",
    "standing: from the start of a node until it listens": "From the start of a node until it listens",
    "standing: from SIGTERM until a node has ended": "From SIGTERM until a node has ended",
    "standing: partitions that were opened": "Partitions that are opened (clients: how many; server MiB: growth)",
    "standing: a command": "Commands from start to end",
    "fanout": "Consumers that follow one publisher (messages are deliveries)",
    "push by size": "Durable pushes by size",
    "push of large messages": "Durable pushes of large messages",
    "pull of large messages": "Large messages pulled",
    "push by streams": "Durable pushes round robin to many streams",
    "push by clients": "Durable pushes by many connections to one stream",
    "memory": "Memory while ten million messages are pushed",
    "idle connections": "Memory with idle connections",
    "slow disk": "Publishers that wait for each confirm, when each sync takes 5 ms longer",
    "pull by log": "Single pulls from anywhere in a log",
    "push by log": "Pushes to the end of a log",
    "actors: asked and answered": "Requests of an AsyncWorker to a worker of its node (window: at once; by CPU time)",
    "actors: asleep": "Memory of workers that sleep (clients: workers; server MiB: growth of the process)",
    "trouble: pushed beside a worker in trouble": "Pushes beside a worker of the operator that is in trouble",
    "trouble: pushed while the worker rests": "Pushes in turn with these, while that worker rests",
    "tests: of a user's file, each with a node": "Tests of a user's file, each with a node (messages are tests)",
    "tests: starts of node()": "Starts of a real node inside a program (messages are starts)",
    "cardinal: made": "Cardinal messages made of blocks",
    "cardinal: put together and ordered": "Cardinal messages put together and ordered, in one process",
    "cardinal: sent through a node": "Cardinal messages sent through a node of four partitions",
    "cardinal: received and ordered through a node": "Cardinal messages received through a node and ordered",
    "cardinal: received and kept in a chain store": "Cardinal messages received, ordered and kept in a chain store",
    "security: pushed": "Pushes over encrypted connections and under rules",
    "security: pushed in short turns": "Pushes with and without rules, in short turns",
    "flood: pushed beside a flood": "Pushes beside a flood, with limits for the flooders and with the default limits",
    "watching: pushed": "Pushes beside metrics, an open dashboard and a follower of another stream",
    "watching: a nearly idle node": "A node of a thousand streams that gets ten messages a second",
    "postgres: pushed": "Durable pushes to a node on PostgreSQL, beside one on SQLite",
    "postgres: pulled": "Stored messages pulled, 1,000 a page, from a node on PostgreSQL, beside one on SQLite",
    "cluster: pushed": "Durable pushes in a cluster, at the owner of the stream and through a node that owns nothing",
    "cluster: pulled": "Messages pulled in a cluster, 1,000 a page, at the owner and through a node that owns nothing",
    "export": "Messages of 200 bytes brought into Parquet by Spark, local[2] (CPU of Spark, Python and the node)",
    "export by other ways": "The same by other ways",
    "push beside an export": "Pushes as long as an export runs on the same two cores, and alone",
    "whole run of an export": "Whole runs of `stream-node export run`, from start to end",
    "push to visible row": "From a push until the exported table has its row",
    "block: published until verified and durable": "Blocks published until verified and durable (messages are items)",
    "block: from its end to its acknowledgement": "Single blocks, from the end to the acknowledgement",
    "block: caught up with by a subscriber": "Blocks caught up with by a subscriber (messages are items)",
    "block: one of 100 MB, published, read and fetched": "One block of 100 MB, published, read and fetched",
    "backfill: filled from one node": "Holes filled from one other node (messages are blocks of 300 items)",
    "backfill: a live block, from its beginning to its acknowledgement": "Live blocks, with and without a backfill",
    "backfill: filled beside live blocks": "Holes filled beside twenty live blocks a second",
    "backfill: filled with blocks of a megabyte": "Growth of the node with buffers of two sizes (window, bytes)",
    "grpc: published until verified and durable": "Blocks published over gRPC and routed (messages are items)",
    "grpc: from a block's end to its acknowledgement": "Thirty blocks a second over gRPC, with a subscriber",
    "grpc: status calls": "Status calls over gRPC, alone and beside a publisher",
    "grpc: items received and dropped": "Items received over gRPC and dropped (bytes are of an item)",
    "grpc: sent to a subscriber with frames of 16 KiB": "Messages of 1 MB sent over gRPC (server MiB: its growth)",
    "grpc: one message of 100 MB": "One message of 100 MB over gRPC (server MiB: its growth)",
}
"""The title of each kind of work, in the order of the document."""


def goal_table(goals: Sequence[Goal]) -> FigureTable:
    return FigureTable("Goals", ["goal", "wanted", "measured", "met"], [_goal_row(goal) for goal in goals])


def work_tables(report: Report) -> Iterator[FigureTable]:
    """A table for each kind of work that was measured, those in TITLES first."""
    for work in dict.fromkeys([*TITLES, *(sample.work for sample in report.samples)]):
        title = TITLES.get(work, work)
        # Systems that promise less than we do have a table of their own, behind the others.
        for synced, heading in ((True, title), (False, f"{title}: servers that answer before the sync")):
            samples = report.find(work, synced=synced)
            if samples:
                yield _work_table(heading, samples)


def codec_table(report: Report) -> FigureTable:
    rows = []
    for codec in dict.fromkeys(sample.codec for sample in report.codecs):
        rounds = [sample for sample in report.codecs if sample.codec == codec]
        encoded, decoded = (
            median(sample.encode_per_second for sample in rounds),
            median(sample.decode_per_second for sample in rounds),
        )
        rows.append([codec, f"{encoded:,.0f}", f"{decoded:,.0f}"])
    return FigureTable("BARE PushRequest, validating", ["codec", "encoded/s", "decoded/s"], rows)


def _goal_row(goal: Goal) -> list[str]:
    bound = f"at {'most' if goal.at_most else 'least'} {_figure(goal.wanted).removesuffix('.00')}"
    if goal.measured is None:
        return [goal.what, bound, "", "not measured"]
    spread = "" if goal.spread is None else f" ({_figure(goal.spread[0])} to {_figure(goal.spread[1])})"
    return [goal.what, bound, f"{_figure(goal.measured)}{spread}", "yes" if goal.met else "**no**"]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.2f}"


def _work_table(title: str, samples: Sequence[Sample]) -> FigureTable:
    """Returns the table of one work, without keys that have one value and columns that have no figure."""
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(tuple(getattr(sample, key) for key in KEYS), []).append(sample)
    keys = [at for at, key in enumerate(KEYS) if key == "system" or len({group[at] for group in groups}) > 1]
    columns = [column for column in COLUMNS if any(column.figure(sample) is not None for sample in samples)]
    rows = []
    for group, rounds in groups.items():
        cells = [f"{group[at]:,}" if isinstance(group[at], int) else str(group[at]) for at in keys]
        for column in columns:
            figures = [value for sample in rounds if (value := column.figure(sample)) is not None]
            cells.append(column.form.format(median(figures)) if figures else "")
        rows.append(cells)
    headings = [KEY_HEADINGS.get(KEYS[at], KEYS[at]) for at in keys]
    return FigureTable(title, [*headings, *(column.heading for column in columns)], rows)
