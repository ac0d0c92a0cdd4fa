"""Goal: the commands about a data directory know that several workers have a database each in it.

Method: the real commands beside a real node with workers; the databases are damaged by SQLite itself.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import pytest

from stream_client import blocking
from stream_node.care.doctor import examine
from stream_node.fleet.worker_directory import NOTE_FILE
from stream_node.node.config import Config
from stream_node.node.process import NodeProcess
from stream_storage.directory_lock import DirectoryLock
from stream_storage.sqlite.database import FILE_NAME
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.backups import store

STREAMS = 12


def make_directory(folder: Path, workers: int = 2) -> Path:
    """A data directory as that number of workers leaves it, with one message at each."""
    folder.mkdir()
    (folder / NOTE_FILE).write_text(f"workers = {workers}\n")
    for number in range(workers):
        (folder / f"w{number:02}").mkdir()
        store(folder / f"w{number:02}", f"s{number}", [b"x"])
    return folder


def test_doctor_and_verify_look_at_every_worker(tmp_path: Path, command: CommandLine) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, arguments=("--workers", "2")) as node:
        with blocking.connect(node.address) as client:
            for number in range(STREAMS):
                client.create(f"s{number}").push(b"x")
        found = {
            each.check: each
            for each in command("doctor", "--data-dir", data, "--json").read(promised.Examined).findings
        }
        assert found["node"].text == f"process {node.pid} is running here"
        assert found["workers"].text == "2, each with a database of its own, in w00, w01"
        for name in ("w00", "w01"):
            assert re.fullmatch(r"process \d+ is running here", found[f"{name} node"].text)
            assert re.search(r"MiB, schema version", found[f"{name} database"].text)
            assert found[f"{name} litestream"].status == "ok"
        assert "database" not in found
        verified = command("verify", "--data-dir", data, "--json").read(promised.Verified)
        assert (verified.ok, verified.messages) == (True, STREAMS)
        assert node.stop() == 0
    assert command("verify", "--data-dir", data).text.endswith(": all as it should be\n")


def test_verify_names_the_worker_of_each_problem(tmp_path: Path, command: CommandLine) -> None:
    data = make_directory(tmp_path / "data", 3)
    with sqlite3.connect(data / "w01" / FILE_NAME) as connection:
        connection.execute("DELETE FROM messages WHERE idx = 0")
    connection.close()
    (data / "w00" / FILE_NAME).write_bytes(b"this is no database" * 1_000)
    done = command("verify", "--data-dir", data)
    assert done.code == 1
    *problems, last = done.text.splitlines()
    assert any(line.startswith("w00: ") for line in problems)
    assert any(line.startswith("w01: ") and "message 0 is missing" in line for line in problems)
    assert not any(line.startswith("w02: ") for line in problems)
    assert last.startswith("2 streams, ")


def test_doctor_tells_the_owner_of_each_directory(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data")
    lock = DirectoryLock(data / "w01")
    try:
        found = {each.check: each for each in examine(Config(data_dir=str(data)))}
    finally:
        lock.release(clean=True)
    assert found["w00 node"].values["pid"] is None
    assert found["w01 node"].values["pid"] == os.getpid()
    (data / NOTE_FILE).write_text("workers = many")
    (wrong,) = (each for each in examine(Config(data_dir=str(data))) if each.check == "workers")
    assert wrong.status == "wrong"


@pytest.mark.parametrize("arguments", [("repair",), ("restore", "--file", "copy")])
def test_commands_for_one_database_name_those_there_are(
    tmp_path: Path, command: CommandLine, arguments: tuple[str, ...]
) -> None:
    data = make_directory(tmp_path / "data")
    told = command(*arguments, "--data-dir", data).failed(2)
    assert f"shared among 2 workers, each with a database of its own; run this command for each of them: {''}" in told
    assert f"--data-dir {data / 'w00'} to {data / 'w01'}" in told
