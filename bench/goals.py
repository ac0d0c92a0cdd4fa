"""The goals that a run is held against, each with the figure that the run has measured for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from statistics import median

from bench import backfill, block, cardinal, export, export_start, flood, security, watching
from bench.compared import BLOCKING, CEILING
from bench.measure import PAGE_MESSAGES
from bench.plan import MIB
from bench.report import OURS, CodecSample, Goal, Report, Sample, ratio, ratios, typical
from bench.scale import UNGROUPED

KIB = 1024
Figure = Callable[[Sample], float]


def rate(sample: Sample) -> float:
    return sample.per_second


def p50_us(sample: Sample) -> float:
    return sample.p50_us or 0.0


def p99_us(sample: Sample) -> float:
    return sample.p99_us or 0.0


def server_us(sample: Sample) -> float:
    """The server's processor time for each message, in microseconds."""
    return 1e6 * (sample.server_cpu_s or 0.0) / sample.messages


def memory_bytes(sample: Sample) -> float:
    return float(sample.server_memory_bytes or 0)


def goals(report: Report) -> Iterator[Goal]:
    """All goals. A goal has no figure if its work was not run."""
    for window in (1_000, 10_000):
        ours = report.find("push", system=OURS, window=window)
        for peer, wanted in (("redis", 1.3), ("nats", 3.0)):
            theirs = report.find("push", system=peer, window=window)
            yield Goal(f"pushes, window {window:,}, to those of {peer}", False, wanted, ratio(ours, theirs, rate))
        ceiling = report.find("push", system=CEILING, window=window)
        yield Goal(f"pushes, window {window:,}, to those of the prototype", False, 0.6, ratio(ours, ceiling, rate))
    pulled = ratio(report.find("pull", system=OURS), report.find("pull", system="redis"), rate)
    yield Goal("pulled messages, to those of redis", False, 2.0, pulled)
    singles = report.find("latency", system="redis")
    for system in (OURS, BLOCKING):
        single = ratio(report.find("latency", system=system), singles, p50_us)
        yield Goal(f"p50 of a single push ({system}), to that of redis", True, 2.0, single)
    grouped = ratio(report.find("slow disk", system=OURS), report.find("slow disk", system=UNGROUPED), rate)
    yield Goal("slow disk, many publishers, to one transaction a push", False, 10.0, grouped)
    plain = report.find(security.PUSHED, system=OURS, window=1_000)
    for system, name, wanted in ((security.TLS, "mutual TLS", 0.8), (security.CHANNEL, "a secure channel", 0.6)):
        encrypted = ratios(report.find(security.PUSHED, system=system, window=1_000), plain, rate)
        yield _of_rounds(f"pushes over {name}, window 1,000, to those without", wanted, encrypted)
    turns = report.find(security.TURNED, system=security.RULED)
    ruled = ratio(turns, report.find(security.TURNED, system=OURS), server_us)
    yield Goal("the node's processor time of a push under rules, window 1,000, to that without", True, 1.02, ruled)
    yield from _of_flood(report)
    yield from _of_watching(report)
    yield from _of_growth(report)
    whole = typical(report.find(cardinal.REASSEMBLE), rate)
    yield Goal("Cardinal messages put together and ordered a second, in one process", False, 150_000.0, whole)
    native = report.find(export.WORK, system=export.NATIVE)
    for system, wanted in ((export.OVER_TCP, 0.9), (export.EXPORTER, 1.6), (export.INLINE_EXPORTER, 1.6)):
        copied = ratios(report.find(export.WORK, system=system), native, rate)
        yield _of_rounds(f"rows to Parquet, {system}, to Spark from Parquet", wanted, copied)
    disk = report.find(export.WORK, system=export.INLINE_EXPORTER)
    stored = ratios(report.find(export.WORK, system=export.TO_S3), disk, rate)
    yield _of_rounds(f"rows to Parquet, {export.TO_S3}, to the same on the disk", 0.8, stored)
    pushed = report.find(export.DURING, system=OURS)
    kept = ratios(pushed, report.find(export.DURING, system=export.ALONE), rate)
    yield _of_rounds("pushes beside an export, to those without one", 0.85, kept)
    idle_s = typical(report.find(export_start.WORK, system=export_start.NOTHING_NEW), attrgetter("seconds"))
    yield Goal("seconds of a whole run of an export that finds nothing new", True, 5.0, idle_s)
    for items in block.ITEMS_A_BLOCK:
        verified = typical(report.find(block.PUBLISHED, window=items), rate)
        yield Goal(f"block items verified and durable a second, {items:,} a block", False, 100_000.0, verified)
    large = typical(report.find(block.LARGE), memory_bytes)
    yield Goal("MiB of the server with a block of 100 MB", True, 300.0, None if large is None else large / MIB)
    yield from _of_backfill(report)
    for name, figure in (("encoded", attrgetter("encode_per_second")), ("decoded", attrgetter("decode_per_second"))):
        yield Goal(f"PushRequests {name}, to pybare", False, 5.0, _codec_ratio(report, figure))


def _of_rounds(what: str, wanted: float, found: list[float]) -> Goal:
    """A goal that the median of the rounds must reach, with the spread of the rounds."""
    if not found:
        return Goal(what, False, wanted, None)
    return Goal(what, False, wanted, median(found), (min(found), max(found)))


def _of_watching(report: Report) -> Iterator[Goal]:
    """What metrics, a dashboard and a follower cost: processor time of a nearly idle node, and the rate of pushes."""
    without = {sample.round: sample for sample in report.find(watching.IDLE, system=OURS)}
    more = [
        ((sample.server_cpu_s or 0.0) - (without[sample.round].server_cpu_s or 0.0)) / sample.seconds
        for sample in report.find(watching.IDLE, system=watching.WATCHED)
    ]
    name = "metrics, dashboard and a follower: processor seconds of the node in a second"
    yield Goal(name, True, 0.02, median(more) if more else None, (min(more), max(more)) if more else None)
    beside = ratios(
        report.find(watching.PUSHED, system=watching.WATCHED), report.find(watching.PUSHED, system=OURS), rate
    )
    yield _of_rounds("pushes beside metrics, dashboard and a follower, to those without", 0.98, beside)


def _of_growth(report: Report) -> Iterator[Goal]:
    by_streams = report.find("push by streams")
    many = max((sample.streams for sample in by_streams), default=1_000)
    for window in sorted({sample.window for sample in by_streams}) or [0]:
        one = report.find("push by streams", streams=1, window=window)
        spread = ratio(report.find("push by streams", streams=many, window=window), one, rate)
        unconfirmed = f", {window:,} unconfirmed" if window else ""
        yield Goal(f"pushes to {many:,} streams, to those to one{unconfirmed}", False, 0.7, spread)
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
    for page in (1, PAGE_MESSAGES):
        longer = ratio(
            report.find("pull by log", system=OURS, log_messages=largest, window=page),
            report.find("pull by log", system=small_log, window=page),
            p50_us,
        )
        yield Goal(f"p50 of pulling {page:,} of {largest:,} messages, to a small log", True, 1.5, longer)


def _of_flood(report: Report) -> Iterator[Goal]:
    for window in flood.WINDOWS:
        alone = report.find(flood.FLOODED, system=flood.ALONE, window=window)
        beside = ratios(report.find(flood.FLOODED, system=OURS, window=window), alone, p99_us)
        what = f"p99 beside a flood, to that alone, window {window}"
        spread = (min(beside), max(beside)) if beside else None
        yield Goal(what, True, 2.0, median(beside) if beside else None, spread)


def _of_backfill(report: Report) -> Iterator[Goal]:
    for which in (backfill.NEWEST, backfill.OLDEST):
        filled = typical(report.find(backfill.FILLED, system=which), rate)
        yield Goal(f"blocks of 300 items a second filled from one node, the {which}", False, 500.0, filled)
    live = report.find(backfill.LIVE, system=OURS)
    slower = ratio(live, report.find(backfill.LIVE, system=backfill.ALONE), p99_us)
    yield Goal("p99 of a live block beside a backfill, to that without one", True, 1.5, slower)
    for buffer_bytes in backfill.BUFFERS_BYTES:
        held = typical(report.find(backfill.LARGE, window=buffer_bytes), memory_bytes)
        buffer = buffer_bytes // MIB
        grown = None if held is None else held / MIB
        yield Goal(f"MiB that a node grows by in a backfill with a buffer of {buffer}", True, buffer + 32.0, grown)


def _codec_ratio(report: Report, figure: Callable[[CodecSample], float]) -> float | None:
    theirs = {sample.round: figure(sample) for sample in report.codecs if sample.codec != OURS}
    ratios = [
        figure(sample) / theirs[sample.round]
        for sample in report.codecs
        if sample.codec == OURS and sample.round in theirs
    ]
    return median(ratios) if ratios else None
