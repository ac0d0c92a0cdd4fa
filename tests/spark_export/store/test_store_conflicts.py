"""Goal: of two exporters that work on one table, one publishes, and the other stops with a line that says why.

Method: exporters in child processes and in this one, held in the middle by a proxy before the server, and let go after
another exporter has worked; several at once; a store that is overloaded, slow, that denies, and that loses answers.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.errors import ExportError, TakenOver
from spark_export.exporter.runs.run import Exporter
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import Fault, Request, fault_proxy

PATIENCE_S = 60
TAKEN_OVER = "another exporter"


@pytest.mark.parametrize("where", ["_manifests/", "_export/ledger.sqlite", "/data/"])
def test_an_exporter_that_was_paused_wakes_after_another_has_worked(world: StoreWorld, where: str) -> None:
    """Method: the put of a manifest, of the third state of the ledger, or of a data file waits in the proxy."""
    world.push(100)
    world.run()
    world.push(100)
    with fault_proxy(world.server) as proxy:
        go_on, reached = threading.Event(), threading.Event()
        count = [3 if "ledger" in where else 1]

        def hold(request: Request) -> Fault | None:
            if request.method == "PUT" and where in request.path and not reached.is_set():
                count[0] -= 1
                if not count[0]:
                    reached.set()
                    return Fault(wait=go_on)
            return None

        proxy.choose = hold
        endpoint = world.server.endpoint
        world.through(proxy.endpoint)
        child = subprocess.Popen(
            world.arguments("run"),
            env=world.environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        world.through(endpoint)
        try:
            assert reached.wait(PATIENCE_S)
            other = world.run()
            world.assert_whole()
            go_on.set()
            _, err = child.communicate(timeout=PATIENCE_S)
        finally:
            go_on.set()
            child.kill()
    assert child.returncode == 1
    assert TAKEN_OVER in err.splitlines()[-1]
    assert other.recovered or other.rows
    world.assert_whole()
    world.push(10)
    world.run()
    world.assert_whole()


def test_many_exporters_at_once(world: StoreWorld) -> None:
    world.push(2_000)
    children = [
        subprocess.Popen(
            world.arguments("run"), env=world.environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    ended = [(child.communicate(timeout=PATIENCE_S * 2)[1], child.returncode) for child in children]
    for err, code in ended:
        assert code == 0 or TAKEN_OVER in err.splitlines()[-1], err
    assert set(world.rows()) <= set(world.stored())
    world.run()
    world.assert_whole()


def test_a_daemon_ends_when_another_takes_the_table(world: StoreWorld) -> None:
    """Two daemons that took the table from each other for ever would publish nothing."""
    world.push(10)

    async def main(exporter: Exporter) -> None:
        await exporter.run()
        world.push(10)
        assert (await asyncio.to_thread(world.run)).rows == 10
        world.push(10)
        for _ in range(2):
            with pytest.raises(TakenOver, match="this one publishes nothing more"):
                await exporter.run()

    world.with_exporter(main)
    world.run()
    world.assert_whole()


def test_a_store_that_fails_in_every_way_for_a_while(world: StoreWorld) -> None:
    """503, connections that end before or after the work, and slow answers: every third request has one of them."""
    world.push(300)
    pause = threading.Event()
    faults: list[Fault | None] = [Fault(503), None, None, Fault(0), None, None, Fault(503, "InternalError"), None]
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)

        def choose(request: Request) -> Fault | None:
            pause.wait(0.01)
            return faults[len(proxy.seen) % len(faults)]

        proxy.choose = choose
        assert world.run().rows == 300
        world.push(200)
        assert world.run().rows == 200
        proxy.choose = lambda request: None
    world.assert_whole()


@pytest.mark.parametrize(
    ("status", "code", "said"), [(503, "SlowDown", "SLOW_DOWN"), (403, "AccessDenied", "ACCESS_DENIED")]
)
def test_a_store_that_takes_no_data_abandons_the_run(world: StoreWorld, status: int, code: str, said: str) -> None:
    """Goal: one line that names the object; nothing is published, and the next run exports everything."""
    world.push(100)
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        world.options["tries"] = "2"
        proxy.choose = lambda request: (
            Fault(status, code) if request.method == "PUT" and "/data/" in request.path else None
        )
        with pytest.raises(ExportError, match=rf"^{world.place}/data/run=.* cannot be written: .*{said}"):
            world.run()
        assert world.rows() == []
        exit_code, out, err = world.command("run", "--log-level", "error")
        assert (exit_code, out) == (1, "")
        assert said in err
        assert len(err.splitlines()) == 1
        proxy.choose = lambda request: None
        assert world.run().rows == 100
    world.assert_whole()


def test_a_ledger_that_cannot_be_kept(world: StoreWorld) -> None:
    """A run is planned only if the store has the plan; a published run whose state is not kept is found again."""
    world.push(100)
    world.run()
    world.push(100)
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        world.options["tries"] = "1"
        published = threading.Event()

        def deny_after_publication(request: Request) -> Fault | None:
            if request.method == "PUT" and "_manifests/" in request.path:
                published.set()
            is_ledger = request.method == "PUT" and "ledger.sqlite" in request.path
            return Fault(503) if published.is_set() and is_ledger else None

        proxy.choose = deny_after_publication

        async def main(exporter: Exporter) -> Any:
            with pytest.raises(ExportError, match=r"the ledger cannot be kept: .* overloaded"):
                await exporter.run()
            assert len(world.rows()) == 200
            proxy.choose = lambda request: None
            return await exporter.run()

        outcome = world.with_exporter(main)
    assert len(outcome.recovered) == 1
    world.assert_whole()
