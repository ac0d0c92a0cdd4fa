"""The goals that a run is held against, each with the figure that the run has measured for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from statistics import median

from bench.compared import BLOCKING, BY_CLIENTS, CONSUMER, DELIVERED, LARGE_PULLED, LARGE_PUSHED, MANY
from bench.measure import PAGE_MESSAGES
from bench.own import COMPILED
from bench.peers.kinds import NATS_DEFAULT, NATS_SYNCED, VALKEY
from bench.plan import MIB, Plan
from bench.report import OURS, CodecSample, Goal, Report, Sample, ratios, typical
from bench.works import (
    actors,
    backfill,
    block,
    cardinal,
    cluster,
    deleting,
    export,
    export_start,
    flood,
    followers,
    group,
    grpc,
    grpc_bytes,
    http,
    postgres,
    security,
    share,
    standing,
    trouble,
    user_tests,
    watching,
)
from bench.works.scale import UNGROUPED

KIB = 1024
Figure = Callable[[Sample], float]
TO_PEERS = ((VALKEY, 1.5), (NATS_DEFAULT, 3.0), (NATS_SYNCED, 5.0))


PUSHED = (
    (100, VALKEY, 1.5),
    *((window, peer, wanted) for window in (1_000, 10_000) for peer, wanted in TO_PEERS),
)
"""The windows, peers and ratios of the goals of pushes."""
LARGE = (
    *((LARGE_PUSHED, size_bytes, 1.0) for size_bytes in (1_000_000, 15_000_000)),
    *((LARGE_PULLED, size_bytes, 0.9) for size_bytes in (10_000, 1_000_000)),
)
"""The works, sizes and ratios of the goals of large messages."""


def rate(sample: Sample) -> float:
    return sample.per_second


def p50_us(sample: Sample) -> float:
    return sample.p50_us or 0.0


def p99_us(sample: Sample) -> float:
    return sample.p99_us or 0.0


def server_us(sample: Sample) -> float:
    """The server's processor time for each message, in microseconds."""
    return 1e6 * (sample.server_cpu_s or 0.0) / sample.messages


def written_a_byte(sample: Sample) -> float:
    """The bytes written to the disk for each byte of a message."""
    return (sample.written_bytes or 0) / (sample.messages * sample.size_bytes)


def memory_bytes(sample: Sample) -> float:
    return float(sample.server_memory_bytes or 0)


def goals(report: Report) -> Iterator[Goal]:
    """All goals. A goal has no figure if its work was not run."""
    yield from _to_peers(report, OURS)
    if any(sample.system == COMPILED for sample in report.samples):
        yield from _to_peers(report, COMPILED)
    grouped = ratios(report.find("slow disk", system=OURS), report.find("slow disk", system=UNGROUPED), rate)
    yield _of_rounds("slow disk, many publishers, to one transaction a push", 10.0, grouped)
    plain = report.find(security.PUSHED, system=OURS, window=1_000)
    for system, name, wanted in ((security.TLS, "mutual TLS", 0.8), (security.CHANNEL, "a secure channel", 0.6)):
        encrypted = ratios(report.find(security.PUSHED, system=system, window=1_000), plain, rate)
        yield _of_rounds(f"pushes over {name}, window 1,000, to those without", wanted, encrypted)
    turns = report.find(security.TURNED, system=security.RULED)
    ruled = ratios(turns, report.find(security.TURNED, system=OURS), server_us)
    what = "the node's processor time of a push under rules, window 1,000, to that without"
    yield _of_rounds(what, 1.02, ruled, at_most=True)
    yield from _of_flood(report)
    yield from _of_group(report)
    yield from _of_deleting(report)
    yield from _of_standing(report)
    yield from _of_watching(report)
    yield from _of_postgres(report)
    yield from _of_cluster(report)
    yield from _of_growth(report)
    yield from _of_actors(report)
    yield from _of_trouble(report)
    yield from _of_user_tests(report)
    whole = typical(report.find(cardinal.REASSEMBLE), rate)
    yield Goal("Cardinal messages put together and ordered a second, in one process", False, 150_000.0, whole)
    stored = ratios(report.find(cardinal.STORE), report.find(cardinal.RECEIVE), rate)
    yield _of_rounds("Cardinal messages received with a chain store, to those without", 0.6, stored)
    native = report.find(export.WORK, system=export.NATIVE)
    for system, wanted in ((export.OVER_TCP, 0.95), (export.SMALL_ENGINE, 1.7)):
        copied = ratios(report.find(export.WORK, system=system), native, rate)
        yield _of_rounds(f"rows to Parquet, {system}, to Spark from Parquet", wanted, copied)
    disk = report.find(export.WORK, system=export.SMALL_ENGINE_DELTA)
    stored = ratios(report.find(export.WORK, system=export.TO_S3), disk, rate)
    yield _of_rounds(f"rows to Parquet, {export.TO_S3}, to the same on the disk", 0.8, stored)
    pushed = report.find(export.DURING, system=OURS)
    kept = ratios(pushed, report.find(export.DURING, system=export.ALONE), rate)
    yield _of_rounds("pushes beside an export, to those without one", 0.9, kept)
    idle_s = typical(report.find(export_start.WORK, system=export_start.NOTHING_NEW), lambda each: each.cpu_s or 0.0)
    yield Goal("seconds of the processor for a whole run of an export that finds nothing new", True, 0.6, idle_s)
    visible_us = typical(report.find(export_start.VISIBLE), p50_us)
    visible_s = None if visible_us is None else visible_us / 1e6
    yield Goal("p50 seconds from a push to the row, by a daemon on Spark every second", True, 2.5, visible_s)
    for items in block.ITEMS_A_BLOCK:
        verified = typical(report.find(block.PUBLISHED, window=items), rate)
        yield Goal(f"block items verified and durable a second, {items:,} a block", False, 100_000.0, verified)
    large = typical(report.find(block.LARGE), memory_bytes)
    yield Goal("MiB of the server with a block of 100 MB", True, 300.0, None if large is None else large / MIB)
    yield from _of_backfill(report)
    yield from _of_http(report)
    yield from _of_grpc(report)
    for name, figure in (("encoded", attrgetter("encode_per_second")), ("decoded", attrgetter("decode_per_second"))):
        yield Goal(f"PushRequests {name}, to pybare", False, 5.0, _codec_ratio(report, figure))


def _to_peers(report: Report, system: str) -> Iterator[Goal]:
    """Yields the goals of one of our systems: those beside peers, and those for times that users wait."""
    for window, peer, wanted in PUSHED:
        ours, theirs = (report.find("push", system=each, window=window) for each in (system, peer))
        yield _of_rounds(f"{system}: pushes, window {window:,}, to those of {peer}", wanted, ratios(ours, theirs, rate))
    for streams, wanted in ((1_000, 1.3), (10_000, 0.8)):
        ours, theirs = (report.find(MANY, system=each, streams=streams) for each in (system, VALKEY))
        what = f"{system}: pushes to {streams:,} streams, 10,000 unconfirmed, to those of {VALKEY}"
        yield _of_rounds(what, wanted, ratios(ours, theirs, rate))
    written = [written_a_byte(each) for each in report.find(MANY, system=system, streams=10_000)]
    yield _of_rounds(f"{system}: bytes written for a byte pushed to 10,000 streams", 10.0, written, at_most=True)
    few, many = (report.find(standing.AMONG, system=system, streams=streams) for streams in (1_000, 100_000))
    what = f"{system}: pushes to 1,000 of 100,000 streams, to those to 1,000 of 1,000"
    yield _of_rounds(what, 0.9, ratios(many, few, rate))
    ours, theirs = (report.find(BY_CLIENTS, system=each, clients=1_000) for each in (system, VALKEY))
    what = f"{system}: pushes of 1,000 clients, one at a time each"
    yield _of_rounds(f"{what}, to those of {VALKEY}", 1.0, ratios(ours, theirs, rate))
    yield _of_rounds(f"{what}: p99, to that of {VALKEY}", 2.0, ratios(ours, theirs, p99_us), at_most=True)
    singles = report.find("latency", system=VALKEY)
    for client in ("", BLOCKING):
        single = ratios(report.find("latency", system=system + client), singles, p50_us)
        yield _of_rounds(f"{system}{client}: p50 of a single push, to that of {VALKEY}", 1.3, single, at_most=True)
    times_ms = [p99_us(sample) / 1e3 for sample in report.find("push", system=system, window=1_000)]
    yield _of_rounds(f"{system}: ms, p99 of a push, window 1,000", 10.0, times_ms, at_most=True)
    pulled = ratios(report.find("pull", system=system + CONSUMER), report.find("pull", system=VALKEY), rate)
    yield _of_rounds(f"{system}: messages pulled by a consumer, to those of {VALKEY}", 3.0, pulled)
    for work, size_bytes, wanted in LARGE:
        ours, theirs = (report.find(work, system=each, size_bytes=size_bytes) for each in (system, VALKEY))
        what = f"{system}: {work}, {size_bytes:,} bytes, to those of {VALKEY}"
        yield _of_rounds(what, wanted, ratios(ours, theirs, rate))
    for name, figure, most_ms in (("p50", p50_us, 1.5), ("p99", p99_us, 5.0)):
        ways_ms = [figure(sample) / 1e3 for sample in report.find(DELIVERED, system=system)]
        yield _of_rounds(f"{system}: ms, {name} from push to a waiting consumer", most_ms, ways_ms, at_most=True)
    for count, _ in Plan().followers:
        followed = report.find(followers.WORK, system=system, clients=count)
        theirs = report.find(followers.WORK, system=NATS_SYNCED, clients=count)
        what = f"{system}: p50 of a delivery to {count} followers, to that of {NATS_SYNCED}"
        yield _of_rounds(what, 1.2, ratios(followed, theirs, p50_us), at_most=True)
        what = f"{system}: µs of the node's processor for a delivery to {count} followers"
        yield _of_rounds(what, 35.0, [server_us(each) for each in followed], at_most=True)
    shared = [rate(sample) for sample in report.find(share.WORK, system=system)]
    yield _of_rounds(
        f"{system}: messages a second of two sharing consumers behind a forwarding node", 150_000.0, shared
    )


def _of_rounds(what: str, wanted: float, found: list[float], *, at_most: bool = False) -> Goal:
    """A goal that the median of the rounds must reach, with the spread of the rounds."""
    if not found:
        return Goal(what, at_most, wanted, None)
    return Goal(what, at_most, wanted, median(found), (min(found), max(found)))


def _of_group(report: Report) -> Iterator[Goal]:
    """How soon a group has its messages, and what its leases cost the node."""
    started_s = [sample.seconds for sample in report.find(group.STARTED)]
    yield _of_rounds(
        "seconds from the start of 100 members to a message of each of 1,000 partitions", 2.0, started_s, at_most=True
    )
    busy = [(sample.server_cpu_s or 0.0) / sample.seconds for sample in report.find(group.LEASED)]
    yield _of_rounds(
        "processor seconds of the node in a second for the leases of 100 members", 0.05, busy, at_most=True
    )
    killed_s = [sample.seconds for sample in report.find(group.KILLED)]
    yield _of_rounds("seconds from a member's kill to the next message of its partitions", 1.0, killed_s, at_most=True)


def _of_deleting(report: Report) -> Iterator[Goal]:
    """What others notice of messages that are deleted."""
    for way in deleting.WAYS:
        deleted = report.find(deleting.DELETED, system=f"{OURS}, {way}")
        rates = [rate(sample) for sample in deleted]
        yield _of_rounds(f"messages deleted a second by a {way} beside single pushes", 120_000.0, rates)
        worst_ms = [(sample.worst_us or 0.0) / 1e3 for sample in deleted]
        yield _of_rounds(f"ms, worst push beside a {way} of another stream", 50.0, worst_ms, at_most=True)
    freed = [rate(sample) / 1e6 for sample in report.find(deleting.FREED)]
    yield _of_rounds("MB of deleted messages given back to the file system a second", 200.0, freed)
    late_s = [p50_us(sample) / 1e6 for sample in report.find(deleting.RETAINED)]
    what = "seconds that a message outlives a retention by age at most, beside a publisher at full speed"
    yield _of_rounds(what, 10.0, late_s, at_most=True)


def _of_standing(report: Report) -> Iterator[Goal]:
    """What an idle node costs, and how fast nodes start and end, and short commands run."""
    for work, what, wanted_s, empty_s in (
        (standing.STARTED, "from the start of a node until it listens", 2.0, 0.35),
        (standing.STOPPED, "from SIGTERM until a node has ended", 1.0, 1.0),
    ):
        for streams, most_s, of_what in ((100_000, wanted_s, "with 100,000 partitions"), (0, empty_s, "empty")):
            found = [each.seconds for each in report.find(work, system=OURS, streams=streams)]
            yield _of_rounds(f"seconds {what}, {of_what}", most_s, found, at_most=True)
    with_http = [memory_bytes(each) / 1e6 for each in report.find(standing.STARTED, system=standing.WITH_HTTP)]
    yield _of_rounds("MB of an idle node with HTTP", 55.0, with_http, at_most=True)
    empty = {each.round: memory_bytes(each) for each in report.find(standing.STARTED, system=OURS, streams=0)}
    full = [each for each in report.find(standing.STARTED, system=OURS) if each.streams]
    existing = [(memory_bytes(each) - empty[each.round]) / each.streams / KIB for each in full]
    yield _of_rounds("KiB of a partition that only exists", 1.0, existing, at_most=True)
    opened = [memory_bytes(each) / each.clients / KIB for each in report.find(standing.OPENED)]
    yield _of_rounds("KiB of a partition that was opened", 4.0, opened, at_most=True)
    for command, most_s in ((standing.HELP, 0.12), (standing.PUSH_LINE, 0.25)):
        found = [p50_us(each) / 1e6 for each in report.find(standing.COMMAND, system=command)]
        yield _of_rounds(f"seconds of `{command}`", most_s, found, at_most=True)


def _of_watching(report: Report) -> Iterator[Goal]:
    """What metrics, a dashboard and a follower cost: processor time of a nearly idle node, and the rate of pushes."""
    without = {sample.round: sample for sample in report.find(watching.IDLE, system=OURS)}
    more = [
        ((sample.server_cpu_s or 0.0) - (without[sample.round].server_cpu_s or 0.0)) / sample.seconds
        for sample in report.find(watching.IDLE, system=watching.WATCHED)
    ]
    name = "metrics, dashboard and a follower: processor seconds of the node in a second"
    yield _of_rounds(name, 0.02, more, at_most=True)
    beside = ratios(
        report.find(watching.PUSHED, system=watching.WATCHED), report.find(watching.PUSHED, system=OURS), rate
    )
    yield _of_rounds("pushes beside metrics, dashboard and a follower, to those without", 0.98, beside)


def _of_postgres(report: Report) -> Iterator[Goal]:
    """Yields the goals of a node on PostgreSQL, compared with one on SQLite."""
    for system, wanted, single_wanted in ((postgres.ALONE, 0.7, 2.5), (postgres.WITH_STANDBY, 0.55, 3.0)):
        single, many = (
            ratios(
                report.find(postgres.PUSHED, system=system, window=window),
                report.find(postgres.PUSHED, system=OURS, window=window),
                figure,
            )
            for window, figure in ((1, p50_us), (1_000, rate))
        )
        yield _of_rounds(f"{system}: pushes, window 1,000, to those on SQLite", wanted, many)
        yield _of_rounds(f"{system}: p50 of a single push, to that on SQLite", single_wanted, single, at_most=True)
        pulled = ratios(report.find(postgres.PULLED, system=system), report.find(postgres.PULLED, system=OURS), rate)
        yield _of_rounds(f"{system}: pulled messages, to those on SQLite", 0.5, pulled)


def _of_cluster(report: Report) -> Iterator[Goal]:
    """What the way through another node of a cluster costs."""
    for work, window, figure, wanted, what in (
        (cluster.PUSHED, 1, p50_us, 1.5, "p50 of a single push"),
        (cluster.PUSHED, 1_000, rate, 0.5, "pushes, window 1,000"),
        (cluster.PULLED, None, rate, 0.5, "pulled messages"),
    ):
        windows = {} if window is None else {"window": window}
        forwarded, direct = (
            report.find(work, system=system, **windows) for system in (cluster.FORWARDED, cluster.DIRECT)
        )
        what = f"{what} through a node that owns nothing, to the owner"
        yield _of_rounds(what, wanted, ratios(forwarded, direct, figure), at_most=figure is p50_us)


def _of_growth(report: Report) -> Iterator[Goal]:
    by_streams = report.find("push by streams")
    many = max((sample.streams for sample in by_streams), default=1_000)
    for window in sorted({sample.window for sample in by_streams}) or [0]:
        one = report.find("push by streams", streams=1, window=window)
        spread = ratios(report.find("push by streams", streams=many, window=window), one, rate)
        unconfirmed = f", {window:,} unconfirmed" if window else ""
        yield _of_rounds(f"pushes to {many:,} streams, to those to one{unconfirmed}", 0.8, spread)
    for size_bytes, wanted in ((1_000, 100.0), (10_000, 300.0)):
        volumes = [sample.bytes_per_second / MIB for sample in report.find("push by size", size_bytes=size_bytes)]
        yield _of_rounds(f"MiB a second of messages of {size_bytes:,} bytes", wanted, volumes)
    memory = [memory_bytes(sample) for sample in report.find("memory")]
    pushed = sum(sample.messages for sample in report.find("memory"))
    grown = (max(memory) - memory[0]) / MIB if memory else None
    yield Goal(f"MiB that the server grew by over {pushed:,} messages", True, 64.0, grown)
    idle = {sample.clients: memory_bytes(sample) for sample in report.find("idle connections")}
    most = max(idle, default=0)
    yield Goal(
        f"KiB of each of {most:,} idle connections", True, 30.0, (idle[most] - idle[0]) / most / KIB if most else None
    )
    pulls = report.find("pull by log")
    largest = max((sample.log_messages for sample in pulls), default=0)
    small_log = f"{OURS}, small log beside {largest:,}"
    for page, wanted in ((1, 1.1), (PAGE_MESSAGES, 1.5)):
        longer = ratios(
            report.find("pull by log", system=OURS, log_messages=largest, window=page),
            report.find("pull by log", system=small_log, window=page),
            p50_us,
        )
        what = f"p50 of pulling {page:,} of {largest:,} messages, to a small log"
        yield _of_rounds(what, wanted, longer, at_most=True)


def _of_actors(report: Report) -> Iterator[Goal]:
    for system, kib_max in ((actors.CALLED, 2.0), (actors.AWAITING, 8.0)):
        for window, how in zip(actors.WINDOWS, ("one at a time", "100 at once"), strict=True):
            asked = [rate(sample) for sample in report.find(actors.ASKED, system=system, window=window)]
            yield _of_rounds(f"requests a second of an AsyncWorker, {how}, to another {system}", 60_000.0, asked)
        sizes = [memory_bytes(each) / each.clients / KIB for each in report.find(actors.ASLEEP, system=system)]
        yield _of_rounds(f"KiB of each sleeping {system}", kib_max, sizes, at_most=True)


def _of_trouble(report: Report) -> Iterator[Goal]:
    for kind in trouble.KINDS:
        beside, alone = (report.find(work, system=kind) for work in (trouble.BESIDE, trouble.ALONE))
        what = f"p99 of a push beside a worker of the node that {kind}, to that alone"
        yield _of_rounds(what, 1.2, ratios(beside, alone, p99_us), at_most=True)


def _of_user_tests(report: Report) -> Iterator[Goal]:
    tested = [rate(sample) for sample in report.find(user_tests.TESTED, system=user_tests.IN_MEMORY)]
    yield _of_rounds("tests of a user's file a second, each with a node in memory", 300.0, tested)
    for system, which in ((user_tests.FIRST, "the first node() of a process"), (OURS, "a further node()")):
        started_s = [p50_us(sample) / 1e6 for sample in report.find(user_tests.STARTED, system=system)]
        yield _of_rounds(f"seconds until {which} has an address", 0.3, started_s, at_most=True)


def _of_flood(report: Report) -> Iterator[Goal]:
    for system, alone, limits in (
        (OURS, flood.ALONE, "limits for the flooder"),
        (flood.UNLIMITED, flood.UNLIMITED_ALONE, "the default limits"),
    ):
        for window in flood.WINDOWS:
            without = report.find(flood.FLOODED, system=alone, window=window)
            beside = ratios(report.find(flood.FLOODED, system=system, window=window), without, p99_us)
            what = f"p99 beside a flood, with {limits}, to that alone, window {window}"
            yield _of_rounds(what, 2.0, beside, at_most=True)


def _of_backfill(report: Report) -> Iterator[Goal]:
    for which in (backfill.NEWEST, backfill.OLDEST):
        filled = typical(report.find(backfill.FILLED, system=which), rate)
        yield Goal(f"blocks of 300 items a second filled from one node, the {which}", False, 500.0, filled)
    live = report.find(backfill.LIVE, system=OURS)
    slower = ratios(live, report.find(backfill.LIVE, system=backfill.ALONE), p99_us)
    yield _of_rounds("p99 of a live block beside a backfill, to that without one", 1.5, slower, at_most=True)
    for buffer_bytes in backfill.BUFFERS_BYTES:
        held = typical(report.find(backfill.LARGE, window=buffer_bytes), memory_bytes)
        buffer = buffer_bytes // MIB
        grown = None if held is None else held / MIB
        yield Goal(f"MiB that a node grows by in a backfill with a buffer of {buffer}", True, buffer + 32.0, grown)


def _of_http(report: Report) -> Iterator[Goal]:
    for work, wanted in (("lines", 300_000.0), ("json", 1_500.0), ("json by 32", 4_000.0), ("pages", 500.0)):
        requested = http.WORKS[work]
        system = f"{OURS}, {requested.name}"
        found = report.find(http.WORK, system=system, clients=requested.connections)
        whole = requested.messages if work == "pages" else 1
        what = f"{work} a second over HTTP, {requested.connections} connections"
        yield _of_rounds(what, wanted, [rate(each) / whole for each in found])


def _of_grpc(report: Report) -> Iterator[Goal]:
    routed = report.find(grpc.PUBLISHED, system=grpc.ROUTED)
    to_routed = ratios(report.find(grpc.PUBLISHED, system=OURS), routed, server_us)
    what = "the node's processor time of a block item over gRPC, to that over the routed protocol"
    yield _of_rounds(what, 1.0, to_routed, at_most=True)
    followed = report.find(grpc.PUBLISHED, system=grpc.FOLLOWED)
    yield _of_rounds("block items a second over gRPC, with a subscriber", 130_000.0, [rate(each) for each in followed])
    what = "µs of the node's processor for a block item over gRPC, with a subscriber"
    yield _of_rounds(what, 7.7, [server_us(each) for each in followed], at_most=True)
    paced, alone, busy = (
        report.find(work, system=system)
        for work, system in ((grpc.PACED, OURS), (grpc.STATUS_ASKED, OURS), (grpc.STATUS_ASKED, grpc.BUSY))
    )
    for what, found, figure, most_ms in (
        ("p50 from a block's end to its acknowledgement, 30,000 items a second", paced, p50_us, 10.0),
        ("p99 from a block's end to its acknowledgement, 30,000 items a second", paced, p99_us, 50.0),
        ("p50 of a status call over gRPC", alone, p50_us, 0.8),
        ("p99 of a status call over gRPC beside a publisher", busy, p99_us, 50.0),
    ):
        yield _of_rounds(f"ms, {what}", most_ms, [figure(each) / 1e3 for each in found], at_most=True)
    yield from _of_grpc_bytes(report)


def _of_grpc_bytes(report: Report) -> Iterator[Goal]:
    for size_bytes in grpc_bytes.RECEIVED_BYTES:
        for system, how, wanted in (
            (OURS, "", 2.5),
            (grpc_bytes.COMPRESSED, " with zstd", 3.5),
            (grpc_bytes.ENCRYPTED, " with TLS", 5.0),
        ):
            found = report.find(grpc_bytes.RECEIVED, system=system, size_bytes=size_bytes)
            what = f"ns of the node's processor for a byte received over gRPC{how}, {size_bytes} bytes an item"
            yield _of_rounds(what, wanted, [server_us(each) * 1e3 / size_bytes for each in found], at_most=True)
    sent = report.find(grpc_bytes.SENT, system=OURS)
    what = "µs of the node's processor for a KiB sent to a subscriber over gRPC"
    yield _of_rounds(what, 1.5, [server_us(each) / (each.size_bytes / KIB) for each in sent], at_most=True)
    for what, found, most_mib in (
        ("sends messages of 1 MB over gRPC", report.find(grpc_bytes.SENT), 64.0),
        ("gets one message of 100 MB over gRPC", report.find(grpc_bytes.LARGE), 100_000_000 / MIB + 64.0),
    ):
        grown = [memory_bytes(each) / MIB for each in found]
        yield _of_rounds(f"MiB that a node grows by that {what}", most_mib, grown, at_most=True)


def _codec_ratio(report: Report, figure: Callable[[CodecSample], float]) -> float | None:
    theirs = {sample.round: figure(sample) for sample in report.codecs if sample.codec != OURS}
    ratios = [
        figure(sample) / theirs[sample.round]
        for sample in report.codecs
        if sample.codec == OURS and sample.round in theirs
    ]
    return median(ratios) if ratios else None
