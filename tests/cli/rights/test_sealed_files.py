"""Goal: a damaged file that decides who may do what lets nobody in, and verify and doctor name it.

Method: every bit of small files is flipped; what is read is compared with what was written. Files of older versions,
without a seal, are read and are sealed at the next write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ockam.identity.channel.errors import IdentityFileError
from ockam.identity.channel.trust_list import load_trusted, save_trusted
from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import PROBLEMS_MAX, Entry
from ockam.identity.rules.tokens import TokenFileError, create_token, load_tokens, revoke_token
from stream_node.care.doctor import examine
from stream_node.care.doctor_access import check_audit, check_private_files
from stream_node.node.clock_note import FILE_NAME as CLOCK_NAME
from stream_node.node.clock_note import Known, read_known, write_note
from stream_node.node.config import Config
from stream_node.node.identity.channel_services import trust_file
from stream_node.node.identity.token_services import token_file
from stream_storage.sqlite.database import Database
from tests.cli.command import CommandLine
from tests.support.data_dir import overwrite


def make_tokens(file: Path) -> None:
    create_token(file, "alice", 1_800_000_000, 1_800_000_100)
    create_token(file, "bob", 1_800_000_000)
    revoke_token(file, "bob", 1_800_000_001)


def flips(content: bytes) -> Iterator[bytes]:
    for offset in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[offset] ^= 1 << bit
            yield bytes(flipped)


@pytest.mark.parametrize(
    ("make", "read", "error"),
    [
        (make_tokens, load_tokens, TokenFileError),
        (lambda file: save_trusted(file, {bytes(range(32)): "a name"}), load_trusted, IdentityFileError),
    ],
    ids=["tokens", "trusted"],
)
def test_one_flipped_bit_lets_nobody_in(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[Path], object], error: type[Exception]
) -> None:
    file = tmp_path / "file"
    make(file)
    content, expected = file.read_bytes(), read(file)
    refused = 0
    for flipped in flips(content):
        overwrite(file, flipped)
        with suppress(error):
            assert read(file) == expected
            continue
        refused += 1
    # Only the line of the seal itself can be damaged so that it is none.
    assert refused > 8 * (len(content) - 20)


def test_a_damaged_clock_note_is_passed_over(tmp_path: Path) -> None:
    """The times in it decide whether the wall clock is trusted."""
    write_note(tmp_path, 5_000_000)
    file = tmp_path / CLOCK_NAME
    content, known = file.read_bytes(), read_known(tmp_path, 7, 2**60)
    for flipped in flips(content):
        overwrite(file, flipped)
        assert read_known(tmp_path, 7, 2**60) in (known, Known(7, None))


def test_files_without_a_seal_are_read_and_get_one(tmp_path: Path) -> None:
    tokens, trusted = token_file(str(tmp_path)), trust_file(str(tmp_path))
    make_tokens(tokens)
    save_trusted(trusted, {bytes(range(32)): "a name"})
    for file in (tokens, trusted):
        lines = file.read_bytes().splitlines(keepends=True)
        assert sum(b"seal" in line for line in lines) == 1
        file.write_bytes(b"".join(line for line in lines if b"seal" not in line))
    assert [each.name for each in load_tokens(tokens)] == ["alice", "bob"]
    assert list(load_trusted(trusted).values()) == ["a name"]
    create_token(tokens, "carol", 1_800_000_002)
    assert b"seal" in tokens.read_bytes()


def test_verify_and_doctor_name_a_damaged_file(tmp_path: Path, command: CommandLine) -> None:
    Database.open(tmp_path).close()
    tokens = token_file(str(tmp_path))
    make_tokens(tokens)
    save_trusted(trust_file(str(tmp_path)), {bytes(range(32)): "a name"})
    write_note(tmp_path, 5)
    assert command("verify", "--data-dir", tmp_path).code == 0
    for file, other in (
        (tokens, (b"alice", b"alicf")),
        (trust_file(str(tmp_path)), (b"a name", b"a namf")),
        (tmp_path / CLOCK_NAME, (b"boot_id", b"boot_ie")),
    ):
        file.write_bytes(file.read_bytes().replace(*other))
        done = command("verify", "--data-dir", tmp_path)
        assert (done.code, str(file) in done.text) == (1, True)
        config = Config(data_dir=str(tmp_path), secure_channel=True)
        assert any(str(file) in each.text for each in examine(config) if each.status != "ok")


def test_verify_and_doctor_tell_a_damaged_audit_log(tmp_path: Path, command: CommandLine) -> None:
    Database.open(tmp_path).close()
    file, rotated = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    rotated.write_bytes(b'{"time":"2026-01-01T00:00:00.000Z","event":"admitted"}\n')
    rotated.chmod(0o640)
    audit = Audit(file, lambda: 1_790_000_000_000_000)
    for number in range(2 * PROBLEMS_MAX + 5):
        audit.note(Entry("admitted", name=str(number)))
    audit.close()
    config = Config(data_dir=str(tmp_path))
    assert command("verify", "--data-dir", tmp_path).code == 0
    found = check_audit(config)
    assert (found.status, found.values) == ("ok", {"sealed": 45, "unsealed": 1, "cut": 0})
    assert check_private_files(config).status == "ok", "a group may read the log, also a rotated one"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[::2]))
    done = command("verify", "--data-dir", tmp_path)
    assert (done.code, f"{file}, line 2:" in done.text) == (1, True)
    wrong = [each for each in examine(config) if each.check == "audit log"]
    assert [(each.status, "and 2 more" in each.text) for each in wrong] == [("wrong", True)]
