"""The bench of a cluster: what it calls forwarded goes through a node that owns nothing, and it leaves nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from bench.goals import goals
from bench.own import Own
from bench.plan import QUICK
from bench.report import Report, Sample
from bench.works import cluster, postgres
from stream_client import blocking
from stream_node.fleet.cluster.protocol import CLUSTER, STATUS, ClusterStatusRequest

TINY = msgspec.structs.replace(QUICK, messages=300, single=20, windows=(1, 1_000), rounds=1)


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


def test_both_nodes_do_the_same_work() -> None:
    absent: list[str] = []
    samples = list(cluster.samples(TINY, Own(), absent))
    assert absent == []
    done = [(sample.work, sample.window, sample.system, sample.messages) for sample in samples]
    systems = [cluster.FORWARDED, cluster.DIRECT]
    assert done == [
        *((cluster.PUSHED, 1, system, 20) for system in systems),
        *((cluster.PUSHED, 1_000, system, 300) for system in systems),
        *((cluster.PULLED, 1_000, system, 300) for system in systems),
    ]
    assert list(Path().iterdir()) == []


def test_the_asked_node_owns_nothing() -> None:
    with cluster.running_pair(Own()) as pair:
        for system, name in ((cluster.FORWARDED, cluster.ASKED), (cluster.DIRECT, cluster.OWNER)):
            with blocking.connect(pair[system].address) as client:
                status = client.session.ask((CLUSTER,), STATUS, ClusterStatusRequest(0))
            assert status.name == name
            assert {shard.owner for shard in status.shards} == {cluster.OWNER}


def test_goals_compare_in_the_same_round() -> None:
    report = Report(started="", machine="", sqlite="", quick=False)
    for round_, factor in enumerate((2.0, 4.0, 8.0)):
        for system, times in ((cluster.DIRECT, 1.0), (cluster.FORWARDED, factor)):
            seconds = times * 2**round_
            for work, window in ((cluster.PUSHED, 1), (cluster.PUSHED, 1_000), (cluster.PULLED, 1_000)):
                sample = Sample(
                    work=work, system=system, round=round_, window=window, messages=10, seconds=seconds, p50_us=seconds
                )
                report.samples.append(sample)
    found = {goal.what: (goal.measured, goal.spread) for goal in goals(report) if "owns nothing" in goal.what}
    assert found == {
        "p50 of a single push through a node that owns nothing, to the owner": (4.0, (2.0, 8.0)),
        "pushes, window 1,000 through a node that owns nothing, to the owner": (1 / 4, (1 / 8, 1 / 2)),
        "pulled messages through a node that owns nothing, to the owner": (1 / 4, (1 / 8, 1 / 2)),
    }
