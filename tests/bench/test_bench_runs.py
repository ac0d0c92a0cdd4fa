"""The bench itself: that it measures what it says. Its figures are this machine's, so none is asserted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import typer

from bench import compared, run
from bench.__main__ import build
from bench.big_log import STREAM, extend_log
from bench.errors import PeerFailed
from bench.goals import goals
from bench.measure import push_rate
from bench.own import Own
from bench.plan import QUICK
from bench.report import OURS, Report, Sample
from bench.run import PARTS, SCALES, Options, run_bench
from bench.servers.bench_node import BenchNode
from bench.works import backfill, followers, grpc, grpc_bytes, http, scale
from bench.works.codec import compare
from bench.works.scale import UNGROUPED, measure_alone, measure_node
from stream_client import blocking
from stream_node.cli.app import run as run_command
from tests.bench.report_schema import Benched
from tests.stream_storage.crash_samples import need_strace

TINY = msgspec.structs.replace(QUICK, messages=300, single=20, windows=(1, 100), slow_seconds=0.2)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench puts its data under the working directory, and leaves nothing there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.soak
def test_a_run_measures_every_kind_of_growth_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: `bench scale` has a sample of all it is for. Method: the smallest plan that has; look at its report.

    The other parts have tests of their own, and CI runs the command with all of them (`make smoke`).
    """
    least = {"sizes_bytes": (10,), "streams": (1,), "clients": (2,), "logs": (2_000, 3_000), "memory": 1_000}
    monkeypatch.setattr(run, "QUICK", msgspec.structs.replace(TINY, **least))
    run_bench("scale", Options(quick=True, output=Path("report.json")))
    report = msgspec.json.decode(Path("report.json").read_bytes(), type=Report)
    assert report.quick
    assert {sample.work for sample in report.samples} == {
        *("push by size", "push by streams", "push by clients", "push by log", "pull by log"),
        *("memory", "idle connections", "slow disk"),
    }
    assert "messages/s" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("push", signal.SIGTERM),
        pytest.param("clients", signal.SIGHUP, marks=pytest.mark.soak),
        pytest.param("fanout", signal.SIGINT, marks=pytest.mark.soak),
    ],
)
def test_a_bench_that_is_told_to_end_leaves_nothing(tmp_path: Path, part: str, number: signal.Signals) -> None:
    """Goal: no servers, no files and no stack trace are left. Method: signals, while one and many tasks push."""
    command = [sys.executable, "-m", "bench", part, "--messages", "10000000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as bench:
        deadline_s = time.monotonic() + 60
        while not list(tmp_path.glob(".bench-*/data/streams.sqlite-wal")):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        bench.send_signal(number)
        _, said = bench.communicate(timeout=60)
        assert (bench.returncode, "Traceback" in said) == (128 + number, False)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_keeps_what_it_has_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an hour of samples is not lost by the part that fails, nor the report of the last run that ended.
    Method: a part that fails after its first sample; read both files."""

    def fails_early(bench: run.Bench) -> Iterator[Sample]:
        yield Sample(work="asked", system=OURS, messages=3, seconds=1.5)
        raise PeerFailed("the server ended")

    monkeypatch.setitem(PARTS, "actors", fails_early)
    Path("report.json").write_text("the last run")
    with pytest.raises(PeerFailed):
        run_bench("actors", Options(quick=True, output=Path("report.json")))
    (sample,) = msgspec.json.decode(Path("report.json.unfinished").read_bytes(), type=Report).samples
    assert sample.per_second == 2
    assert Path("report.json").read_text() == "the last run"


def test_a_bench_that_is_told_to_end_while_a_node_starts_leaves_nothing(tmp_path: Path) -> None:
    """Goal: a node that has not said yet where it listens is ended too. Method: one that never says, and a signal."""
    children: list[int] = []

    class Silent(BenchNode):
        def command(self) -> list[str]:
            return ["sleep", "600"]

        def kill(self) -> None:
            if self._process is not None:
                children.append(self.pid)
            super().kill()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt), Silent():
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    (child,) = children
    assert not Path(f"/proc/{child}").exists()
    assert list(tmp_path.iterdir()) == []


def test_deliveries_are_counted_for_every_consumer() -> None:
    plan = msgspec.structs.replace(TINY, consumers=(1, 3), fanout_messages=600)
    samples = list(scale.consumers(plan))
    assert [(sample.clients, sample.messages, sample.window) for sample in samples] == [(1, 600, 100), (3, 600, 100)]
    assert all(sample.p50_us is not None and sample.p50_us > 0 for sample in samples)


@pytest.mark.slow
def test_followers_by_parts_and_by_pages_get_every_message() -> None:
    """Goal: both kinds of followers get and time each message. Method: few of them; the counts of the samples."""
    plan = msgspec.structs.replace(TINY, followers=((3, 100.0),), follow_seconds=0.2)
    samples = list(followers.samples(plan, [Own()], []))
    assert [(each.system, each.clients, each.messages) for each in samples] == [
        (OURS, 3, 60),
        (OURS + followers.PULLED, 3, 60),
    ]
    assert all(each.p50_us is not None and each.p50_us > 0 for each in samples)


@pytest.mark.slow
def test_each_kind_of_request_over_http_is_measured() -> None:
    """Goal: every goal of HTTP has a figure. Method: the shortest run; the counts of its samples."""
    samples = list(http.samples(msgspec.structs.replace(TINY, rounds=1, http_seconds=0.01)))
    assert [(each.window, each.clients) for each in samples] == [
        (each.messages, each.connections) for each in http.WORKS.values()
    ]
    assert all(each.messages >= each.window and each.p50_us for each in samples)
    found = list(goals(Report(started="", machine="", sqlite="", quick=True, samples=samples)))
    assert sum("over HTTP" in goal.what and bool(goal.measured) for goal in found) == len(http.WORKS)


@pytest.mark.soak
def test_a_part_measured_again_takes_the_place_of_what_it_was(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    for part, size_bytes in (("latency", 10), ("fanout", 10), ("latency", 20)):
        options = Options(output=output, keep=True, quick=True, messages=100, size_bytes=size_bytes)
        run_bench(part, options)
    report = msgspec.json.decode(output.read_bytes(), type=Report)
    found = {(sample.work, sample.size_bytes) for sample in report.samples}
    assert found == {("latency", 20), ("fanout", 10), ("follow", 10)}
    assert len(report.load) == 6
    assert report.started < report.ended


@pytest.mark.soak
def test_a_report_in_json_has_all_that_is_told_of_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: who reads `--json` needs to compute nothing. Method: a part with servers; the fields by name."""
    run_bench("streams", Options(quick=True, as_json=True, messages=100, size_bytes=10))
    report = json.loads(capsys.readouterr().out)
    assert {(sample["streams"], sample["window"]) for sample in report["samples"]} == {
        *((1, 100), (10, 100), (1, 1_000), (10, 1_000)),
    }
    for sample in report["samples"]:
        assert sample["messages_per_second"] * sample["seconds"] == pytest.approx(sample["messages"])
        assert sample["bytes_per_second"] == pytest.approx(10 * sample["messages_per_second"])
        assert sample["p50_us"] <= sample["p99_us"] <= sample["p999_us"]
        assert min(sample["server_memory_bytes"], sample["fsyncs_per_second"]) > 0
        assert sample["server_cpu_s"] >= 0
        assert "fsync" in sample["durability"]
    wanted = [goal["what"] for goal in report["goals"] if goal["measured"] is not None]
    assert wanted == [f"pushes to 10 streams, to those to one, {window} unconfirmed" for window in ("100", "1,000")]


def test_a_report_has_the_fields_that_are_promised(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(lambda **_: build()(["pull", "--quick", "--messages", "100", "--json"], standalone_mode=False)) == 0
    )
    report = msgspec.json.decode(capfd.readouterr().out, type=Benched)
    pulled = [(sample.work, sample.system, sample.messages) for sample in report.samples]
    assert pulled == [("pull", OURS, 100), ("pull", OURS + compared.CONSUMER, 100)]


def test_an_unknown_part_or_peer_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda **_: build()(["flying"], standalone_mode=False)) == 2
    said = capfd.readouterr().err.rstrip()
    parts = "push, pull, many, many-clients, latency, deliver, loads, share, group, deleting, standing, fanout,"
    assert f"there are {parts}" in said
    assert said.endswith("costs and all")
    assert run_command(lambda **_: build()(["--peer", "kafka"], standalone_mode=False)) == 2
    assert "there are valkey, valkey, hiredis, redis 7 of Debian, nats synced," in capfd.readouterr().err


def test_what_cannot_be_compared_with_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing that was asked for is left out in silence. Method: no pip."""
    absent: list[str] = []
    monkeypatch.setattr("bench.works.codec.maybe_install", lambda requirement, place: None)
    assert {sample.codec for sample in compare(1, tmp_path, absent)} == {OURS}
    assert absent == ["pybare: pybare==1.3.0 cannot be installed"]


def test_the_help_names_every_part_that_can_be_asked_for() -> None:
    """Claim: the help of `what` names each part, and no other. Method: its lists are compared with PARTS and SCALES."""
    (what,) = (each for each in typer.main.get_command(build()).params if each.name == "what")
    parts, costs, scales = getattr(what, "help", "").split("; ")
    assert {*re.split(", | or ", parts), "scale"} == {*PARTS, "all"}
    assert costs.startswith("costs (")
    assert scales.partition("a part of it: ")[2] == ", ".join(SCALES) + "."


def test_every_part_can_be_asked_for() -> None:
    assert list(PARTS) == [
        *(
            "push",
            "pull",
            "many",
            "many-clients",
            "latency",
            "deliver",
            "loads",
            "share",
            "group",
            "deleting",
            "standing",
            "fanout",
            "codec",
            "actors",
            "trouble",
            "user-tests",
            "scale",
            "large",
            "cardinal",
            "export",
        ),
        *("export-ways", "export-start", "block", "backfill", "grpc", "security", "http", "flood"),
        *("watching", "postgres", "cluster"),
    ]


def test_the_syncs_told_are_those_that_a_tracer_sees() -> None:
    """Goal: fsyncs per second are counted right. Method: count the same life of a node under strace."""
    prefix = need_strace("fsync", "fdatasync")

    class Traced(BenchNode):
        def command(self) -> list[str]:
            # With -D the node itself is our child, which gets our signals; the tracer ends with it.
            return [*prefix, "-D", "-o", "trace", *super().command()]

    with Traced() as node:
        started_s = time.perf_counter()
        sample = measure_node(node, partial(push_rate, messages=200, size_bytes=10, window=1), work="push")
        before_close = _syncs()
        told = node.finish()
        lived_s = time.perf_counter() - started_s
    assert sample.messages == 200
    assert told is not None
    # What opened the database synced before the statistics began, and the clock of the rate is not exactly ours.
    assert told * lived_s * 1.5 >= 200
    assert 200 <= before_close <= 250


def _syncs() -> int:
    return len(re.findall(r"\bf(?:data)?sync\(", Path("trace").read_text()))


@pytest.mark.soak
def test_the_node_to_compare_with_commits_each_push_alone() -> None:
    """Goal: what group commit is compared with has none. Method: pushes in a row; their syncs, of each kind of node."""
    rates = {}
    for grouped in (True, False):
        with BenchNode(grouped=grouped) as node:
            started_s = time.perf_counter()
            measure_node(node, partial(push_rate, messages=500, size_bytes=10, window=500), work="push")
            lived_s = time.perf_counter() - started_s
            rates[grouped] = (node.finish() or 0) * lived_s
    assert rates[False] >= 400
    assert rates[True] <= 100


@pytest.mark.soak
def test_a_slow_disk_is_slow_on_both_sides() -> None:
    samples = list(scale.slow_disk(TINY))
    assert [sample.system for sample in samples] == [OURS, UNGROUPED]
    assert all(sample.p50_us is not None and sample.p50_us >= 5_000 for sample in samples)


def test_a_big_log_is_served_like_any_other(tmp_path: Path) -> None:
    for messages in (1_500, 2_500):
        extend_log(tmp_path / "log", messages, 30)
    with BenchNode(tmp_path / "log") as node, blocking.connect(node.address) as client:
        stream = client.create(STREAM)
        assert [message.index for message in stream.pull(1_495, 10)] == list(range(1_495, 1_505))
        assert stream.push(b"next") == 2_500


@pytest.mark.soak
def test_a_backfill_is_measured_alone_and_beside_live_blocks() -> None:
    plan = msgspec.structs.replace(TINY, backfilled=150, live_blocks=2)
    samples = list(backfill.samples(plan))
    assert {(sample.work, sample.messages) for sample in samples if sample.work != backfill.FILLED_MEANWHILE} == {
        *((backfill.FILLED, 150), (backfill.FILLED, 149), (backfill.LIVE, 2), (backfill.LARGE, 6)),
    }
    assert [sample.system for sample in samples if sample.work == backfill.LIVE] == [backfill.ALONE, OURS]
    assert all(sample.server_memory_bytes for sample in samples if sample.work == backfill.LARGE)


@pytest.mark.soak
def test_the_grpc_door_is_measured_beside_the_routed_protocol() -> None:
    samples = list(grpc.samples(msgspec.structs.replace(TINY, messages=2_000, delivered_seconds=0.1)))
    assert [(sample.work, sample.system) for sample in samples] == [
        *((grpc.PUBLISHED, system) for system in (grpc.ROUTED, OURS, grpc.FOLLOWED)),
        *((grpc.PACED, OURS), (grpc.STATUS_ASKED, OURS), (grpc.STATUS_ASKED, grpc.BUSY)),
    ]
    assert all(sample.p99_us for sample in samples if sample.work in (grpc.PACED, grpc.STATUS_ASKED))


@pytest.mark.soak
def test_the_bytes_of_the_grpc_door_are_measured() -> None:
    samples = list(grpc_bytes.samples(TINY))
    ways = (OURS, grpc_bytes.COMPRESSED, grpc_bytes.ENCRYPTED)
    assert [(sample.work, sample.system, sample.size_bytes) for sample in samples] == [
        *((grpc_bytes.RECEIVED, way, size) for way in ways for size in grpc_bytes.RECEIVED_BYTES),
        *((grpc_bytes.SENT, system, 1_000_000) for system in (grpc_bytes.UNREAD, OURS)),
        (grpc_bytes.LARGE, OURS, 1_000_000),
    ]
    assert all((sample.server_memory_bytes or 0) > 50_000_000 for sample in samples if sample.work == grpc_bytes.LARGE)


def test_a_sample_says_what_the_server_spent() -> None:
    sample = measure_alone(partial(push_rate, messages=200, size_bytes=10, window=10), work="push")
    assert sample.server_memory_bytes is not None
    assert sample.server_memory_bytes > 10_000_000
    assert sample.fsyncs_per_second is not None
    assert sample.fsyncs_per_second > 0


@pytest.mark.slow
def test_large_messages_are_pushed_and_pulled_whole() -> None:
    """Goal: each size is pushed and pulled, with the bytes of the plan. Method: the samples of a small run."""
    plan = msgspec.structs.replace(TINY, large_pushed_bytes=(200_000,), large_pulled_bytes=(20_000, 90_000))
    samples = [(each.work, each.size_bytes, each.messages) for each in compared.large(plan, [Own()], [])]
    pushed, pulled = compared.LARGE_PUSHED, compared.LARGE_PULLED
    assert samples == [(pushed, 200_000, 10), (pulled, 20_000, 52), (pulled, 90_000, 11)]
