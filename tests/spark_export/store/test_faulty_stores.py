"""Goal: a run or upkeep of a table with a log is right also on a store that is overloaded, slow, and loses answers.

Method: runs, compactions, repairs and verifications of Delta and Iceberg tables through a proxy before a real S3 server
that answers every third request wrongly or late; also a store that answers nothing but 503, and is asked again later.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.tables.table_readers import LIBRARIES
from tests.spark_export.store.log_world import LogWorld
from tests.support.s3_server import Fault, FaultProxy, Request, S3Server, fault_proxy

TRIES = 8
FAULTS = [Fault(503), None, None, Fault(0), None, None, Fault(503, "InternalError"), None]


@pytest.fixture(params=[pytest.param("delta", marks=pytest.mark.soak), pytest.param("iceberg", marks=pytest.mark.soak)])
def world(
    s3_server: S3Server,
    shared_node: NodeProcess,
    s3_environment: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> LogWorld:
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    name = str(request.node.name)
    bucket = s3_server.make_bucket(re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-"))
    return LogWorld(s3_server, bucket, shared_node, name, request.param, tmp_path)


def fail_now_and_then(proxy: FaultProxy) -> None:
    pause = threading.Event()

    def choose(request: Request) -> Fault | None:
        pause.wait(0.01)
        return FAULTS[len(proxy.seen) % len(FAULTS)]

    proxy.choose = choose


def damage(world: LogWorld) -> None:
    """Flips a byte of the table's first file."""
    name = min(world.data_files())
    found = world.reader.read_tagged(name)
    world.reader.swap(name, found.data[:100] + bytes([found.data[100] ^ 1]) + found.data[101:], found.tag)


def test_upkeep_on_a_store_that_fails_in_every_way_for_a_while(world: LogWorld) -> None:
    for _ in range(3):
        world.push(40)
        world.run()
    damage(world)
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        fail_now_and_then(proxy)
        code, out, err = world.command("verify", "--json")
        assert code == 1, err
        (problem, *_) = json.loads(out)["problems"]
        assert "SHA-256" in problem
        code, out, err = world.command("repair", "--json", "--node", world.node.address)
        assert code == 0, err
        assert json.loads(out)["rows"] == 40
        code, out, err = world.command("compact", "--json", "--keep", "0s")
        assert code == 0, err
        assert json.loads(out)["files_after"] == 1
        code, out, err = world.command("verify")
        assert code == 0, out + err
    world.assert_whole()


def test_runs_on_a_store_that_is_overloaded_and_slow(world: LogWorld) -> None:
    """Goal: a command on such a store works or says why in a line, and no row is lost or comes twice. Later tries help.

    Method: every third request is answered by 503, and every ninth put is served half a second after its sender has
    given it up: what the store then has is only seen later.
    """
    late = threading.Event()
    puts = [0, 0]

    def choose(request: Request) -> Fault | None:
        if len(proxy.seen) % 3 == 0:
            return Fault(503)
        puts[0] += request.method == "PUT"
        if request.method == "PUT" and puts[0] % 9 == 0:
            puts[1] += 1
            late.wait(1.5)
        return None

    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        world.options["timeout_s"] = "1"
        proxy.choose = choose
        for verb in ("run", "run", "compact"):
            if verb == "run":
                world.push(40)
            for _ in range(TRIES):
                code, _, err = world.command(verb)
                rows = world.rows()
                assert len(rows) == len(set(rows)), err
                assert set(rows) <= set(world.stored()), err
                if code == 0:
                    break
                assert code == 1, err
                assert err.splitlines()[-1].startswith("stream-node: "), err
            assert code == 0, err
            assert rows == world.stored()
        assert puts[1] >= 1
        # A put that was given up may still be on its way.
        late.wait(2)
    world.through(world.server.endpoint)
    assert len(world.rows()) == 80
    world.push(5)
    world.run()
    world.compact()
    world.assert_whole()


def test_a_compaction_that_a_store_stops_goes_on_later(world: LogWorld) -> None:
    """Method: from a moment that differs from try to try, the store answers nothing but 503."""
    for _ in range(3):
        world.push(40)
        world.run()
    endpoint = world.server.endpoint
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        world.options["tries"] = "1"
        for served in (12, 24, 36):
            proxy.seen.clear()
            proxy.choose = lambda request, served=served: Fault(503) if len(proxy.seen) > served else None  # type: ignore[misc]
            code, _, err = world.command("compact")
            assert code in (0, 1)
            assert len(err.splitlines()) <= 3, err
            assert world.rows() == world.stored()
        proxy.choose = lambda request: None
    world.through(endpoint)
    world.push(5)
    world.run()
    world.compact()
    world.assert_whole()


@pytest.mark.parametrize("world", ["iceberg"], indirect=True)
def test_the_metadata_of_iceberg_is_tried_as_often_as_the_rest(world: LogWorld) -> None:
    """Goal: the store option `tries` counts for the requests of pyiceberg, too.

    Method: the store answers 503 to the first four requests for a metadata file; pyarrow alone tries three times.
    """
    world.push(40)
    world.run()
    world.push(40)
    asked: Counter[str] = Counter()

    def choose(request: Request) -> Fault | None:
        if "/metadata/" not in request.path or request.method not in ("GET", "HEAD"):
            return None
        asked[request.path] += 1
        return Fault(503) if len(asked) == 1 and asked[request.path] <= 4 else None

    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        proxy.choose = choose
        assert world.run().rows == 40
    assert asked
    world.assert_whole()
