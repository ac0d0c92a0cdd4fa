"""Goal: an export to an object store has every message once, and needs nothing of the machine that it ran on.

Method: runs against a real S3 server; the table read by pyarrow and DuckDB from the list in the manifests, compared
with a pull from the node.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.tables.manifest import CHECKPOINT_EVERY, name_of
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import HIDDEN


def test_runs_go_on_where_the_last_one_ended(world: StoreWorld) -> None:
    for count in (500, 1, 300):
        world.push(count)
        outcome = world.run()
        assert outcome.rows == count
        world.assert_whole()
    assert world.run().run_id is None
    assert sorted(world.objects()) == sorted(world.files()), "no file is there that no manifest names"
    assert world.objects("_export") == ["_export/ledger.sqlite", "_export/table.json"]


def test_a_checkpoint_tells_the_whole_table(world: StoreWorld) -> None:
    for _ in range(CHECKPOINT_EVERY + 2):
        world.push(3, partitions=1)
        world.run()
    content = json.loads(world.reader.read(name_of(CHECKPOINT_EVERY)))
    assert sum(file["rows"] for file in content["checkpoint"]["files"]) == 3 * CHECKPOINT_EVERY
    world.reader.delete([name_of(number) for number in range(1, CHECKPOINT_EVERY)])
    world.assert_whole()


def test_a_compaction_changes_no_row(world: StoreWorld) -> None:
    for _ in range(3):
        world.push(100)
        world.run()
    before = world.files()
    done = world.compact()
    assert (done.files_before, done.files_after, done.rows) == (3, 1, 300)
    assert len(world.files()) == 1
    world.assert_whole()
    assert set(before) < set(world.objects()), "readers that have the earlier list still find its files"
    world.push(10)
    world.run()
    world.assert_whole()


def test_the_commands_take_an_address(world: StoreWorld) -> None:
    world.push(10)
    code, out, err = world.command("run", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["rows"] == 10
    assert world.command("verify")[0] == 0
    assert '"state":"saved"' in world.command("history", "--json")[1].replace(" ", "")
    code, out, err = world.command("files")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{world.place}/{name}" for name in world.files()]
    assert json.loads(world.command("files", "--json")[1])["rows"] == 10
    assert world.command("compact")[0] == 0


def test_an_address_without_a_table(world: StoreWorld) -> None:
    for verb in ("verify", "history", "compact", "files"):
        code, out, err = world.command(verb)
        assert (code, out) == (1, "")
        assert f"{world.place} holds no" in err
        assert len(err.splitlines()) == 1
    assert world.objects("") == []


def test_a_table_whose_ledger_is_lost_is_refused(world: StoreWorld) -> None:
    world.push(10)
    world.run()
    world.reader.delete(["_export/ledger.sqlite"])
    with pytest.raises(ExportMismatch, match=r"holds a table, and _export/ledger\.sqlite is missing"):
        world.run()
    assert len(world.rows()) == 10


def test_a_ledger_that_was_put_back_is_refused(world: StoreWorld) -> None:
    world.push(10)
    world.run()
    earlier = world.reader.read("_export/ledger.sqlite")
    world.push(10)
    world.run()
    world.reader.swap("_export/ledger.sqlite", earlier, world.reader.read_tagged("_export/ledger.sqlite").tag)
    with pytest.raises(ExportMismatch, match="put back to an earlier state"):
        world.run()
    assert len(world.rows()) == 20


def test_damage_is_found(world: StoreWorld) -> None:
    world.push(10)
    world.run()
    (name,) = world.files()
    found = world.reader.read_tagged(name)
    world.reader.swap(name, found.data[:100] + b"\xff" + found.data[101:], found.tag)
    assert "SHA-256" in world.verify().problems[0]
    world.reader.delete([name])
    assert "is missing" in world.verify().problems[0]


def test_secrets_are_nowhere(world: StoreWorld) -> None:
    """Neither in what the exporter writes, nor in what it says."""
    world.push(10)
    code, out, err = world.command("run", "--json", "--log-level", "debug", **HIDDEN)
    assert code == 0, err
    kept = b"".join(world.reader.read(name) for name in world.objects(""))
    assert "hidden-word" not in out + err
    assert b"hidden-word" not in kept
    code, _, err = world.command("run", "--store-option", "secret_access_key=hidden-word")
    assert code == 2
    assert "hidden-word" not in err


@pytest.mark.spark
def test_sparks_workers_write_to_the_store(world: StoreWorld) -> None:
    """The embedded Spark: its workers are processes of their own, which have their credentials from the environment. A
    process of its own, since a session that an earlier test has left has workers with an earlier environment."""
    world.push(1_000)
    code, out, err = world.command("run", "--master", "local[2,4]", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == 1_000
    world.assert_whole()
