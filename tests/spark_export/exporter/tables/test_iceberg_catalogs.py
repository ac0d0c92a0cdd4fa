"""Goal: an Iceberg table can be in a catalog that the user names, and a lost answer of it doubles and loses nothing.

Method: a server of Iceberg's REST protocol, and pyiceberg as another program reads the catalog; rows are compared with
a pull from the node.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")

from pyiceberg.catalog import load_catalog

from spark_export.exporter.errors import ExportError, ExportMismatch
from spark_export.exporter.tables.iceberg_catalog import CatalogChoice, keep_choice, open_catalog
from spark_export.exporter.tables.layout import Layout
from spark_export.java import JavaMissing, find_java_home
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.table_readers import COLUMNS
from tests.support.iceberg_rest import RestCatalog, running_rest_catalog


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RestCatalog]:
    with running_rest_catalog(tmp_path) as running:
        yield running


@pytest.fixture
def at_rest(world: World, served: RestCatalog) -> World:
    """An export whose table is lake.orders in the served catalog."""
    chosen: dict[str, Any] = {"catalog": "rest", "catalog_options": {"uri": served.uri, "header.X-Purpose": "test"}}
    world.settings = replace(world.settings, format="iceberg", catalog_table="lake.orders", **chosen)
    return world


SPARK = """
from spark_export import open_session
spark = open_session("local[1]", config={"spark.hadoop.hive.metastore.uris": "thrift://metastore:9083"})
print(spark.sparkContext._jsc.hadoopConfiguration().get("hive.metastore.uris"))
spark.stop()
"""


def rows_in(served: RestCatalog) -> list[tuple[Any, ...]]:
    table = load_catalog("anyone", type="rest", uri=served.uri).load_table("lake.orders")
    columns = table.scan(selected_fields=tuple(COLUMNS)).to_arrow().select(COLUMNS).columns
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def test_a_table_in_a_rest_catalog(at_rest: World, served: RestCatalog) -> None:
    """Goal: runs, compaction and verify use the catalog, and hand its properties on."""
    for count in (50, 7):
        at_rest.push(count)
        assert at_rest.run().rows == count
        assert rows_in(served) == at_rest.stored()
    assert "test" in {each.get("x-purpose") for each in served.headers}, "a property became a header of the requests"
    # The other commands find the catalog without being told.
    assert at_rest.compact().files_after == 1
    assert at_rest.verify().problems == ()
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
    served.lost = 1
    assert at_rest.compact().files_after == 1
    assert rows_in(served) == at_rest.stored()
    assert at_rest.verify().problems == ()


def test_a_name_that_another_table_has_is_refused(at_rest: World, served: RestCatalog, tmp_path: Path) -> None:
    at_rest.push(5)
    at_rest.run()
    with pytest.raises(ExportError, match="--catalog-table"):
        at_rest.run(folder=tmp_path / "second")
    assert rows_in(served) == at_rest.stored()


def test_a_catalog_that_is_away_is_told_in_one_line(at_rest: World) -> None:
    at_rest.push(5)
    with pytest.raises(ExportError) as raised:
        at_rest.run(catalog_options={"uri": "http://127.0.0.1:9"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "table", "options", "what"),
    [
        ("rset", "a.b", {}, "one of rest, sql"),
        ("rest", "orders", {}, "NAMESPACE.NAME"),
        ("rest", "a.b", {"token": "x"}, "PYICEBERG_CATALOG__STREAM_NODE__TOKEN"),
    ],
)
def test_a_wrong_choice_is_refused(tmp_path: Path, kind: str, table: str, options: dict[str, str], what: str) -> None:
    with pytest.raises(ExportMismatch, match=what):
        keep_choice(Layout(tmp_path), CatalogChoice(kind, table, options))


def test_a_table_stays_in_its_catalog(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    keep_choice(layout, CatalogChoice("sql", "a.b", {"uri": f"sqlite:///{tmp_path / 'one'}"}))
    with pytest.raises(ExportMismatch, match=r"a\.b in a catalog of the kind sql"):
        keep_choice(layout, CatalogChoice("sql", "a.c", {"uri": "sqlite://"}))
    # Another address of the same catalog is taken.
    keep_choice(layout, CatalogChoice("sql", "a.b", {"uri": f"sqlite:///{tmp_path / 'two'}"}))
    catalog, name = open_catalog(layout)
    assert (catalog.properties["uri"], name) == (f"sqlite:///{tmp_path / 'two'}", ("a", "b"))
    catalog.close()


def test_the_settings_of_hives_metastore_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: pyiceberg's Hive catalog gets all properties as they are. Method: what it is made from."""
    hive = pytest.importorskip("pyiceberg.catalog.hive", reason="pyiceberg[hive] is not installed")
    given = {"uri": "thrift://metastore:9083", "hive.hive2-compatible": "true", "ugi": "someone"}
    layout = Layout(tmp_path)
    keep_choice(layout, CatalogChoice("hive", "lake.orders", given))
    catalog, _ = open_catalog(layout)
    assert isinstance(catalog, hive.HiveCatalog)
    assert given.items() <= dict(catalog.properties).items()


@pytest.mark.spark
def test_hives_metastore_settings_reach_spark() -> None:
    """Goal: --conf spark.hadoop.hive.metastore.uris=… arrives. Method: a session of its own, since it starts once."""
    try:
        find_java_home()
    except JavaMissing as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", SPARK], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip() == "thrift://metastore:9083", done.stderr
