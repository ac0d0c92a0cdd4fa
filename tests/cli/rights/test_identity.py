"""Goal: identities and trust by command: made once, shown, listed, removed, and wrong uses said in one line.

Method: the commands inside the test, on real files in a folder of the test.
"""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from ockam.identity.channel.identity_file import load_identity
from ockam.identity.channel.trust_list import load_trusted
from tests.cli.command import CommandLine
from tests.cli.promised import promised

ALICE, BOB = "I" + "a" * 64, "I" + "b" * 64


def test_an_identity_is_made_once_and_shown(command: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "me.json"
    made = command("identity", "create", "--file", file, "--json").read(promised.IdentityShown)
    assert made.file == str(file)
    assert str(load_identity(file, int(time.time()))) == made.identifier
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert command("identity", "show", "--file", file).text == f"{made.identifier}\n"
    assert "exists already" in command("identity", "create", "--file", file).failed(1)
    # No output has more than the identifier: the file's secrets are in none.
    shown = command("identity", "show", "--file", file, "--json")
    assert shown.read(promised.IdentityShown) == made


def test_the_identity_of_a_node_and_of_the_user(command: CommandLine, tmp_path: Path) -> None:
    of_node = command("identity", "create", "--data-dir", tmp_path, "--json").read(promised.IdentityShown)
    assert Path(of_node.file) == tmp_path / "identity.json"
    of_user = command("identity", "create", "--json").read(promised.IdentityShown)
    assert of_user.file != of_node.file
    assert command("identity", "show").text == f"{of_user.identifier}\n"
    assert "two identities" in command("identity", "show", "--file", "x", "--data-dir", tmp_path).failed(2)


def test_an_identity_that_is_missing_or_open_to_others(command: CommandLine, tmp_path: Path) -> None:
    assert "`identity create` makes one" in command("identity", "show", "--file", tmp_path / "x").failed(1)
    command("identity", "create", "--file", tmp_path / "x")
    (tmp_path / "x").chmod(0o644)
    assert "others may read" in command("identity", "show", "--file", tmp_path / "x").failed(1)


def test_trust_is_added_listed_and_removed(command: CommandLine, tmp_path: Path) -> None:
    at = ("--data-dir", str(tmp_path))
    file = tmp_path / "trusted_identities"
    assert command("trust", "list", *at).text == "nobody is trusted, so nobody can open a secure channel\n"
    added = command("trust", "add", ALICE, "--name", "alice", *at, "--json").read(promised.TrustAdded)
    assert added == promised.TrustAdded(ALICE, "alice", True, str(file))
    assert command("trust", "add", BOB, *at).text == f"{BOB} is trusted\n"
    # Adding again keeps the name.
    assert command("trust", "add", ALICE, *at).text == f"{ALICE} was trusted already\n"
    listed = command("trust", "list", *at, "--json").read(promised.TrustListed)
    assert listed == promised.TrustListed(
        [promised.Trusted(ALICE, "alice", "file"), promised.Trusted(BOB, "", "file")], False
    )
    assert load_trusted(file) == {bytes.fromhex(ALICE[1:]): "alice", bytes.fromhex(BOB[1:]): ""}
    removed = command("trust", "remove", ALICE, *at, "--json").read(promised.TrustRemoved)
    assert removed == promised.TrustRemoved(ALICE, True, str(file))
    assert command("trust", "remove", ALICE, *at).text == f"{ALICE} was not trusted; 1 trusted identity left\n"


@pytest.mark.parametrize("text", ["alice", ALICE[:-1], ALICE.upper(), ""])
def test_what_is_no_identifier(command: CommandLine, tmp_path: Path, text: str) -> None:
    assert "64 lower-case hexadecimal digits" in command("trust", "add", text, "--data-dir", tmp_path).failed(2)
    assert not (tmp_path / "trusted_identities").exists()


def test_trust_by_settings(command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM_NODE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("STREAM_NODE_SECURE_CHANNEL_TRUSTED", ALICE)
    assert command("trust", "list", "--json").read(promised.TrustListed).trusted == [
        promised.Trusted(ALICE, "", "settings")
    ]
    # A command that fails has changed nothing, also if the file trusts the identity, too.
    command("trust", "add", ALICE, "--name", "alice")
    assert "take it out there" in command("trust", "remove", ALICE).failed(2)
    assert load_trusted(tmp_path / "trusted_identities") == {bytes.fromhex(ALICE[1:]): "alice"}
    (tmp_path / "trusted_identities").unlink()
    monkeypatch.setenv("STREAM_NODE_SECURE_CHANNEL_TRUSTED", "alice")
    assert "'alice' is no identifier" in command("config", "check").failed(2)
    monkeypatch.delenv("STREAM_NODE_SECURE_CHANNEL_TRUSTED")
    monkeypatch.setenv("STREAM_NODE_SECURE_CHANNEL_TRUST_ANYONE", "true")
    assert command("trust", "list").text == "everybody is trusted: secure_channel_trust_anyone is set\n"


def test_a_damaged_trust_file_is_said(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "trusted_identities").write_text("# comment\n\nalice\n")
    assert "trusted_identities, line 3" in command("trust", "list", "--data-dir", tmp_path).failed(1)
