"""Goal: what an administrator does as root to the data of another user's node leaves that node able to write.

Method: every command that writes into a data directory, run as root over a directory of another user; then all owners
are looked at, and a node of that user takes a push. A file that the node cannot write is planted, and must be told.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_client.blocking import connect
from stream_node.node.process import NodeNotStarted, NodeProcess
from stream_storage.sqlite.database import FILE_NAME
from tests.cli.command import CommandLine
from tests.stream_storage.wal.wal_samples import FRAME_BYTES, change

NODE_USER = 65_534
ALICE = "I" + "ab" * 32
AS_NODE_USER = (
    *("setpriv", f"--reuid={NODE_USER}", f"--regid={NODE_USER}", "--clear-groups"),
    # That user may read the interpreter wherever it is installed, and write nothing more than others.
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
OLD_VERSION = Path(__file__).parents[2] / "vectors/storage/version_2.sqlite.gz"


class NodeOfUser(NodeProcess):
    """A node of the other user."""

    def command(self) -> list[str]:
        return [*AS_NODE_USER, *super().command()]


@pytest.fixture(autouse=True, scope="module")
def another_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can write into the directory of another user")
    if shutil.which("setpriv") is None or subprocess.run([*AS_NODE_USER, "true"], check=False).returncode:
        pytest.skip("setpriv cannot run a program as another user here")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of the other user, who may enter it; only root may enter those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NODE_USER, NODE_USER)
        yield Path(folder)


@pytest.fixture
def data(place: Path) -> Path:
    """A data directory of the other user, with rules."""
    data = place / "data"
    data.mkdir(mode=0o700)
    (data / "rules.toml").write_text('[[rule]]\nname = "all"\nwho = ["*"]\nmay = ["all"]\non = [""]\n')
    for each in (data, data / "rules.toml"):
        os.chown(each, NODE_USER, NODE_USER)
    return data


def strays(folder: Path) -> list[str]:
    """What does not belong to the other user."""
    return [str(each.relative_to(folder)) for each in folder.rglob("*") if each.lstat().st_uid != NODE_USER]


def with_rules(data: Path) -> tuple[str, ...]:
    return ("--access-rules", str(data / "rules.toml"), "--log-level", "error")


def pushed(data: Path) -> None:
    """A node of the other user takes a push."""
    with NodeOfUser(data, arguments=with_rules(data), log_file=data.parent / "log") as node:
        with connect(node.address) as client:
            client.create("s").push(b"as that user")
        assert node.stop() == 0


@pytest.mark.slow  # starts a node as another user after each group of commands
def test_a_node_writes_after_everything_that_root_did_to_its_data(
    data: Path, place: Path, command: CommandLine
) -> None:
    at, copies = ("--data-dir", data), place / "copies"
    copies.mkdir()
    os.chown(copies, NODE_USER, NODE_USER)
    # The first start, by hand, as root.
    with NodeProcess(data, arguments=with_rules(data), log_file=place / "log") as node:
        with connect(node.address) as client:
            client.create("s").push(b"as root")
        assert command("backup", copies / "monday", *at).code == 0
        assert node.stop() == 0
    assert strays(data) + strays(copies) == []
    assert command("trust", "add", ALICE, *at).code == 0
    assert command("trust", "remove", ALICE, *at).code == 0
    assert command("identity", "create", "--data-dir", place / "copies" / "new").code == 0
    token = ("token", "create", "spark", "--allow", "read:", "--rules", data / "rules.toml")
    assert command(*token, "--file", place / "token", *at).code == 0
    assert command("token", "revoke", "spark", *at).code == 0
    assert (
        command("rule", "add", "more", "--who", "*", "--may", "read", "--on", "", "--rules", data / "rules.toml").code
        == 0
    )
    assert command("restore", copies / "monday", *at, "--over").code == 0
    assert command("restore", copies / "monday", "--data-dir", copies / "deep" / "data").code == 0
    assert command("restore", "--file", copies / "monday" / FILE_NAME, *at, "--over").code == 0
    assert strays(data) + strays(copies) == []
    # A log that is damaged while the node is killed.
    with NodeOfUser(data, arguments=with_rules(data), log_file=place / "log") as node:
        with connect(node.address) as client:
            for _ in range(5):
                client.create("s").push(b"x" * 5_000)
        node.kill()
    change(data, FRAME_BYTES)
    repaired = command("repair", *at, "--yes", "--accept-loss")
    assert (repaired.code, "repaired; the old log is" in repaired.text) == (0, True), repaired
    assert strays(data) == []
    pushed(data)
    assert strays(data) == []


@pytest.mark.slow  # starts a node as another user
def test_a_node_writes_after_root_upgraded_its_data_and_went_back(
    data: Path, place: Path, command: CommandLine
) -> None:
    (data / FILE_NAME).write_bytes(gzip.decompress(OLD_VERSION.read_bytes()))
    os.chown(data / FILE_NAME, NODE_USER, NODE_USER)
    with NodeProcess(data, arguments=with_rules(data), log_file=place / "log") as node:
        assert node.stop() == 0
    assert strays(data) == []
    (backup,) = data.glob("backup-schema-2-*")
    assert command("restore", backup, "--data-dir", data, "--over").code == 0
    assert strays(data) == []
    pushed(data)


@pytest.mark.slow  # starts two workers
def test_the_folders_of_workers_belong_to_the_owner_of_the_data(data: Path, place: Path, command: CommandLine) -> None:
    arguments = (*with_rules(data), "--workers", "2")
    with NodeProcess(data, arguments=arguments, log_file=place / "log") as node:
        assert command("backup", place / "copy", "--data-dir", data).code == 0
        assert node.stop() == 0
    assert command("restore", place / "copy", "--data-dir", data, "--over").code == 0
    assert command("restore", place / "copy", "--data-dir", data / "new").code == 0
    assert strays(data) == []


@pytest.mark.slow
def test_a_database_that_the_node_cannot_write_is_told(data: Path, place: Path, command: CommandLine) -> None:
    """By the start, which fails, and by doctor, whoever runs it."""
    pushed(data)
    os.chown(data / FILE_NAME, 0, 0)
    with pytest.raises(NodeNotStarted, match=r"cannot be written.*\(chown\)"):
        pushed(data)
    doctor = ("doctor", "--data-dir", str(data))
    told = command(*doctor)
    assert (told.code, f"{FILE_NAME}, which belongs to root and its folder to" in told.text) == (1, True)
    of_node_user = [*AS_NODE_USER, *NodeProcess(data).command()[:3], *doctor]
    own = subprocess.run(of_node_user, capture_output=True, text=True, check=False)
    assert (own.returncode, f"{FILE_NAME}, which this user must not write" in own.stdout) == (1, True)
    os.chown(data / FILE_NAME, NODE_USER, NODE_USER)
    assert "cannot write" not in command(*doctor).text


@pytest.mark.slow  # starts a node, and an export as another user
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_an_export_goes_on_after_root_has_run_it(
    place: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    """Its folder, its table, and its history elsewhere."""
    for module in ("pyarrow", "aiosqlite", *(["deltalake"] if table_format == "delta" else [])):
        pytest.importorskip(module, reason=f"the extra with {module} is not installed")
    monkeypatch.setattr("stream_node.node.logs.configure_logs", lambda level: None)
    folder = place / "export"
    run: tuple[str, ...] = ("export", "run", str(folder), "--format", table_format, "--stream", "s")
    with NodeProcess(place / "node") as node, connect(node.address) as client:
        os.chown(place / "node.log", NODE_USER, NODE_USER)
        run += ("--node", node.address, "--history", f"{place}/history.sqlite")
        client.create("s").push(b"one")
        assert command(*run).code == 0
        assert [each for each in strays(place) if not each.startswith("node")] == []
        if table_format == "parquet":
            client.create("s").push(b"two")
            as_node_user = [*AS_NODE_USER, *node.command()[:3], *run]
            done = subprocess.run(as_node_user, capture_output=True, text=True, check=False, cwd=place)
            assert (done.returncode, "run 2: 1 row" in done.stdout) == (0, True), done.stdout
