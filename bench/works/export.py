"""Measures how fast Spark brings streams into Parquet in each of our ways, and how pushes fare during an export.

Spark's own copy of the same rows from Parquet to Parquet is the measure of the ways. One embedded session runs on two
cores; the ways take turns, so that their ratios hold on a noisy machine. The first turn of each way is not counted,
because the JVM compiles in it.

The bench `export` measures what the goals need, and begins no round after its time is over. The bench `export-ways`
measures the other ways.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from bench.errors import PeerFailed
from bench.measure import push_rate
from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers import s3
from bench.servers.bench_node import BenchNode
from stream_node.bench.run import Timed
from stream_storage.contract import Append
from stream_storage.sqlite.database import Database

WORK = "export"
OTHER_WORK = "export by other ways"
STREAM = "exported"
PARTITIONS = 4
SIZE_BYTES = 200
BLOCK = 50_000
POOL = 100_000
"""The number of different messages. A stream repeats them."""
CORES = 2
OVER_TCP = "Spark source over TCP"
OF_FILE = "Spark source of the file"
APPLICATION = "exporter on Spark, its tasks write Parquet"
SMALL_ENGINE = "small engine, without Spark"
SMALL_ENGINE_OF_FILE = "small engine, of the file"
SMALL_ENGINE_DELTA = "small engine, Delta"
NATIVE = "Spark from Parquet to Parquet"
TUPLES = "Spark source that yields tuples"
TO_S3 = "small engine, Delta, to an S3 server here"
GOALS_WAYS = (NATIVE, OVER_TCP, APPLICATION, SMALL_ENGINE, SMALL_ENGINE_DELTA, TO_S3)
OTHER_WAYS = (NATIVE, OF_FILE, SMALL_ENGINE_OF_FILE, TUPLES)
DURING = "push beside an export"
ALONE = "stream-node, no export"
PUSH_BYTES, PUSH_WINDOW = 100, 1_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def is_possible() -> bool:
    """Whether the extra `spark` is installed."""
    return all(find_spec(name) is not None for name in ("pyspark", "pyarrow", "adbc_driver_sqlite"))


def samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """One sample for each way that a goal needs and each round; none if the extra `spark` is not installed.

    Ends about `plan.export_seconds` after its start: a busy machine makes fewer rounds, but at least one."""
    if not is_possible():
        return
    ends_s = time.monotonic() + plan.export_seconds
    with _exported(plan, place) as node:
        # The pushes get the last third of the time.
        yield from _rounds(plan, node, place, GOALS_WAYS, WORK, ends_s - plan.export_seconds / 3)
        yield from _pushes(plan, node, place, ends_s)


def other_samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """One sample for each of the other ways and each round, with Spark's own copy as their measure."""
    if is_possible():
        with _exported(plan, place) as node:
            yield from _rounds(plan, node, place, OTHER_WAYS, OTHER_WORK, math.inf)


@contextmanager
def _exported(plan: Plan, place: Path) -> Iterator[BenchNode]:
    """A node with the messages."""
    data_dir = place / "exported"
    fill(data_dir, plan.exported)
    try:
        with BenchNode(data_dir) as node:
            yield node
    finally:
        shutil.rmtree(data_dir)


def _rounds(
    plan: Plan, node: BenchNode, place: Path, chosen: tuple[str, ...], work: str, ends_s: float
) -> Iterator[Sample]:
    from spark_export import open_session

    with ExitStack() as stack:
        spark = open_session(f"local[{CORES},4]", name="bench", config={"spark.driver.memory": "2g"})
        stack.callback(spark.stop)
        ways = _ways(spark, node, place)
        servers: dict[str, int] = {}
        if s3.is_possible() and TO_S3 in chosen:
            server = stack.enter_context(s3.running_s3())
            ways[TO_S3] = _to_s3(node, server.endpoint)
            servers[TO_S3] = server.pid
        for round_ in _in_time(plan.rounds + 1, 2, ends_s):
            for system in filter(ways.__contains__, chosen):
                target = place / "out"
                sample = _measure(
                    work, system, round_ - 1, ways[system], target, plan.exported, node.pid, servers.get(system)
                )
                shutil.rmtree(target)
                if round_:
                    yield sample
        shutil.rmtree(place / "native")


def _in_time(rounds: int, rounds_min: int, ends_s: float) -> Iterator[int]:
    """The numbers of the rounds. After `rounds_min` rounds, no round begins that would end after `ends_s` if it took as
    long as the one before it. Times are in seconds of a monotonic clock."""
    for round_ in range(rounds):
        began_s = time.monotonic()
        yield round_
        ended_s = time.monotonic()
        if round_ + 1 >= rounds_min and ended_s + (ended_s - began_s) > ends_s:
            return


def _ways(spark: Any, node: BenchNode, place: Path) -> dict[str, Callable[[Path], None]]:
    """Each way to get all messages into files below a folder. Columns and codec are the same in all of them."""
    from spark_export.exporter.application import SparkExporter
    from spark_export.exporter.run import Exporter

    spark.dataSource.register(_tuple_source())
    options = {"endpoint": node.address, "subscribe": STREAM, "columns": "stream"}
    native = str(place / "native")
    spark.read.format("stream_node").options(**options).load().write.parquet(native)

    def read(name: str, **more: str) -> Callable[[Path], None]:
        return lambda target: (
            spark.read.format(name).options(**options, **more).load().write.parquet(str(target / "table"))
        )

    on_spark = partial(SparkExporter, session=spark)
    return {
        NATIVE: lambda target: spark.read.parquet(native).write.parquet(str(target / "table")),
        OVER_TCP: read("stream_node"),
        OF_FILE: read("stream_node", path=str(node.data_dir)),
        APPLICATION: lambda target: _export(on_spark, node, target),
        SMALL_ENGINE: lambda target: _export(Exporter, node, target),
        SMALL_ENGINE_DELTA: lambda target: _export(Exporter, node, target, format="delta"),
        SMALL_ENGINE_OF_FILE: lambda target: _export(Exporter, node, target, data_dir=node.data_dir),
        TUPLES: read("bench_tuples"),
    }


def _export(opened: Callable[..., Any], node: BenchNode, address: Path | str, **more: Any) -> None:
    """Exports all messages to an address where no table is."""
    from spark_export.exporter.job import ExportSettings
    from spark_export.exporter.node_side import Selection

    settings = ExportSettings(
        address, node.address, selection=Selection((STREAM,)), client_id=str(time.time_ns()), **more
    )
    with opened(settings) as exporter:
        exporter.run()


def _to_s3(node: BenchNode, endpoint: str) -> Callable[[Path], None]:
    """Returns a function that exports without Spark, each time to a new address in a server's bucket."""
    from spark_export.exporter.run import Exporter

    def copy(target: Path) -> None:
        target.mkdir()
        address = f"s3://{s3.BUCKET}/{time.time_ns()}"
        _export(Exporter, node, address, store_options={"endpoint": endpoint}, history=target / "history.sqlite")

    return copy


def _pushes(plan: Plan, node: BenchNode, place: Path, ends_s: float) -> Iterator[Sample]:
    """Pushes that go on until the command has exported everything, and then as many pushes alone.

    ends_s: see `_in_time`."""
    push = partial(push_rate, node.address, messages=plan.messages, size_bytes=PUSH_BYTES, window=PUSH_WINDOW)
    folder = place / "during-pushes"
    command = [sys.executable, "-m", "stream_node", "export", "run", str(folder), "--node", node.address]
    for round_ in _in_time(plan.rounds, 1, ends_s):
        meanwhile: list[Timed] = []
        with subprocess.Popen([*command, "--stream", STREAM], stdout=subprocess.DEVNULL) as export:
            while export.poll() is None or not meanwhile:
                meanwhile.append(trio.run(push))
        if export.returncode:
            raise PeerFailed(f"the export during the pushes ended with {export.returncode}")
        shutil.rmtree(folder)
        alone = [trio.run(push) for _ in meanwhile]
        for system, timed in ((OURS, meanwhile), (ALONE, alone)):
            yield Sample(
                work=DURING,
                system=system,
                round=round_,
                window=PUSH_WINDOW,
                size_bytes=PUSH_BYTES,
                messages=sum(each.messages for each in timed),
                seconds=sum(each.seconds for each in timed),
            )


def _tuple_source() -> type[Any]:
    """Our Spark source with rows as Python tuples, as most sources written in Python yield them."""
    from pyspark.sql.datasource import DataSourceReader

    from spark_export.source.options import read_options
    from spark_export.source.readers import BatchReader
    from spark_export.source.source import StreamNodeSource

    class TupleReader(BatchReader):
        def read(self, partition: Any) -> Iterator[Any]:
            for batch in super().read(partition):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    class TupleSource(StreamNodeSource):
        @classmethod
        def name(cls) -> str:
            return "bench_tuples"

        def reader(self, schema: Any) -> DataSourceReader:
            return TupleReader(read_options(self.options), schema)

    return TupleSource


def _measure(
    work: str,
    system: str,
    round_: int,
    copy: Callable[[Path], None],
    target: Path,
    messages: int,
    node_pid: int,
    server_pid: int | None,
) -> Sample:
    """Measures one copy. server_pid: of the S3 server, if it gets the copy; its processor time is counted apart."""
    roots = (os.getpid(), node_pid)
    before_s = 0.0 if server_pid is None else _cpu_s((server_pid,))
    cpu_s, began_s = _cpu_s(roots), time.perf_counter()
    copy(target)
    seconds = time.perf_counter() - began_s
    cpu_s = _cpu_s(roots) - cpu_s
    server_cpu_s = None if server_pid is None else _cpu_s((server_pid,)) - before_s
    return Sample(
        work=work,
        system=system,
        durability="files closed",
        round=round_,
        size_bytes=SIZE_BYTES,
        streams=PARTITIONS,
        messages=messages,
        seconds=seconds,
        cpu_s=cpu_s - (server_cpu_s or 0.0),
        server_cpu_s=server_cpu_s,
    )


def _cpu_s(roots: tuple[int, ...]) -> float:
    """Processor time of these processes and of all their descendants, ended ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(each.name))
            ticks[int(each.name)] = sum(map(int, fields[11:15]))
    found, waiting = set[int](), list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return sum(ticks.get(pid, 0) for pid in found) / TICKS_PER_SECOND


def fill(data_dir: Path, messages: int) -> None:
    """Makes a log with this many messages in PARTITIONS partitions. The storage layer writes it, without a node."""
    seeded = random.Random(1)
    pool = [_message(seeded, number) for number in range(min(POOL, messages))]
    database = Database.open(data_dir)
    try:
        session = database.session()
        for partition in range(PARTITIONS):
            session.begin()
            stream_id = session.log.ensure_stream(STREAM, partition, 1).stream_id
            session.commit()
            for start in range(0, messages // PARTITIONS, BLOCK):
                data = [
                    pool[(start + number) % len(pool)] for number in range(min(BLOCK, messages // PARTITIONS - start))
                ]
                session.begin()
                session.log.append([Append(stream_id, start, 1_700_000_000_000_000 + start, data)])
                session.commit()
            session.checkpoint("TRUNCATE")
        session.close()
    finally:
        database.close()


def _message(seeded: random.Random, number: int) -> bytes:
    """JSON of SIZE_BYTES that compresses about three times, as records do."""
    account, amount = seeded.randrange(10**6), seeded.randrange(10**9)
    status = seeded.choice(("OK", "FAILED", "PENDING"))
    text = f'{{"account":"0.0.{account}","amount":{amount},"memo":"order {number}","status":"{status}","note":"'
    return (text + seeded.randbytes(SIZE_BYTES).hex()[::2])[: SIZE_BYTES - 2].encode() + b'"}'
