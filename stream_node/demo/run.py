"""The demo for new users. It also proves that the node keeps its promise to lose no confirmed message.

1. Start two nodes. Consumers reach the second node, called the store, through the first node, called the door.
2. Create a stream of four partitions and push real text. The lines of each file keep their order.
3. While pushes are in progress, kill the store with SIGKILL and start it again.
4. Meanwhile, two consumers read all messages through the door. One of them is killed, started again, and resumes.
5. Compare the data. Every confirmed message must be stored, in order, and must be consumed. Only pushes that were
   unconfirmed at the kill may be stored twice.
6. If Spark is installed, export the stream to Parquet with Spark. Kill the exporter in the middle, start it again, and
   query the table in SQL.
7. Publish and receive blocks (`parts.run_blocks`).
8. Let intruders try a node with mutual TLS and rules (`parts.run_guarded`).
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from stream_client import Push, Stream, connect
from stream_node.demo.consumer import ConsumerProcesses
from stream_node.demo.parts import DemoBlocks, DemoFailed, DemoProof, GuardedProof, prove, run_blocks, run_guarded
from stream_node.node.process import NodeProcess
from stream_service.names import partition_of

STREAM = "demo.lines"
PARTITIONS = 4
PARTITIONS_OF = {"reader-1": (0, 1), "reader-2": (2, 3)}
KILL_CONSUMER_AT, KILL_STORE_AT = 0.25, 0.5
"""The fractions of the input that are confirmed when the consumer and the store are killed."""
HELD_BACK = 0.25
"""The fraction of each partition's messages that is pushed last, so that some pushes are unconfirmed at the kill."""
READ_TIMEOUT_S = 60.0


class DemoStep(msgspec.Struct, frozen=True):
    what: str
    messages: int
    size_bytes: int
    seconds: float


class Pause(msgspec.Struct, frozen=True):
    """How long the demo's store was away after it was killed. restart_s: seconds from the kill until the store ran
    again. read_again_s: seconds from then until both consumers had read new messages."""

    restart_s: float
    read_again_s: float


def run_demo(input_dir: Path | None = None, *, with_export: bool = True, as_json: bool = False) -> None:
    """Runs the demo and prints the report. input_dir: the folder of the text files to push; None: text that every
    machine has. Raises DemoFailed if a promise was broken."""
    console = Console(stderr=as_json)
    lines = read_lines(input_dir)
    size_bytes = sum(len(data) for _, data in lines)
    console.print(f"{len(lines):,} lines of real text, {size_bytes / 1e6:.1f} MB, into {PARTITIONS} partitions")
    # The nodes and their data are gone after this block; the results stay.
    with tempfile.TemporaryDirectory(prefix="stream-node-demo-") as directory:
        demo = Demo(Path(directory), lines, console)
        demo.run(with_export=with_export)
    if as_json:
        report = {"steps": demo.steps, "pause": demo.pause, "proof": demo.proof, "export": demo.exported}
        report |= {"blocks": demo.blocks, "guarded": demo.guarded}
        sys.stdout.write(json.dumps(msgspec.to_builtins(report)) + "\n")
    else:
        _print_report(console, demo)
    # A broken promise fails the command after the report, so that both can be read.
    for broken in (demo.proof.broken, demo.blocks.broken, demo.guarded.broken):
        if broken:
            raise DemoFailed("; ".join(broken))


class Demo:
    """One run of the demo, and its results. exported: the result of the export, or the reason why there is none."""

    pause: Pause
    proof: DemoProof
    blocks: DemoBlocks
    guarded: GuardedProof
    exported: DemoExport | str = "it was not asked for"

    def __init__(self, directory: Path, lines: Sequence[tuple[bytes, bytes]], console: Console) -> None:
        self._directory = directory
        self._lines = lines
        self._size_bytes = sum(len(data) for _, data in lines)
        self._console = console
        self._pushes: list[list[Push]] = [[] for _ in range(PARTITIONS)]
        self._streams: tuple[Stream, ...] = ()
        self._about_to_kill = trio.Event()
        self._held_back = 0
        self._under_way = 0
        shown = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*shown, console=console, transient=True)
        self._task = self._progress.add_task("pushing", total=len(lines))
        self.steps: list[DemoStep] = []

    def run(self, *, with_export: bool) -> None:
        say = self._console.print
        with NodeProcess(self._directory / "store") as store:
            allow = ("--allow-forward", store.address)
            with NodeProcess(self._directory / "door", arguments=allow) as door:
                say(f"the store is at {store.address}; the door, at {door.address}, leads to it")
                places = door.address, store.address
                with ConsumerProcesses(self._directory, *places, STREAM, PARTITIONS_OF) as consumers:
                    trio.run(self._push_and_read, store, consumers)
                if with_export:
                    self._export(store)
                say(f"asked both to stop (SIGTERM): exit codes {door.stop()} and {store.stop()}")
        self.blocks = blocks = run_blocks(self._directory)
        count, what = blocks.published + blocks.real, "blocks of two publishers, one of which died"
        self.steps.append(DemoStep(what, count, blocks.size_bytes, blocks.seconds))
        self.guarded = guarded = run_guarded(self._directory, [data for _, data in self._lines])
        what = "pushed and read over mutual TLS, with rules"
        self.steps.append(DemoStep(what, guarded.messages, guarded.size_bytes, guarded.seconds))

    async def _push_and_read(self, store: NodeProcess, consumers: ConsumerProcesses) -> None:
        started_s = time.monotonic()
        async with connect(store.address) as client:
            self._streams = (await client.create_partitioned(STREAM, PARTITIONS)).partitions
            with self._progress:
                await self._push_all(store, consumers)
            ends = {partition: pushes[-1].index for partition, pushes in enumerate(self._pushes) if pushes}
            try:
                with trio.fail_after(READ_TIMEOUT_S):
                    await consumers.wait_read(ends)
            except trio.TooSlowError:
                raise DemoFailed(f"the readers did not reach the end in {READ_TIMEOUT_S:g} s") from None
            self._add_step("read by two consumers, through the door", time.monotonic() - started_s)
            await self._prove(consumers)

    async def _push_all(self, store: NodeProcess, consumers: ConsumerProcesses) -> None:
        """Pushes all lines, one publisher for each partition, while `_break_things` kills processes."""
        parts: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for key, data in self._lines:
            parts[partition_of(key, PARTITIONS)].append(data)
        held_back = [math.ceil(len(messages) * HELD_BACK) for messages in parts]
        self._held_back = sum(held_back)
        started_s = time.monotonic()

        async def publish(target: Stream, messages: Sequence[bytes], hold_at: int) -> None:
            async with target.publisher() as publisher:
                for number, data in enumerate(messages):
                    if number == hold_at:
                        await self._about_to_kill.wait()
                    self._pushes[target.partition].append(await publisher.push(data))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._break_things, store, consumers)
            for target, messages, held in zip(self._streams, parts, held_back, strict=True):
                nursery.start_soon(publish, target, messages, len(messages) - held)
        self._add_step("pushed, each confirmed when on disk", time.monotonic() - started_s)

    async def _break_things(self, store: NodeProcess, consumers: ConsumerProcesses) -> None:
        say = self._progress.console.print
        await self._wait_confirmed(KILL_CONSUMER_AT)
        consumers.kill("reader-2")
        consumers.start("reader-2")
        say("killed reader-2 (SIGKILL) and started it again; it resumes from its saved index")
        await self._wait_confirmed(KILL_STORE_AT)
        # The remaining lines are pushed now, and the store is killed once some of them are under way.
        self._about_to_kill.set()
        while not (under_way := self._unconfirmed()):
            if sum(map(len, self._pushes)) == len(self._lines):
                raise DemoFailed(
                    "everything was confirmed before the store could be killed; name a folder with more text"
                )
            await trio.lowlevel.checkpoint()
        self._under_way = under_way
        store.kill()
        killed_s = time.monotonic()
        confirmed = sum(map(len, self._pushes)) - under_way
        state = f"after {confirmed:,} confirmed messages and with {under_way:,} on their way"
        say(f"killed the store (SIGKILL) in the middle of pushing, {state}")
        await trio.to_thread.run_sync(store.start)
        back_s = time.monotonic()
        say(f"the store is back after {back_s - killed_s:.1f} s")
        with trio.move_on_after(READ_TIMEOUT_S):
            await consumers.wait_more()
        self.pause = Pause(back_s - killed_s, time.monotonic() - back_s)
        say(f"both readers, behind the door, go on {self.pause.read_again_s:.2f} s after that")
        await self._wait_confirmed(1.0)

    async def _wait_confirmed(self, part: float) -> None:
        """Waits until a fraction of the input is confirmed, or all lines that are not held back (HELD_BACK)."""
        wanted = part * len(self._lines)
        while True:
            confirmed = sum(map(len, self._pushes)) - self._unconfirmed()
            self._progress.update(self._task, completed=confirmed)
            held_back = 0 if self._about_to_kill.is_set() else self._held_back
            if confirmed >= min(wanted, len(self._lines) - held_back):
                return
            await trio.sleep(0.01)

    def _unconfirmed(self) -> int:
        return sum(stream.unconfirmed for stream in self._streams)

    async def _prove(self, consumers: ConsumerProcesses) -> None:
        started_s = time.monotonic()
        stored: dict[int, dict[int, bytes]] = {}
        for target in self._streams:
            kept = stored[target.partition] = dict[int, bytes]()
            while page := await target.pull(len(kept), 1_000):
                kept.update((message.index, message.data) for message in page)
        self._add_step("pulled back, to compare", time.monotonic() - started_s)
        confirmed = {
            partition: [(push.index, push.data) for push in pushes if push.error is None]
            for partition, pushes in enumerate(self._pushes)
        }
        consumed = [record for name in PARTITIONS_OF for record in consumers.records(name)]
        self.proof = prove(confirmed, stored, consumed, self._under_way)

    def _export(self, store: NodeProcess) -> None:
        with self._console.status("exporting with Spark"):
            self.exported = exported = export(self._directory / "lake", store.address, STREAM)
        if isinstance(exported, str):
            return
        what = "exported by Spark to Parquet"
        self.steps.append(DemoStep(what, exported.rows, exported.data_bytes, exported.seconds))
        before = f"when the table had {exported.rows_before_kill:,} rows"
        self._console.print(f"killed Spark's exporter (SIGKILL) {before}; another one exported the rest")
        if exported.rows != self.proof.stored:
            raise DemoFailed(f"{self.proof.stored} messages are stored, and {exported.rows} were exported")

    def _add_step(self, what: str, seconds: float) -> None:
        self.steps.append(DemoStep(what, len(self._lines), self._size_bytes, seconds))


def _print_report(console: Console, demo: Demo) -> None:
    numbers = (Column(name, justify="right") for name in ("messages", "MB", "seconds", "messages/s"))
    table = Table("what", *numbers, title="stream-node demo")
    for step in demo.steps:
        cells = f"{step.messages:,}", f"{step.size_bytes / 1e6:.1f}", f"{step.seconds:.2f}"
        table.add_row(step.what, *cells, f"{step.messages / step.seconds:,.0f}")
    console.print(table)
    console.print(
        f"the reading has a pause in it: {demo.pause.restart_s:.1f} s for the store's restart, "
        f"and {demo.pause.read_again_s:.2f} s until both readers had messages again"
    )
    proof, blocks = demo.proof, demo.blocks
    console.print(
        f"{proof.confirmed:,} confirmed, {proof.stored:,} stored ({proof.stored_again:,} of them again, since the kill "
        f"lost their confirm), {proof.consumed:,} consumed ({proof.consumed_again:,} twice, around the kill)"
    )
    if not proof.broken:
        console.print("[green]every confirmed message is stored once per push, in order, byte for byte[/green]")
    if not blocks.broken:
        real = f", and {blocks.real} real ones from files" if blocks.real else ""
        console.print(f"[green]each of {blocks.published} blocks{real} came to the subscriber once, and whole[/green]")
    if not demo.guarded.broken:
        console.print(
            f"[green]over mutual TLS, the reader got each of {demo.guarded.read:,} messages; {demo.guarded.audited} "
            "intruders were refused, and are in the audit log[/green]"
        )
        for reason in demo.guarded.refused:
            console.print(f"  {reason}", highlight=False, markup=False)
    if isinstance(demo.exported, str):
        console.print(f"no export: {demo.exported}", highlight=False, markup=False)
        return
    console.print(f"\n{demo.exported.query}", highlight=False, markup=False)
    answer = Table(*(Column(name, justify="right") for name in demo.exported.columns))
    for row in demo.exported.answer:
        answer.add_row(*(f"{value:,}" for value in row))
    console.print(answer)


TOTAL_BYTES = 6 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024


def read_lines(input_dir: Path | None) -> list[tuple[bytes, bytes]]:
    """Returns the lines of several MB of real text, each behind its key, the path of its file: the lines of one file go
    to one partition and keep their order. Raises OSError if there is no text."""
    lines: list[tuple[bytes, bytes]] = []
    left = TOTAL_BYTES
    for file in _files(input_dir):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        if b"\0" in content[:1024]:
            continue
        lines += ((str(file).encode(), line[:LINE_BYTES_MAX]) for line in content.splitlines())
        left -= len(content)
        if left <= 0:
            return lines
    if not lines:
        raise OSError(f"found no text to push in {input_dir or 'the usual places'}; name a folder with --input-dir")
    return lines


def _files(input_dir: Path | None) -> Iterator[Path]:
    if input_dir is not None:
        yield from sorted(path for path in input_dir.rglob("*") if path.is_file())
        return
    yield from sorted(path for path in Path("/var/log").glob("*.log") if path.is_file())
    yield from sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    yield from sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    yield from sorted(Path(__file__).parents[2].rglob("*.py"))


TIMEOUT_S = 1_500.0


class DemoExport(msgspec.Struct, frozen=True):
    """The result of the export. columns, answer: the result of `query`, in SQL, on the table.

    rows_before_kill: the rows that the table had when the exporter was killed; a second exporter exported the rest."""

    rows: int
    rows_before_kill: int
    data_bytes: int
    file_bytes: int
    seconds: float
    query: str
    columns: list[str]
    answer: list[list[int | float]]


def export(folder: Path, node: str, stream: str) -> DemoExport | str:
    """Exports the stream into the folder. Returns the reason if Spark is not installed. Raises DemoFailed."""
    if importlib.util.find_spec("pyspark") is None:
        return "the extra `spark` is not installed (sh tools/spark.sh)"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "spark_export.exporter.demo", str(folder), node, stream],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the export did not end in {TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise DemoFailed(f"the export failed: {lines[-1]}")
    report = json.loads(done.stdout.splitlines()[-1])
    if "skipped" in report:
        return str(report["skipped"])
    return msgspec.convert(report, DemoExport)
