"""Goal: an Iceberg table can be in a catalog that the user names, and a lost answer of it doubles and loses nothing.

Method: a server of Iceberg's REST protocol, and pyiceberg as another program reads the catalog; rows are compared with
a pull from the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")
pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")

from pyiceberg.catalog import load_catalog

from spark_export.tables.address import parse_place
from spark_export.tables.errors import ExportError
from spark_export.tables.iceberg import CATALOG_WAIT_S, IcebergLog
from spark_export.tables.log import CatalogChoice
from tests.spark_export.exporter.export_world import COLUMNS, World
from tests.support.iceberg_rest import RestCatalog, running_rest_catalog


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RestCatalog]:
    with running_rest_catalog(tmp_path) as running:
        yield running


@pytest.fixture
def at_rest(world: World, served: RestCatalog) -> World:
    """An export whose table is lake.orders in the served catalog, which the user calls `lakes`."""
    choice = CatalogChoice("lakes", {"uri": served.uri, "header.X-Purpose": "test"}, "lake.orders")
    world.settings = replace(world.settings, format="iceberg", catalog=choice)
    return world


def rows_in(served: RestCatalog) -> list[tuple[Any, ...]]:
    table = load_catalog("anyone", type="rest", uri=served.uri).load_table("lake.orders")
    columns = table.scan(selected_fields=tuple(COLUMNS)).to_arrow().select(COLUMNS).columns
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def test_the_catalog_of_a_folder_waits_for_another_process(tmp_path: Path) -> None:
    """Goal: a commit of another process on a slow disk is no error. Method: SQLite says how long it waits."""
    log = IcebergLog(parse_place(tmp_path), {})
    with log._catalog.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == CATALOG_WAIT_S * 1000


def test_a_table_in_a_rest_catalog(at_rest: World, served: RestCatalog) -> None:
    """Goal: runs, compaction and verify use the catalog, and hand its properties on."""
    for count in (50, 7):
        at_rest.push(count)
        assert at_rest.run().rows == count
        assert rows_in(served) == at_rest.stored()
    assert "test" in {each.get("x-purpose") for each in served.headers}, "a property became a header of the requests"
    # The other commands find the catalog without being told.
    assert at_rest.compact().files_after == 1
    verdict = at_rest.verify()
    assert (verdict.problems, verdict.compared) == ((), 57)
    assert rows_in(served) == at_rest.stored()
    assert not (at_rest.folder / "catalog.sqlite").exists()


def test_the_catalogs_answer_to_a_commit_gets_lost(at_rest: World, served: RestCatalog) -> None:
    at_rest.push(20)
    at_rest.run()
    at_rest.push(20)
    served.lost = 1
    before = served.commits
    assert at_rest.run().rows == 20
    assert (served.commits, served.lost) == (before + 1, 0), "the commit was made once, and its answer lost"
    assert rows_in(served) == at_rest.stored()
    assert at_rest.verify().problems == ()


def test_two_exports_share_a_table_of_one_catalog(at_rest: World, served: RestCatalog, tmp_path: Path) -> None:
    """Goal: the positions are those of the table, so a second folder that names it takes no message twice."""
    at_rest.push(5)
    at_rest.run()
    assert at_rest.run(folder=tmp_path / "second").run_id is None
    at_rest.push(3)
    assert at_rest.run(folder=tmp_path / "second").rows == 3
    assert at_rest.run().run_id is None
    assert rows_in(served) == at_rest.stored()


def test_a_catalog_that_is_away_is_told_in_one_line(at_rest: World) -> None:
    at_rest.push(5)
    with pytest.raises(ExportError) as raised:
        at_rest.run(catalog=CatalogChoice("lakes", {"uri": "http://127.0.0.1:9"}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("table", "options", "what"),
    [
        ("orders", {}, "NAMESPACE.NAME"),
        ("a.b", {"token": "x"}, "PYICEBERG_CATALOG__LAKES__TOKEN"),
        ("a.b", {"uri": "postgresql://user:pw@host/db"}, "has a password.*PYICEBERG_CATALOG__LAKES__URI"),
    ],
)
def test_a_wrong_choice_is_refused(tmp_path: Path, table: str, options: dict[str, str], what: str) -> None:
    with pytest.raises(ExportError, match=what):
        IcebergLog(parse_place(tmp_path), {}, CatalogChoice("lakes", options, table))


def test_the_catalog_is_kept_with_the_table(world: World, tmp_path: Path) -> None:
    """Goal: later commands find it, also where its address changes. Method: a catalog that was moved."""
    choice = CatalogChoice("mine", {"type": "sql", "uri": f"sqlite:///{tmp_path / 'one'}"}, "a.b")
    world.push(5)
    assert world.run(format="iceberg", catalog=choice).rows == 5
    (tmp_path / "one").rename(tmp_path / "two")
    assert world.run(catalog=replace(choice, options={"type": "sql", "uri": f"sqlite:///{tmp_path / 'two'}"})).rows == 0
    world.push(2)
    assert world.run().rows == 2


def test_the_settings_of_hives_metastore_arrive(tmp_path: Path) -> None:
    """Goal: pyiceberg's Hive catalog gets all properties as they are. Method: what it is made from."""
    hive = pytest.importorskip("pyiceberg.catalog.hive", reason="pyiceberg[hive] is not installed")
    given = {"uri": "thrift://metastore:9083", "hive.hive2-compatible": "true", "ugi": "someone"}
    log = IcebergLog(parse_place(tmp_path), {}, CatalogChoice("hive", given, "lake.orders"))
    assert isinstance(log._catalog, hive.HiveCatalog)
    assert given.items() <= dict(log._catalog.properties).items()
