"""Goal: the ledger of a table can be in a database, and one exporter at a time can change it.

Method: a real PostgreSQL server with a socket of its own, and an SQLite file; tables in a folder and on the S3 server.
"""

from __future__ import annotations

import asyncio
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from spark_export.exporter.errors import ExportInUse, ExportMismatch, LedgerError
from spark_export.exporter.ledger.url import parse_url
from spark_export.exporter.runs.run import Exporter
from spark_export.store.open import open_store
from tests.spark_export.store.store_world import StoreWorld

PATIENCE_S = 60


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a server that listens on a socket file only; skips where there is no PostgreSQL."""
    # Debian keeps the server's programs out of PATH.
    places = os.pathsep.join([os.environ.get("PATH", ""), *sorted(glob.glob("/usr/lib/postgresql/*/bin"))])
    initdb, server = shutil.which("initdb", path=places), shutil.which("postgres", path=places)
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is not installed")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        # The server refuses to run as root.
        owner = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        user: Any = {"user": owner.pw_uid, "group": owner.pw_gid} if os.getuid() == 0 else {}
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        data = f"{folder}/data"
        made = subprocess.run(
            [initdb, "-D", data, "-U", "someone", "-A", "trust", "--no-sync"],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
            **user,
        )
        if made.returncode:
            pytest.skip(f"PostgreSQL cannot be started here: {made.stderr.strip()}")
        command = [server, "-D", data, "-k", folder, "-h", "", "-F"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder, **user) as process:
            deadline_s = time.monotonic() + PATIENCE_S
            while not list(Path(folder).glob(".s.PGSQL.*[0-9]")):
                assert process.poll() is None
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            yield f"postgresql+asyncpg://someone@/postgres?host={folder}"
            process.terminate()


def test_a_table_on_a_store_with_its_ledger_in_postgres(world: StoreWorld, postgres: str) -> None:
    world.settings = replace(world.settings, ledger=f"{postgres}&schema=one")
    for count in (100, 7):
        world.push(count)
        assert world.run().rows == count
        world.assert_whole()
    assert world.compact().files_after == 1
    world.push(5)
    world.run()
    world.assert_whole()
    assert world.objects("_export") == ["_export/table.json"]


def test_one_exporter_at_a_time(world: StoreWorld, postgres: str) -> None:
    world.settings = replace(world.settings, ledger=f"{postgres}&schema=two")
    world.push(10)

    async def main(exporter: Exporter) -> None:
        with pytest.raises(ExportInUse, match="the ledger two in postgres is in use by another exporter"):
            await asyncio.to_thread(world.run)
        await exporter.run()

    world.with_exporter(main)
    world.assert_whole()


def test_a_ledger_of_another_table_is_refused(world: StoreWorld, postgres: str, tmp_path: Path) -> None:
    world.settings = replace(world.settings, ledger=f"sqlite+aiosqlite:///{tmp_path / 'ledger'}")
    world.push(10)
    world.run()
    world.assert_whole()
    with pytest.raises(ExportMismatch, match="the ledger is of"):
        world.run(folder=world.place / "elsewhere")


def test_a_second_ledger_is_refused_before_the_first_run_is_published(world: StoreWorld, tmp_path: Path) -> None:
    """Before, a new ledger took the table for its own, and published its run in place of the other one's."""
    world.push(10)
    first = f"sqlite+aiosqlite:///{tmp_path / 'first'}"
    assert world.command("run", "--ledger", first, site="written")[0] == -signal.SIGKILL
    assert not world.reader_has_manifests()
    for second in (None, f"sqlite+aiosqlite:///{tmp_path / 'second'}"):
        with pytest.raises(ExportMismatch, match=r"is the table of another ledger.*name the ledger of this table by"):
            world.run(ledger=second)
    assert world.run(ledger=first).recovered == ("run 1, left written: publish",)
    assert world.rows() == world.stored()


def test_the_ledger_of_another_table_is_refused_at_an_empty_address(world: StoreWorld, tmp_path: Path) -> None:
    ledger = f"sqlite+aiosqlite:///{tmp_path / 'ledger'}"
    world.push(10)
    world.run(ledger=ledger)
    empty = world.place / "elsewhere"
    with pytest.raises(ExportMismatch, match="holds no table, and the ledger is of the table"):
        world.run(ledger=ledger, folder=empty)
    assert list(open_store(empty, world.reader.options).list_objects()) == []


def test_a_server_that_is_not_there_is_told(world: StoreWorld) -> None:
    world.push(1)
    with pytest.raises(LedgerError, match="cannot be reached"):
        world.run(ledger="postgresql+asyncpg://someone:hidden@127.0.0.1:1/none")


@pytest.mark.parametrize("url", ["mysql://host/x", "sqlite+aiosqlite://", "nonsense"])
def test_a_url_that_is_not_served_is_refused(url: str) -> None:
    with pytest.raises(ExportMismatch, match=r"sqlite\+aiosqlite"):
        parse_url(url)
