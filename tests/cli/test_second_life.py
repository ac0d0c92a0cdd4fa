"""Goal: the directory of a worker never serves alone beside the other ones, since its streams would begin again.

Method: the real commands; messages are pushed through a node with workers, and the directory of one is served in every
way that a user may try.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stream_client import blocking
from stream_node.process import NodeNotStarted, NodeProcess
from tests.cli.command import CommandLine
from tests.cli.schemas import Verified

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


@pytest.mark.parametrize("arguments", [(), TWO], ids=["alone", "workers"])
@pytest.mark.parametrize("way", ["plain", "dots", "link", "relative"])
def test_the_directory_of_a_worker_is_refused(data: Path, tmp_path: Path, way: str, arguments: tuple[str, ...]) -> None:
    (tmp_path / "link").symlink_to(data / "w00")
    paths = {
        "plain": data / "w00",
        "dots": data / "w01" / ".." / "w00",
        "link": tmp_path / "link",
        "relative": Path(os.path.relpath(data / "w00")),
    }
    refused = NodeProcess(paths[way], arguments=arguments, log_file=tmp_path / "log")
    with pytest.raises(NodeNotStarted, match="ended with 2:"), refused:
        pass
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "is the directory of one of the 2 workers that share the streams in" in line
    assert f"start the node with --data-dir {data.resolve()} --workers 2" in line
    # The whole node goes on with every stream where it was.
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0


def test_a_worker_whose_directory_is_on_another_disk_is_refused_by_its_name(data: Path, tmp_path: Path) -> None:
    (data / "w00").rename(tmp_path / "disk")
    (data / "w00").symlink_to(tmp_path / "disk")
    with (
        pytest.raises(NodeNotStarted, match="is the directory of one of the 2 workers"),
        NodeProcess(data / "w00", log_file=tmp_path / "log"),
    ):
        pass
    with NodeProcess(data, arguments=TWO) as node:
        push(node, 1)
        assert node.stop() == 0


def test_a_copy_elsewhere_serves_alone(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """Also a backup that is restored elsewhere. Both have only the streams of that worker."""
    shutil.copytree(data / "w00", tmp_path / "copy" / "w00")
    command("backup", tmp_path / "backup", "--data-dir", data / "w00")
    command("restore", tmp_path / "backup", "--data-dir", tmp_path / "restored")
    found = []
    for folder in (tmp_path / "copy" / "w00", tmp_path / "restored"):
        with NodeProcess(folder, log_file=tmp_path / "log") as node:
            with blocking.connect(node.address) as client:
                names = sorted(info.stream_name for info in client.list_streams())
                assert [client.create(name).push(b"x") for name in names] == [1] * len(names)
            found.append(names)
            assert node.stop() == 0
    assert found[0] == found[1]
    assert 0 < len(found[0]) < STREAMS


def test_the_commands_for_one_worker_go_on(data: Path, tmp_path: Path, command: CommandLine) -> None:
    """backup, verify, repair, doctor and restore in place, and then the node serves everything."""
    worker = data / "w00"
    command("backup", tmp_path / "backup", "--data-dir", worker)
    assert command("verify", "--data-dir", worker, "--json").read(Verified).ok
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
