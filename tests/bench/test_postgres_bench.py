"""The bench of nodes on PostgreSQL: it measures the nodes that it names, and leaves nothing."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from bench.goals import goals
from bench.own import Own
from bench.plan import QUICK
from bench.report import OURS, Report, Sample
from bench.works import postgres
from stream_client import blocking

TINY = msgspec.structs.replace(QUICK, messages=300, single=20, windows=(1, 1_000))
SYSTEMS = [OURS, postgres.ALONE, postgres.WITH_STANDBY]


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user of the database server may not come to the folders of pytest."""
    if (reason := postgres.why_impossible()) is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        yield


def test_each_kind_of_node_does_the_same_work() -> None:
    absent: list[str] = []
    samples = list(postgres.samples(TINY, Own(), absent))
    assert absent == []
    done = [(sample.work, sample.window, sample.system, sample.messages) for sample in samples]
    assert done == [
        *((postgres.PUSHED, 1, system, 20) for system in SYSTEMS),
        *((postgres.PUSHED, 1_000, system, 300) for system in SYSTEMS),
        *((postgres.PULLED, 1_000, system, 300) for system in SYSTEMS),
    ]
    assert len({sample.durability for sample in samples}) == 3
    assert list(Path().iterdir()) == []


def test_a_node_keeps_its_streams_where_it_says_and_on_the_standby() -> None:
    """Goal: no figure is that of another database. Method: psql counts what a client has pushed, on each server."""
    with postgres.running_kinds() as kinds:
        for kind in kinds:
            with kind.node(Own()) as (named, node):
                with blocking.connect(node.address) as client:
                    client.create("s").push(b"a")
                database = named.environment.get("STREAM_NODE_DATABASE", "").rpartition("/")[2]
                # A standby shows a commit a moment after it has synced it.
                deadline_s = time.monotonic() + 30.0
                while not all(server.ask("SELECT count(*) FROM messages", database) == "1" for server in kind.servers):
                    assert time.monotonic() < deadline_s, "a server does not have the message"
        alone, pair = kinds[1].servers, kinds[2].servers
        assert [server.ask("SHOW synchronous_standby_names") for server in (*alone, *pair)] == ["", "ANY 1 (*)", ""]
        assert pair[0].ask("SELECT sync_state FROM pg_stat_replication") == "quorum"
        assert {server.ask("SHOW fsync") for server in (*alone, *pair)} == {"on"}


def test_goals_compare_with_sqlite_in_the_same_round() -> None:
    report = Report(started="", machine="", sqlite="", quick=False)
    for round_, factor in enumerate((2.0, 4.0, 8.0)):
        for system, times in ((OURS, 1.0), (postgres.ALONE, factor), (postgres.WITH_STANDBY, 2 * factor)):
            seconds = times * 2**round_
            for work, window in ((postgres.PUSHED, 1), (postgres.PUSHED, 1_000), (postgres.PULLED, 1_000)):
                sample = Sample(
                    work=work, system=system, round=round_, window=window, messages=10, seconds=seconds, p50_us=seconds
                )
                report.samples.append(sample)
    found = {goal.what: (goal.measured, goal.spread) for goal in goals(report) if "on SQLite" in goal.what}
    alone, both = postgres.ALONE, postgres.WITH_STANDBY
    assert found == {
        f"{alone}: pushes, window 1,000, to those on SQLite": (1 / 4, (1 / 8, 1 / 2)),
        f"{alone}: p50 of a single push, to that on SQLite": (4.0, (2.0, 8.0)),
        f"{alone}: pulled messages, to those on SQLite": (1 / 4, (1 / 8, 1 / 2)),
        f"{both}: pushes, window 1,000, to those on SQLite": (1 / 8, (1 / 16, 1 / 4)),
        f"{both}: p50 of a single push, to that on SQLite": (8.0, (4.0, 16.0)),
        f"{both}: pulled messages, to those on SQLite": (1 / 8, (1 / 16, 1 / 4)),
    }


def test_a_machine_without_postgresql_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_programs", lambda: None)
    absent: list[str] = []
    assert list(postgres.samples(TINY, Own(), absent)) == []
    assert absent == ["nodes on PostgreSQL: PostgreSQL is not installed"]
