"""Goal: an export lives with other programs: no row is lost, doubled or brought back, whatever they do to its table.

Method: random interleavings of exports with what deltalake and pyiceberg do: delete, merge, update, optimize,
restore, expire. A model says which rows must be there after each step. Two exporters that race are among the steps.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa

from spark_export.exporter.history import history_of
from spark_export.exporter.node_side import Selection
from spark_export.exporter.run import Exporter
from spark_export.exporter.upkeep import forget
from spark_export.tables.errors import ExportError, PositionsMoved, TableRefused
from spark_export.tables.files import write_ranges
from spark_export.tables.model import Incarnation, IndexRange, TableState, check_next, join
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World, open_iceberg

Rows = dict[tuple[int, int], bytes]
STEPS = 12
PARTS = [range(first, first + 14) for first in range(6, 1_000, 14)]
"""The seeds of the soak, in parts of about a minute. Between two parts, CI looks whether its time is over."""


class Table:
    """What other programs do to the table, and the rows that must then be there.

    now: the rows of the table. then: the rows that earlier versions of the table had.
    """

    def __init__(self, world: World, seeded: random.Random) -> None:
        self.world = world
        self.seeded = seeded
        self.now: Rows = {}
        self.then: dict[int, Rows] = {}
        self.forgotten: set[bytes] = set()
        self.exported: set[tuple[int, int]] = set()

    def export(self) -> None:
        self.world.run(rows_max=self.seeded.choice([7, 1_000]))
        with self.world.client() as client:
            for part in client.get_stream(self.world.stream).partitions:
                for each in part.follow(stop_at_end=True):
                    place = part.partition, each.index
                    if place not in self.exported:
                        self.exported.add(place)
                        if each.key not in self.forgotten:
                            self.now[place] = each.data

    def push(self) -> None:
        self.world.push(self.seeded.randint(1, 9), key=self.seeded.choice([None, b"a", b"b"]))

    def remove(self, wanted: Callable[[tuple[int, int]], bool]) -> None:
        self.now = {place: data for place, data in self.now.items() if not wanted(place)}

    def forget(self) -> None:
        """The key is new each time, so that later messages have it never again."""
        key = f"gone-{self.seeded.random()}".encode()
        self.world.push(2, key=key)
        if self.seeded.random() < 0.5:
            self.export()
        self.forgotten.add(key)
        with self.world.client() as client:
            places = {
                (part.partition, each.index)
                for part in client.get_stream(self.world.stream).partitions
                for each in part.follow(stop_at_end=True)
                if each.key == key
            }
        self.remove(places.__contains__)
        forget(self.world.log(), history_of(self.world.settings.place()), self.world.stream, key, keep_s=86_400)

    def compact(self) -> None:
        self.world.compact(keep_s=self.seeded.choice([86_400.0, 432_000.0]))

    def race(self) -> None:
        """Two exporters plan the same rows, and one is faster. The slower one changes nothing."""
        self.push()
        logs = [self.world.settings.open_log() for _ in range(2)]
        plans, written = [], []
        exporter_ranges = self._new_ranges(logs[0].load())
        for log in logs:
            state = log.load()
            plans.append(self.world.settings.plan_files(log, state))
            written.append(write_ranges(exporter_ranges, self._reader().read, plans[-1]))
        if not exporter_ranges:
            return
        logs[0].append(plans[0], written[0])
        with pytest.raises(PositionsMoved):
            logs[1].append(plans[1], written[1])
        logs[1].abandon(plans[1], written[1].files)
        self.export()

    def _new_ranges(self, state: TableState) -> list[IndexRange]:
        from spark_export.exporter.planning import plan_ranges

        ends = self.world.settings.node_side().list_ends(self.world.settings.selection)
        return plan_ranges(ends, state, accept_lost=False)[0]

    def _reader(self) -> Any:
        return self.world.settings.node_side()

    def check(self, said: list[str]) -> None:
        found = [(row[1], row[2], row[3]) for row in self.world.rows()]
        assert found == sorted((*place, data) for place, data in self.now.items()), said


class DeltaTable(Table):
    def open(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.world.folder / "messages"))

    def check(self, said: list[str]) -> None:
        super().check(said)
        self.then[self.open().version()] = dict(self.now)

    def delete(self) -> None:
        number = self.seeded.randint(2, 4)
        self.open().delete(f'"index" % {number} = 1')
        self.remove(lambda place: place[1] % number == 1)

    def delete_a_partition_of_the_table(self) -> None:
        if self.seeded.random() < 0.3:
            self.open().delete()
            self.now = {}

    def merge(self) -> None:
        gone, partition = self.seeded.randint(0, 20), self.seeded.randint(0, 1)
        source = pa.table({"index": pa.array([gone], pa.int64()), "partition": pa.array([partition], pa.int32())})
        joined = "target.index = source.index AND target.partition = source.partition"
        merger = self.open().merge(source, joined, source_alias="source", target_alias="target")
        merger.when_matched_delete().execute()
        self.remove(lambda place: place == (partition, gone))

    def update(self) -> None:
        index = self.seeded.randint(0, 20)
        self.open().update(updates={"data": "X'00'"}, predicate=f'"index" = {index}')
        self.now = {place: b"\0" if place[1] == index else data for place, data in self.now.items()}

    def optimize(self) -> None:
        self.open().optimize.compact()

    def restore(self) -> None:
        if earlier := [each for each in self.then if each < self.open().version()]:
            version = self.seeded.choice(earlier)
            self.open().restore(version)
            # Rows of an earlier version that were forgotten since come back by this, and `verify` tells it.
            self.now = dict(self.then[version])

    def checkpoint(self) -> None:
        table = self.open()
        table.create_checkpoint()
        table.cleanup_metadata()


class IcebergTable(Table):
    def check(self, said: list[str]) -> None:
        super().check(said)
        table = open_iceberg(self.world.folder)
        if table.current_snapshot() is not None:
            self.then[table.current_snapshot().snapshot_id] = dict(self.now)
        table.catalog.close()

    def delete(self) -> None:
        border = self.seeded.randint(0, 10)
        self._delete(f"index < {border}")
        self.remove(lambda place: place[1] < border)

    def delete_all(self) -> None:
        if self.seeded.random() < 0.3:
            self._delete("true")
            self.now = {}

    def _delete(self, where: str) -> None:
        table = open_iceberg(self.world.folder)
        with warnings.catch_warnings():
            # pyiceberg warns if no row matches.
            warnings.simplefilter("ignore")
            table.delete(where)
        table.catalog.close()

    def roll_back(self) -> None:
        table = open_iceberg(self.world.folder)
        there = {each.snapshot_id for each in table.snapshots()}
        if known := [each for each in self.then if each in there]:
            snapshot = self.seeded.choice(known)
            if _is_ancestor(table, snapshot):
                table.manage_snapshots().rollback_to_snapshot(snapshot).commit()
                self.now = dict(self.then[snapshot])
        table.catalog.close()

    def expire(self) -> None:
        table = open_iceberg(self.world.folder)
        current = table.current_snapshot()
        if old := [each.snapshot_id for each in table.snapshots() if current and each != current][:2]:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        table.catalog.close()


def _is_ancestor(table: Any, snapshot: int) -> bool:
    from pyiceberg.table.snapshots import ancestors_of

    return snapshot in {each.snapshot_id for each in ancestors_of(table.current_snapshot(), table.metadata)}


DELTA_STEPS = ("delete", "delete_a_partition_of_the_table", "merge", "update", "optimize", "restore", "checkpoint")
ICEBERG_STEPS = ("delete", "delete_all", "roll_back", "expire")
OWN_STEPS = ("push", "push", "export", "export", "export", "compact", "forget", "race")


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("seeds", [range(6), *(pytest.param(each, marks=pytest.mark.soak) for each in PARTS)], ids=str)
def test_interleavings_lose_double_and_bring_back_nothing(
    tmp_path: Path, shared_node: NodeProcess, table_format: str, seeds: range
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format])
    for seed in seeds:
        seeded = random.Random(seed)
        world = World(tmp_path / f"lake-{seed}", shared_node, f"others-{table_format}-{seed}", table_format)
        table = DeltaTable(world, seeded) if table_format == "delta" else IcebergTable(world, seeded)
        table.push()
        table.export()
        others = DELTA_STEPS if table_format == "delta" else ICEBERG_STEPS
        said = [f"seed {seed}"]
        for _ in range(STEPS):
            step = seeded.choice(OWN_STEPS if seeded.random() < 0.6 else others)
            said.append(step)
            getattr(table, step)()
            table.check(said)
        verdict = world.verify(contents=False)
        assert all("forgotten" in each for each in verdict.problems), (said, verdict.problems)


def written(world: World, log: Any, begin: int, end: int) -> tuple[Any, Any]:
    of = Incarnation(world.stream, 0, 0, world.settings.node_side().list_ends(world.settings.selection)[0].created_us)
    plan = world.settings.plan_files(log, log.load())
    return plan, write_ranges([IndexRange(of, begin, end)], world.settings.node_side().read, plan)


def test_a_slower_exporter_changes_nothing(each_format: World) -> None:
    """Goal: of two exporters that planned overlapping ranges, the second to commit is refused by name."""
    world = each_format
    world.push(50, partitions=1)
    world.run(selection=Selection((world.stream,)), rows_max=10, seconds_max=0)
    first, second = world.settings.open_log(), world.settings.open_log()
    one, other = written(world, first, 0, 20), written(world, second, 0, 30)
    assert first.append(*one).run == 1
    with pytest.raises(PositionsMoved, match="has them up to 20"):
        second.append(*other)
    second.abandon(other[0], other[1].files)
    assert world.run().rows == 30
    world.assert_whole()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_commit_that_was_planned_before_another_fails(world: World, table_format: str) -> None:
    """Goal: the library itself refuses the second of two commits that move the same position.

    Method: the second exporter has read the table before the first one commits, and commits without reading it again.
    """
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format])
    from spark_export.tables.log import CommitConflict

    world.settings = replace(world.settings, format=table_format)
    world.push(20, partitions=1)
    first, second = world.settings.open_log(), world.settings.open_log()
    one, other = written(world, first, 0, 10), written(world, second, 0, 20)
    state = second.load()
    first.append(*one)
    with pytest.raises(CommitConflict):
        second._commit(other[0], state, other[1], join(other[1].ranges))
    assert world.run().rows == 10
    world.assert_whole()


def test_a_run_is_taken_only_behind_the_positions() -> None:
    """Goal: positions tell a next run from one whose messages the table has, or a part of them. Method: values."""
    of, anew = Incarnation("s", 0, 0, 5), Incarnation("s", 0, 1, 9)
    from spark_export.tables.model import TablePosition

    state = TableState(1, 1, {of: TablePosition(10)})
    check_next(state, [IndexRange(of, 10, 12)])
    check_next(state, [IndexRange(of, 15, 20, lost=5)])
    check_next(state, [IndexRange(of, 12, 12, lost=2)])
    check_next(state, [IndexRange(anew, 0, 3), IndexRange(of._replace(partition=1), 7, 9)])
    for wrong in (
        [IndexRange(of, 0, 10)],
        [IndexRange(of, 5, 8)],
        [IndexRange(of, 11, 12)],
        [IndexRange(of, 5, 12)],
        [IndexRange(of, 0, 10), IndexRange(anew._replace(stream="t", era=0), 0, 1)],
        [IndexRange(anew._replace(era=2), 0, 1)],
        [IndexRange(of._replace(created_us=6), 10, 11)],
    ):
        with pytest.raises(PositionsMoved):
            check_next(state, wrong)


def test_the_users_own_delta_table_is_appended_to(world: World) -> None:
    """Goal: more columns and another partitioning are kept; a table that cannot take messages is refused, unchanged."""
    deltalake = pytest.importorskip("deltalake")
    own = pa.schema(
        [
            pa.field("customer", pa.string()),
            pa.field("stream", pa.string()),
            pa.field("partition", pa.int64()),
            pa.field("index", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", "UTC")),
            pa.field("data", pa.binary()),
        ]
    )
    deltalake.DeltaTable.create(str(world.folder), own, partition_by=["partition"])
    theirs = {"customer": ["c"], "stream": ["x"], "partition": [0], "index": [0], "timestamp": [None], "data": [b"d"]}
    deltalake.write_deltalake(str(world.folder), pa.table(theirs, schema=own), mode="append")
    world.push(10)
    assert world.run().rows == 10
    world.push(4)
    assert world.run().rows == 4
    rows = deltalake.DeltaTable(str(world.folder)).to_pyarrow_table().to_pylist()
    assert [row["data"] for row in rows if row["customer"] == "c"] == [b"d"]
    found = sorted((row["stream"], row["partition"], row["index"], row["data"]) for row in rows if not row["customer"])
    assert found == world.stored()
    wrong = world.folder.with_name("wrong")
    deltalake.DeltaTable.create(str(wrong), own.append(pa.field("must", pa.string(), False)))
    with pytest.raises(TableRefused, match="its column must may not be null"):
        world.run(folder=wrong)
    elsewhere = world.folder.with_name("elsewhere")
    deltalake.DeltaTable.create(str(elsewhere), own, partition_by=["customer"])
    with pytest.raises(TableRefused, match="is partitioned by customer"):
        world.run(folder=elsewhere)
    forgetful = world.folder.with_name("forgetful")
    deltalake.DeltaTable.create(
        str(forgetful), own, configuration={"delta.setTransactionRetentionDuration": "interval 1 days"}
    )
    with pytest.raises(TableRefused, match="would forget what was exported"):
        world.run(folder=forgetful)


def test_the_users_own_iceberg_table_is_appended_to(world: World, tmp_path: Path) -> None:
    """Goal: a table in a catalog of the user's, partitioned by hours, with a column more."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    from pyiceberg.transforms import HourTransform, TruncateTransform

    from spark_export.tables.columns import ROWS
    from spark_export.tables.log import CatalogChoice

    options = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'own.sqlite'}",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    catalog = catalogs.load_catalog("mine", **options)
    catalog.create_namespace("lake")
    for name, transform in (("orders", HourTransform()), ("short", TruncateTransform(4))):
        table = catalog.create_table(f"lake.{name}", ROWS.append(pa.field("customer", pa.string())))
        with table.update_spec() as spec:
            spec.add_field("timestamp" if name == "orders" else "stream", transform)
    world.push(10)
    choice = CatalogChoice("mine", options, "lake.orders")
    assert world.run(format="iceberg", catalog=choice).rows == 10
    world.push(3)
    assert world.run().rows == 3, "later commands find the catalog"
    found = catalog.load_table("lake.orders").scan(selected_fields=("stream", "partition", "index", "data")).to_arrow()
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == world.stored()
    with pytest.raises(TableRefused, match=r"partitioned by truncate\[4\]\(stream\)"):
        world.run(folder=tmp_path / "short", format="iceberg", catalog=replace(choice, table="lake.short"))
    with pytest.raises(ExportError, match="PYICEBERG_CATALOG__MINE__TOKEN"):
        world.run(folder=tmp_path / "x", catalog=replace(choice, options={"token": "secret"}))
    catalog.close()


def test_an_exporter_races_another_in_threads(each_format: World) -> None:
    """Goal: two whole exports at the same time give each row once. Method: both in steps of a few rows."""
    world = each_format
    world.push(200)
    import threading

    failed: list[BaseException] = []

    def run() -> None:
        try:
            with Exporter(replace(world.settings, rows_max=20)) as exporter:
                exporter.run()
        except (PositionsMoved, ExportError) as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(failed) < 2, failed
    world.run()
    world.assert_whole()
