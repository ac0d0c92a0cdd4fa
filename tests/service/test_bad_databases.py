"""Goal: a data directory that cannot be used is refused with one line that says why and what to do; damage found later
is told to whoever asks for what is damaged, and to nobody else.

Method: the running command on files that are locked, read-only, newer, foreign or damaged; a server in this process for
what is found while it serves.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ockam.protocol import ERROR
from stream_node.care.doctor import check_database
from stream_node.node.clock_note import FILE_NAME as CLOCK_NAME
from stream_node.node.config import Config
from stream_node.node.process import NodeProcess
from stream_node.node.server import Server
from stream_service.protocol import PULL, PullRequest
from stream_storage.errors import StorageError
from stream_storage.sqlite.database import FILE_NAME
from stream_storage.sqlite.schema import SCHEMA_VERSION
from tests.stream_storage.test_migration import unpacked
from tests.support.data_dir import stored_messages
from tests.support.served import neighbour, served
from tests.support.stream_peer import stream_peer

DROP_THE_RIGHT_TO_WRITE_ANYWHERE = """
import ctypes, os, sys
for capability in (1, 2) if sys.platform == "linux" else ():
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Take CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH from root (PR_CAPBSET_DROP), which else may write to any directory."""


def refusal(data_dir: Path, *, before: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
    """The one line on stderr with which `serve` ends, with exit code 1 and nothing on stdout."""
    command = [*before, sys.executable, "-m", "stream_node", "serve", "--data-dir", str(data_dir)]
    done = subprocess.run(
        [*command, "--listen", "127.0.0.1:0", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("stream-node: ")
    return line


async def error_of(data_dir: Path) -> str:
    """The text of the error with which a server in this process ends, which the command prints as that line."""
    with pytest.raises(StorageError) as caught:
        await Server(Config(data_dir=str(data_dir), listen="127.0.0.1:0")).serve()
    return str(caught.value)


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def fill(data_dir: Path, count: int = 50) -> None:
    """Messages of 1,000 bytes in the stream "s"; the server stops in good order."""
    async with served(data_dir) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await peer.push_all(route, [b"%d" % number * 1_000 for number in range(count)])


def change(data_dir: Path, statement: str) -> None:
    connection = sqlite3.connect(data_dir / FILE_NAME)
    with connection:
        connection.execute(statement)
    connection.close()


async def test_a_data_directory_in_use_is_refused_with_the_pid_of_its_owner(tmp_path: Path) -> None:
    """And the owner notices nothing."""
    with NodeProcess(tmp_path / "data") as node:
        async with stream_peer(node.address) as peer:
            route = await peer.create("s")
            await peer.push(route, b"before")
            line = refusal(tmp_path / "data")
            assert f"is in use by process {node.pid}" in line
            assert "stop it, or choose another data directory" in line
            assert (await peer.push(route, b"after")).index == 1
        node.kill()
        node.start()
        assert node.stop() == 0


async def test_two_servers_of_one_process_do_not_share_a_directory_either(tmp_path: Path) -> None:
    async with served(tmp_path):
        assert "is in use by this process" in await error_of(tmp_path)


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    directory = tmp_path / "read_only"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
async def test_a_read_only_data_directory_is_refused(read_only: Path, filled: bool) -> None:
    if filled:
        await fill(read_only)
    before = files_in(read_only)
    for path in (*(read_only / name for name in before), read_only):
        path.chmod(0o500 if path is read_only else 0o400)
    line = refusal(read_only, before=(sys.executable, "-c", DROP_THE_RIGHT_TO_WRITE_ANYWHERE))
    assert "cannot be written" in line
    assert "writable for this user" in line
    assert files_in(read_only) == before


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "is no directory" in await error_of(tmp_path / "file")
    assert "is no directory" in await error_of(tmp_path / "file" / "below")


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    await fill(tmp_path)
    change(tmp_path, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = (tmp_path / FILE_NAME).read_bytes()
    line = refusal(tmp_path)
    assert f"schema version {SCHEMA_VERSION + 1}" in line
    assert "install the newer program" in line
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_database_of_an_older_version_is_refused_or_brought_up_to_date_as_the_operator_says(tmp_path: Path) -> None:
    directory = unpacked(tmp_path / "data")
    before = (directory / FILE_NAME).read_bytes()
    line = refusal(directory, arguments=("--no-migrate",))
    assert "schema version 1, this program uses version 3, and migrating is off; start with --migrate" in line
    assert (directory / FILE_NAME).read_bytes() == before
    assert [(each.status, each.values["schema_version"]) for each in (check_database(directory)[0],)] == [
        ("warning", 1)
    ]
    with NodeProcess(directory) as node:
        assert node.stop() == 0
    (backup,) = directory.glob("backup-schema-1-*")
    assert (backup / FILE_NAME).read_bytes() == before
    assert "database_upgraded" in node.log_file.read_text()
    assert [(each.status, each.values["schema_version"]) for each in (check_database(directory)[0],)] == [("ok", 3)]
    # The way back that the refusal names.
    change(directory, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    assert refusal(directory).endswith(f"stream-node restore {backup} --data-dir {directory} --over")


async def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE cookies (name TEXT)")
    before = (tmp_path / FILE_NAME).read_bytes()
    assert "another program's database; choose another data directory" in await error_of(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def damage(data_dir: Path, at: int, data: bytes) -> None:
    with (data_dir / FILE_NAME).open("r+b") as file:
        file.seek(at)
        file.write(data)


async def test_a_file_that_is_no_database_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    await fill(tmp_path)
    damage(tmp_path, 0, b"not a database at all" * 100)
    line = await error_of(tmp_path)
    assert "the database is damaged" in line
    assert "restore a backup" in line


async def test_a_database_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path)
    os.truncate(tmp_path / FILE_NAME, (tmp_path / FILE_NAME).stat().st_size // 2)
    (tmp_path / "node.lock").write_text("1\n")
    assert "the database is damaged" in await error_of(tmp_path)


async def test_damage_that_an_unclean_stop_may_have_done_is_found_at_the_start(tmp_path: Path) -> None:
    """A page in the middle of the file is garbage."""
    await fill(tmp_path)
    page_bytes = int.from_bytes((tmp_path / FILE_NAME).read_bytes()[16:18], "big")
    pages = (tmp_path / FILE_NAME).stat().st_size // page_bytes
    damage(tmp_path, pages // 2 * page_bytes, os.urandom(page_bytes))
    (tmp_path / "node.lock").write_text("1\n")
    assert "the database is damaged" in refusal(tmp_path)


async def test_a_damaged_message_is_told_to_whoever_pulls_it_and_to_nobody_else(tmp_path: Path) -> None:
    """Its checksum is wrong; SQLite itself cannot see that."""
    await fill(tmp_path)
    change(tmp_path, "UPDATE messages SET data = replace(data, '7', '8') WHERE idx = 7")
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            peer = await server.peer()
            route = await peer.create("s")
            answer = await peer.ask(route, PULL.encode_request(PullRequest(1, 5, 10)))
            reason = ERROR.decode_response(answer.payload).reason
            assert [message.index for message in (await peer.pull(route, 0, 5)).messages] == list(range(5))
            assert [message.index for message in (await peer.pull(route, 8, 3)).messages] == [8, 9, 10]
            assert (await peer.push(route, b"more")).index == 50
            assert server.statistics().services.pulls_failed == 1
    assert "message 7 of stream" in reason
    assert [line["event"] for line in logs].count("pull_failed") == 1


async def test_a_missing_message_is_never_passed_over_in_silence(tmp_path: Path) -> None:
    await fill(tmp_path)
    change(tmp_path, "DELETE FROM messages WHERE idx = 7")
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        answer = await peer.ask(route, PULL.encode_request(PullRequest(1, 0, 20)))
        assert "message 7 of stream" in ERROR.decode_response(answer.payload).reason


async def test_a_clean_stop_leaves_the_database_an_empty_lock_file_and_the_trusted_time(tmp_path: Path) -> None:
    await fill(tmp_path)
    assert files_in(tmp_path) == [CLOCK_NAME, "node.lock", FILE_NAME]
    assert (tmp_path / "node.lock").read_bytes() == b""
    assert len(stored_messages(tmp_path, "s")) == 50
