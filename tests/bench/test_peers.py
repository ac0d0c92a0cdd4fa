"""What the bench compares: the peers and our own clients do the same work, and each stands where its promise is."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from bench import compared
from bench.errors import PeerFailed
from bench.own import Own
from bench.peer_clients.load import Clock, Load, Pace
from bench.peers import KINDS, Kind, Work, running_peers
from bench.peers.servers import PeerServer, family_cpu_seconds
from bench.plan import QUICK
from bench.report import Report, Sample
from bench.tables import work_tables
from bench.works import share
from stream_client import blocking

TINY = msgspec.structs.replace(QUICK, messages=300, single=20, windows=(1, 100), slow_seconds=0.2)
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench puts its data under the working directory, and leaves nothing there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_a_peer_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent: list[str] = []
    with ExitStack() as stack:
        assert running_peers(["redis 7 of Debian"], tmp_path, absent, stack) == []
    assert absent == ["redis 7 of Debian: there is no redis-server"]


def test_a_peer_that_does_not_start_is_told() -> None:
    false = shutil.which("false")
    assert false is not None
    kind = next(kind for kind in KINDS if kind.server == "redis-server")
    with pytest.raises(PeerFailed, match="does not listen"), PeerServer(kind, Path(false)):
        pass
    assert list(Path().iterdir()) == []


def test_child_processes_that_end_meanwhile_are_counted() -> None:
    """Goal: the end of a server's child does not end the bench, and its time is not lost. Method: a shell starts one
    program after the other, while its time is read again and again; it never falls."""
    with subprocess.Popen(["sh", "-c", "while :; do /bin/true & wait; done"]) as shell:
        try:
            read = [family_cpu_seconds(shell.pid) for _ in range(2_000)]
        finally:
            shell.kill()
    assert read == sorted(read)
    assert read[-1] > 0


def test_every_peer_stands_in_the_table_of_its_promise() -> None:
    """Goal: a server that answers before the sync is never in one table with those that sync. Method: one sample of
    each peer; the rows of the tables against the promises in words."""
    samples = [
        Sample(work="push", system=kind.name, durability=kind.durability, synced=kind.synced, messages=1, seconds=1.0)
        for kind in KINDS
    ]
    tables = list(work_tables(Report(started="", machine="", sqlite="", quick=True, samples=samples)))
    synced, others = ({row[0] for row in table.rows} for table in tables)
    assert synced == {kind.name for kind in KINDS if "fsync before every answer" in kind.durability}
    assert others == {kind.name for kind in KINDS if "not synced" in kind.durability}
    assert "before the sync" in tables[1].title


@pytest.mark.soak
@pytest.mark.network
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_peer_does_the_same_work(tmp_path: Path, kind: Kind) -> None:
    """Goal: every peer stores, reads and delivers what it is told to. Method: each of its works, with few messages; a
    client ends with an error if its server refuses anything."""
    absent: list[str] = []
    plan = msgspec.structs.replace(TINY, windows=(1, 100), delivered_seconds=0.1, load_percents=(50,))
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        peers = running_peers([kind.name], tmp_path, absent, stack)
        if not peers:
            pytest.skip(absent[0])
        # All messages are wanted, however slow the disk is. The loads go on for all of their time.
        patient = msgspec.structs.replace(plan, seconds=PATIENCE_S)
        parts = (compared.pushes, compared.latencies, compared.pulls, compared.deliveries)
        samples = [sample for part in parts for sample in part(patient, [], peers)]
        samples += compared.loads(plan, [], peers)
    counts = {(sample.work, sample.window): sample.messages for sample in samples}
    wanted = {
        ("push", 100): 300,
        ("latency", 1): 300,
        ("pull", 1_000): 300,
        (compared.DELIVERED, 0): 100,
    }
    works = {"latency": Work.LATENCY, "pull": Work.PULL, compared.DELIVERED: Work.DELIVER, "push": Work.PUSH}
    for (work, window), messages in wanted.items():
        if works[work] in kind.works and (work != "push" or window >= kind.window_min):
            assert counts.pop((work, window)) == messages
    assert [work for work, _ in counts] == ([compared.LOADED] if Work.AT_RATE in kind.works else [])


@pytest.mark.slow
def test_our_own_clients_do_the_work_that_they_are_told() -> None:
    """Goal: what is compared with the peers is this work. Method: each work, and what a plain client then reads."""
    own = Own()
    load = {"messages": 130, "size_bytes": 30}
    with own.node() as node:
        pushed = own.measure(node, "push", work="push", round_=0, stream="a", window=100, **load)
        own.measure(node, "latency", work="latency", round_=0, stream="b", **load)
        own.measure(node, "latency_blocking", work="latency", round_=0, stream="b", **load)
        rated = own.measure(node, "at_rate", work="at rate", round_=0, stream="c", rate=1_000.0, timed_every=10, **load)
        pulled = own.measure(node, "pull", work="pull", round_=0, stream="a", window=50, **load)
        delivered = own.measure(node, "deliver", work="deliver", round_=0, stream="d", rate=2_000.0, **load)
        with blocking.connect(node.address) as client:
            ends = {name: client.create(name).info().next_index for name in "abcd"}
    assert ends == {"a": 130, "b": 260, "c": 130, "d": 130}
    for sample in (pushed, rated, pulled, delivered):
        assert sample.messages == 130
        assert sample.p50_us is not None
        assert sample.p50_us > 0
    assert rated.seconds >= 0.129, "130 pushes at a thousand a second are due over 129 ms"


@pytest.mark.soak
def test_members_that_share_a_stream_take_all_of_it() -> None:
    (sample,) = share.samples(msgspec.structs.replace(TINY, rounds=1, shared_messages=400), [Own()])
    assert (sample.messages, sample.clients) == (400, 2)


def test_a_push_that_waited_for_its_turn_counts_from_when_it_was_due() -> None:
    """Goal: a client that is held up does not hide it. Method: a pace that nobody looks at for 50 ms; the time of its
    first push, and a second pace that is asked at once."""
    load = Load(stream="", messages=10, size_bytes=1, rate=1_000.0)
    pace, clock = Pace(load), Clock(load)
    time.sleep(0.05)
    numbers = pace.due()
    assert list(numbers) == list(range(10))
    clock.add(pace.due_ns(numbers[0]))
    assert clock.times_us[0] >= 50_000
    assert pace.is_over
    assert list(Pace(load).due()) == [0]
