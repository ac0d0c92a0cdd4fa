"""`stream-node verify`: what it says of sound and of damaged data."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from stream_node.node.process import NodeProcess
from stream_storage.sqlite.database import FILE_NAME
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.backups import store


def test_sound_data_is_counted_in_words(command: CommandLine, tmp_path: Path) -> None:
    store(tmp_path, "words", [b"x"])
    arguments = ("verify", "--data-dir", tmp_path)
    assert command(*arguments).text == "1 stream, 1 message, 1 byte: all as it should be\n"
    store(tmp_path, "more", [b"x"] * 1_001)
    assert command(*arguments).text == "2 streams, 1,002 messages, 1,002 bytes: all as it should be\n"
    assert command(*arguments, "--json").read(promised.Verified) == promised.Verified(True, 2, 1_002, 1_002, [], 0)


def test_damage_is_told_and_is_the_exit_code(command: CommandLine, tmp_path: Path) -> None:
    store(tmp_path, "words", [b"one", b"two"])
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("DELETE FROM messages WHERE idx = 0")
    connection.close()
    done = command("verify", "--data-dir", tmp_path, "--json")
    report = msgspec.json.decode(done.stdout, type=promised.Verified)
    assert (done.code, report.ok, report.problem_count) == (1, False, len(report.problems))
    text = command("verify", "--data-dir", tmp_path).text
    assert "message 0 is missing" in text
    assert text.splitlines()[-1].startswith("1 stream, 1 message, 3 bytes: ")


def test_a_directory_without_a_database_is_told(command: CommandLine, tmp_path: Path) -> None:
    assert "there is no database" in command("verify", "--data-dir", tmp_path).failed(1)


def test_data_is_verified_beside_its_node(at_node: CommandLine, node: NodeProcess, stream: str) -> None:
    at_node("push", stream, "--data", "x")
    assert at_node("verify", "--data-dir", node.data_dir, "--json").read(promised.Verified).ok
    assert at_node("push", stream, "--data", "y").code == 0
