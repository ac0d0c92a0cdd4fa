"""Goal: an exporter that was paused, while another one took its table over, neither publishes nor deletes anything.

Method: an exporter in a child process works through a proxy before a real S3 server, which holds a request; another
exporter works to its end meanwhile; then the request goes on. Tables of each format are compared with the node.
"""

from __future__ import annotations

import asyncio
import copy
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.errors import ExportError, TakenOver
from spark_export.exporter.runs.job import open_compactor
from spark_export.exporter.runs.run import Exporter
from spark_export.exporter.tables.manifest import FENCE
from spark_export.exporter.tables.manifest_log import ManifestLog
from spark_export.store.open import open_store
from stream_node.node.process import NodeProcess
from tests.spark_export.store.log_world import runs, tables, world_of
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import Fault, Request, S3Server, fault_proxy

PATIENCE_S = 60


@pytest.fixture
def world(
    s3_server: S3Server,
    shared_node: NodeProcess,
    s3_environment: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> StoreWorld:
    return world_of(request.param, s3_server, shared_node, str(request.node.name), tmp_path)


class Hold:
    """Holds the request with this number, from 1, of those that `chooses` is true for."""

    def __init__(self, chooses: Callable[[Request], bool], number: int = 1) -> None:
        self._chooses = chooses
        self._left = number
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Fault | None:
        if self._left and self._chooses(request):
            self._left -= 1
            if not self._left:
                self.reached.set()
                return Fault(wait=self.go_on)
        return None


class After:
    """True for the requests after this number of puts of the ledger, if `chooses` is true for them."""

    def __init__(self, puts: int, chooses: Callable[[Request], bool] = lambda request: True) -> None:
        self._puts = puts
        self._chooses = chooses

    def __call__(self, request: Request) -> bool:
        if is_ledger_put(request):
            self._puts -= 1
            return False
        return self._puts <= 0 and self._chooses(request)


def is_ledger_put(request: Request) -> bool:
    return request.method == "PUT" and "ledger.sqlite" in request.path


def is_data_list(request: Request) -> bool:
    path = unquote(request.path)
    return request.method == "GET" and re.search(r"prefix=a/lake/(data|messages)(/data)?/?(&|$)", path) is not None


def is_log(request: Request) -> bool:
    return re.search("_delta_log|metadata|_manifests.*PUT", f"{request.path} {request.method}") is not None


@contextmanager
def paused(
    world: StoreWorld, chooses: Callable[[Request], bool], verb: str, *more: str, number: int = 1
) -> Iterator[None]:
    """Runs a command in a child process up to the chosen request, and to its end after the `with` block.

    The command must end with the line that another exporter has taken over the table. It is a process of its own
    because deltalake keeps Python's lock (GIL) while it waits for an answer.
    """
    with fault_proxy(world.server) as proxy:
        hold = Hold(chooses, number)
        proxy.choose = hold
        held = copy.copy(world)
        held.through(proxy.endpoint)
        child = subprocess.Popen(
            held.arguments(verb, *more),
            env=world.environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert hold.reached.wait(PATIENCE_S), [unquote(each.path) for each in proxy.seen]
            yield
            hold.go_on.set()
            _, err = child.communicate(timeout=PATIENCE_S)
        finally:
            hold.go_on.set()
            child.kill()
            child.wait()
    assert child.returncode == 1, err
    assert "another exporter" in err.splitlines()[-1]


@tables("parquet", "delta", "iceberg", usual="parquet")
def test_a_cleanup_at_a_start_keeps_what_another_exporter_published(world: StoreWorld) -> None:
    """Method: the listing in which an exporter looks for files of abandoned runs is held."""
    runs(world, 1)
    world.push(50)
    with paused(world, is_data_list, "run"):
        world.run()
    world.assert_whole()


@tables("parquet", "delta", "iceberg", usual="")
def test_a_cleanup_after_a_publication_keeps_what_another_exporter_merged(world: StoreWorld) -> None:
    """Method: the listing in which an exporter looks for files of repeated tasks of its own run is held."""
    runs(world, 2)
    world.push(50)

    def is_list_after_publication(request: Request) -> bool:
        path = unquote(request.path)
        return request.method == "GET" and re.search(r"prefix=a/lake/.*run[-=]000003", path) is not None

    with paused(world, is_list_after_publication, "run", number=2):
        world.run()
        assert world.compact().files_after == 1
        world.compact(keep_s=0.0)
    world.assert_whole()


@tables("delta", "iceberg", usual="delta")
def test_a_removal_of_old_files_keeps_what_another_exporter_published(world: StoreWorld) -> None:
    """Method: a compaction that keeps nothing for readers is held in the listing of old files."""
    runs(world, 2)
    with paused(world, is_data_list, "compact", "--keep", "0s"):
        runs(world, 2)
    world.assert_whole()


@pytest.mark.parametrize("where", [pytest.param("ledger", marks=pytest.mark.soak), "log"])
@tables("parquet", "delta", "iceberg", usual="delta")
def test_an_old_rewrite_is_not_published_again(world: StoreWorld, where: str) -> None:
    """Method: a compaction is held when its files are written: before it looks at the ledger, or later, before its
    commit. The other exporter publishes it, and compacts again."""
    runs(world, 2)
    chooses = After(3, is_log) if where == "log" else After(3)
    with paused(world, chooses, "compact"):
        runs(world, 1)
        assert world.compact().generation == 3
    world.assert_whole()


@tables("parquet", "delta", "iceberg", usual="delta")
def test_a_rewrite_that_another_exporter_dropped_is_not_published(world: StoreWorld) -> None:
    """Method: a compaction is held when the ledger is about to say that its files are written."""
    runs(world, 2)
    with paused(world, is_ledger_put, "compact", number=3):
        runs(world, 1)
        assert world.compact().generation == 3, "the number of the dropped compaction is not used again"
    world.assert_whole()


@tables("parquet", "delta", "iceberg", usual="delta iceberg")
def test_a_dropped_rewrite_has_a_fence(world: StoreWorld) -> None:
    """Goal: also an exporter that knows nothing of the ledger's new owner cannot commit a dropped rewrite."""
    runs(world, 2)

    async def main(exporter: Exporter) -> None:
        table, ledger = exporter._table, exporter._ledger
        files = await ledger.load_files(1)
        other = copy.copy(table)
        if hasattr(table, "_log"):
            other._log = copy.copy(table._log)  # type: ignore[attr-defined]
        other.drop_rewrite(2)
        with pytest.raises(TakenOver):
            table.rewrite(2, files, files[:1], 0.0)

    world.with_exporter(main)
    world.assert_whole()


@tables("parquet", usual="parquet")
def test_a_compaction_whose_manifest_has_no_answer_is_taken_for_its_own(world: StoreWorld) -> None:
    """Method: the connection ends after the server has the manifest, and the store then refuses to show it."""
    runs(world, 2)
    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        world.options["tries"] = "2"
        proxy.choose = LostAnswers()

        async def main() -> None:
            async with open_compactor(world.settings.address()) as compactor:
                with pytest.raises(ExportError, match="cannot be"):
                    await compactor.run()
                proxy.choose = lambda request: None
                await compactor.run()

        asyncio.run(main())
    world.through(world.server.endpoint)
    assert len(world.files()) == 1
    world.assert_whole()
    assert world.compact(keep_s=0.0).expired == 2
    assert world.compact(keep_s=0.0).expired == 0, "a file that was removed is not counted again"


@tables("parquet", "delta", "iceberg", usual="parquet")
def test_a_compaction_that_the_ledger_does_not_have_is_not_published(world: StoreWorld) -> None:
    """Goal: the table is never ahead of the stored ledger: another machine could neither finish nor drop the rewrite.

    Method: the store takes the ledger twice more, and then answers 503 to each put of it.
    """
    runs(world, 2)
    puts = [0]

    def deny(request: Request) -> Fault | None:
        puts[0] += is_ledger_put(request)
        return Fault(503) if is_ledger_put(request) and puts[0] > 2 else None

    with fault_proxy(world.server) as proxy:
        world.through(proxy.endpoint)
        world.options["tries"] = "1"
        proxy.choose = deny
        code, _, err = world.command("compact")
    assert code == 1
    assert "the ledger cannot be kept" in err
    world.through(world.server.endpoint)
    world.assert_whole()
    runs(world, 1)
    assert world.compact().files_after == 1
    world.assert_whole()


class LostAnswers:
    """The server does what each put of a manifest asks for, and nobody learns of it, neither by a later read."""

    def __init__(self) -> None:
        self._has_lost = False

    def __call__(self, request: Request) -> Fault | None:
        if "_manifests/" not in request.path:
            return None
        self._has_lost |= request.method == "PUT"
        return Fault(status=0 if request.method == "PUT" else 503) if self._has_lost else None


def test_a_fence_that_has_no_answer_is_taken_for_its_own(s3_server: S3Server, s3_environment: None) -> None:
    place = f"s3://{s3_server.make_bucket('a-fence-without-answer')}/lake"
    with fault_proxy(s3_server) as proxy:
        log = ManifestLog(open_store(place, {"endpoint": proxy.endpoint, "tries": "2"}), now_us=lambda: 0)
        other = ManifestLog(open_store(place, {"endpoint": s3_server.endpoint}), now_us=lambda: 0)
        for last in (1, 3, 5):
            proxy.choose = LostAnswers()
            with pytest.raises(ExportError, match="cannot be"):
                log.append("table", FENCE)
            proxy.choose = lambda request: None
            assert other.load().number == last
            if last < 5:
                assert log.append("table", FENCE).number == last + 1
        other.append("table", FENCE)
        for _ in range(2):
            with pytest.raises(TakenOver, match="manifest 6"):
                log.append("table", FENCE)


@tables("delta", usual="delta")
def test_a_checkpoint_is_written_when_enough_has_changed(world: StoreWorld) -> None:
    """Method: the number of changes since the last checkpoint is no multiple of that after which one is due."""
    from spark_export.exporter.tables.delta_table import CHECKPOINT_COMMITS

    runs(world, 1)

    async def main(exporter: Exporter) -> None:
        for _ in range(CHECKPOINT_COMMITS + 1):
            exporter._table.discard(1_000, await exporter._ledger.load_run_files(1))

    world.with_exporter(main)
    world.compact()
    assert any("checkpoint" in name for name in world.objects("messages/_delta_log"))
    world.assert_whole()
