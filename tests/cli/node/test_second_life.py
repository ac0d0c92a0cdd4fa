"""Goal: the directory of a worker never serves alone beside the other ones, since its streams would begin again.

Method: the real commands; messages are pushed through a node with workers, and the directory of one is served in every
way that a user may try.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from itertools import product
from pathlib import Path

import pytest

from stream_client import blocking
from stream_node.care.doctor import examine
from stream_node.fleet.worker_directory import NOTE_FILE
from stream_node.node.config import Config
from stream_node.node.process import NodeNotStarted, NodeProcess
from stream_storage.sqlite.database import FILE_NAME
from tests.cli.command import CommandLine
from tests.cli.promised import promised

TWO = ("--workers", "2")
STREAMS = 6


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped node with two workers, each of which has some of the streams."""
    data = tmp_path_factory.mktemp("filled") / "data"
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 0)
        assert node.stop() == 0
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


def push(node: NodeProcess, index: int) -> None:
    """Pushes one message to each stream, and checks that it gets this index."""
    with blocking.connect(node.address) as client:
        for number in range(STREAMS):
            assert client.create(f"s{number}").push(b"x") == index


@pytest.mark.slow
def test_the_directory_of_a_worker_is_refused(data: Path, tmp_path: Path) -> None:
    """Alone and with workers, however the directory is written."""
    (tmp_path / "link").symlink_to(data / "w00")
    ways = (data / "w00", data / "w01" / ".." / "w00", tmp_path / "link", Path(os.path.relpath(data / "w00")))
    for number, (way, arguments) in enumerate(product(ways, ((), TWO))):
        log = tmp_path / f"log{number}"
        with pytest.raises(NodeNotStarted, match="ended with 2:"), NodeProcess(way, arguments=arguments, log_file=log):
            pass
        (line,) = log.read_text().splitlines()
        assert "has the database of w00, one of 2 workers that share the streams of a node" in line
        assert "serve the directory that holds the folders of all workers, with --workers 2" in line
    # The whole node goes on with every stream where it was.
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0


def test_a_worker_whose_directory_is_on_another_disk_is_refused_by_its_name(data: Path, tmp_path: Path) -> None:
    (data / "w00").rename(tmp_path / "disk")
    (data / "w00").symlink_to(tmp_path / "disk")
    with (
        pytest.raises(NodeNotStarted, match="has the database of w00, one of 2 workers"),
        NodeProcess(data / "w00", log_file=tmp_path / "log"),
    ):
        pass
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0


def test_a_copy_elsewhere_is_refused(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """Also a backup that is restored elsewhere: alone, it would begin the streams of the other worker again."""
    shutil.copytree(data / "w00", tmp_path / "copy" / "w00")
    command("backup", tmp_path / "backup", "--data-dir", data / "w00")
    command("restore", tmp_path / "backup", "--data-dir", tmp_path / "restored")
    for folder in (tmp_path / "copy" / "w00", tmp_path / "restored"):
        refused = NodeProcess(folder, log_file=tmp_path / "log")
        with pytest.raises(NodeNotStarted, match="one of 2 workers that share the streams"), refused:
            pass
        (said,) = (each for each in examine(Config(data_dir=str(folder))) if each.check == "workers")
        assert said.status == "warning"


def old(data: Path) -> None:
    """Makes the directory that of an older version: no database says whose it is, a note says the number."""
    (data / NOTE_FILE).write_text("workers = 2\n")
    for folder in (data / "w00", data / "w01"):
        with sqlite3.connect(folder / FILE_NAME) as connection:
            connection.execute("DROP TABLE worker_places")
        connection.close()


def test_a_directory_of_an_older_version_gets_the_number(data: Path, tmp_path: Path) -> None:
    """The note is what counts until the databases say the number; then it may be lost."""
    old(data)
    for folder, arguments in ((data / "w00", ()), (data, ("--workers", "3"))):
        with pytest.raises(NodeNotStarted), NodeProcess(folder, arguments=arguments, log_file=tmp_path / "log"):
            pass
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0
    (data / NOTE_FILE).unlink()
    with (
        pytest.raises(NodeNotStarted, match="are shared among 2, not 3"),
        NodeProcess(data, arguments=("--workers", "3")),
    ):
        pass
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 2)
        assert node.stop() == 0


@pytest.mark.parametrize("note", [None, "", "other = 2", "workers = 1", "workers = -2", "workers = " + "[" * 500])
def test_folders_of_workers_without_a_fitting_number_are_refused(
    data: Path, tmp_path: Path, command: CommandLine, note: str | None
) -> None:
    """Goal: messages that are there are never passed over because a note is wrong. Also where `serve` is told the right
    number: the databases of an older version do not say it."""
    old(data)
    (data / NOTE_FILE).unlink()
    if note is not None:
        (data / NOTE_FILE).write_text(note)
    assert "write `workers = NUMBER` into" in command("verify", "--data-dir", data).failed(2)
    assert "write `workers = NUMBER` into" in command("backup", tmp_path / "copy", "--data-dir", data).failed(2)
    (said,) = (each for each in examine(Config(data_dir=str(data))) if each.check == "workers")
    assert said.status == "wrong"
    for arguments in ((), TWO):
        with pytest.raises(NodeNotStarted, match="ended with 2:"), NodeProcess(data, arguments=arguments):
            pass


def test_a_database_in_the_wrong_folder_is_refused(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """Two workers swapped, one of a node with another number, one beyond the number, and one that was lost."""
    swapped, fourth, lost = (Path(shutil.copytree(data, tmp_path / each)) for each in ("swapped", "fourth", "lost"))
    (swapped / "w00").rename(swapped / "w")
    (swapped / "w01").rename(swapped / "w00")
    (swapped / "w").rename(swapped / "w01")
    shutil.copytree(data / "w00", fourth / "w03")
    shutil.rmtree(lost / "w01")
    for folder in (swapped, fourth):
        assert "put each database back" in command("verify", "--data-dir", folder).failed(2)
        with pytest.raises(NodeNotStarted, match="put each database back"), NodeProcess(folder, arguments=TWO):
            pass
    with pytest.raises(NodeNotStarted, match="has no database; put it back"), NodeProcess(lost, arguments=TWO):
        pass
    assert "w01: " in command("verify", "--data-dir", lost).text


def test_the_database_of_one_process_in_the_folder_of_a_worker_is_refused(tmp_path: Path, command: CommandLine) -> None:
    """Somebody who wants workers moves it there. A node with one process does not look there, and would begin anew."""
    data = tmp_path / "data"
    with NodeProcess(data) as node:
        push(node, 0)
        assert node.stop() == 0
    (data / "w00").mkdir()
    for each in data.glob(FILE_NAME + "*"):
        each.rename(data / "w00" / each.name)
    assert f"move it to {data}" in command("verify", "--data-dir", data).failed(2)
    for arguments in ((), TWO):
        with pytest.raises(NodeNotStarted, match="move it to"), NodeProcess(data, arguments=arguments):
            pass
    assert not (data / FILE_NAME).exists()


def test_a_whole_backup_is_restored_and_served(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """Goal: the backup of the data directory has every worker and their number, and nothing of it begins anew."""
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    made = command("backup", backup, "--data-dir", data, "--verify", "--json").read(promised.BackedUp)
    assert (made.databases, made.sha256) == (2, None)
    assert made.messages == command("verify", "--data-dir", data, "--json").read(promised.Verified).messages
    before = sorted(each.relative_to(backup) for each in backup.rglob("*"))
    done = command("restore", backup, "--data-dir", restored, "--verify", "--json").read(promised.Restored)
    assert (done.messages, done.replaced) == (made.messages, False)
    assert sorted(each.relative_to(backup) for each in backup.rglob("*")) == before
    for count in ("1", "3"):
        refused = NodeProcess(restored, arguments=("--workers", count), log_file=tmp_path / "log")
        with pytest.raises(NodeNotStarted, match="are shared among 2, not"), refused:
            pass
    with NodeProcess(restored, arguments=TWO) as node:
        push(node, 1)
        assert command("restore", backup, "--data-dir", restored, "--over").code == 1
        assert node.stop() == 0
    assert command("restore", backup, "--data-dir", restored).code == 1
    again = command("restore", backup, "--data-dir", restored, "--over", "--json").read(promised.Restored)
    assert (again.replaced, again.replaced_messages) == (True, made.messages + STREAMS)
    with NodeProcess(restored, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0


def test_a_whole_backup_fits_only_its_number(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """Goal: a restore never leaves databases of two nodes. A damaged copy of one worker changes nothing at all."""
    backup = tmp_path / "backup"
    assert command("backup", backup, "--data-dir", data).code == 0
    single = tmp_path / "single"
    with NodeProcess(single) as node:
        assert node.stop() == 0
    assert "has 1 databases and" in command("restore", backup, "--data-dir", single, "--over").failed(1)
    before = {each: each.read_bytes() for each in data.rglob("streams.sqlite")}
    copy = backup / "w01" / FILE_NAME
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    assert "is not what was backed up" in command("restore", backup, "--data-dir", data, "--over").failed(1)
    assert {each: each.read_bytes() for each in data.rglob("streams.sqlite")} == before
    shutil.rmtree(backup / "w01")
    assert command("restore", backup, "--data-dir", tmp_path / "other").code == 1


def test_the_commands_for_one_worker_go_on(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """backup, verify, repair, doctor and restore in place, and then the node serves everything."""
    worker = data / "w00"
    command("backup", tmp_path / "backup", "--data-dir", worker)
    assert command("verify", "--data-dir", worker, "--json").read(promised.Verified).ok
    assert "nothing to repair" in command("repair", "--data-dir", worker).text
    assert command("doctor", "--data-dir", worker).code == 0
    command("restore", tmp_path / "backup", "--data-dir", worker, "--over")
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0


def test_a_folder_that_only_has_such_a_name_serves(tmp_path: Path) -> None:
    """Without a note beside it, and with a note for fewer workers."""
    (tmp_path / "workers.toml").write_text("workers = 2\n")
    for folder in (tmp_path / "other" / "w00", tmp_path / "w02", tmp_path / "w000"):
        folder.mkdir(parents=True)
        with NodeProcess(folder, log_file=tmp_path / "log") as node:
            assert node.stop() == 0
