"""Goal: no file, whatever is in it, ends a node or a command by an error that nobody expects.

Method: each reader of a file gets texts by which parsers raise errors of many kinds, and good files of which bytes are
changed at random. A real node gets them as its rules and settings, and is told by a signal to read them again.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from block_node.blocks.address_book import AddressBook
from block_node.blocks.errors import AddressBookError
from cardinal_streams.application import parse_application
from cardinal_streams.errors import ApplicationError, PrefixError
from ockam.identity.channel.errors import IdentityFileError
from ockam.identity.channel.identity_file import create_identity, load_identity
from ockam.identity.channel.trust_list import KnownHistories, load_trusted, save_trusted
from ockam.identity.rules.rule_file import RulesError, load_rules
from ockam.identity.rules.tokens import TokenFileError, create_token, load_tokens
from stream_client import blocking
from stream_node.cli.contexts import ContextError, load_contexts
from stream_node.fleet.worker_directory import NOTE_FILE, find_workers
from stream_node.node.clock_note import FILE_NAME as CLOCK_NAME
from stream_node.node.clock_note import read_known, write_note
from stream_node.node.config import ConfigError
from stream_node.node.config_sources import load_config, load_effective
from stream_node.node.process import NodeProcess
from stream_storage.errors import StorageError
from stream_storage.sqlite.backup import MANIFEST_NAME, BackupError, read_manifest
from tests.support.data_dir import overwrite

DEEP = 500
DIGITS = 5_000
HOSTILE = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{" * DEEP,
    b"[" * 100_000,
    b"rule = " + b"[" * DEEP + b"]" * DEEP,
    b"listen = " + b"[" * 90 + b"]" * 90,
    b'{"tokens": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b"rule = " + b"9" * DIGITS,
    b"workers = " + b"9" * DIGITS,
    b"workers = 0x" + b"f" * DIGITS,
    b"[limits.a]\nstreams = 0x" + b"f" * DIGITS,
    b'{"time_us": ' + b"9" * DIGITS + b"}",
    b'{"version": ' + b"9" * DIGITS + b"}",
    b"rule = 2026-99-99",
    b"a = 1e999999999",
    b'"a" = "\\uD800"',
    b'{"nodeAddress": [{"nodeId": "' + b"9" * DIGITS + b'"}]}',
]
CHANGED = 60
"""The number of copies of each good file with changed bytes."""


class Reader(NamedTuple):
    """A reader of files. name: the name of its file. good: makes a good file. errors: what it may raise."""

    name: str
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    good: Callable[[Path], object] = lambda file: None


READERS = [
    Reader(
        "rules.toml",
        load_rules,
        (RulesError,),
        lambda file: file.write_text('[[rule]]\nname = "a"\nwho = ["token:a"]\nmay = ["read"]\non = ["b"]\n'),
    ),
    Reader("tokens.json", load_tokens, (TokenFileError,), lambda file: create_token(file, "name", 1)),
    Reader(
        "node.toml",
        lambda file: load_config({}, file=file, environment={}),
        (ConfigError,),
        lambda file: file.write_text('listen = "127.0.0.1:0"\n[backfill]\nscanIntervalSecs = 5\n'),
    ),
    Reader("node.toml", lambda file: load_effective({}, file=file, environment={}), (ConfigError,)),
    Reader(CLOCK_NAME, lambda file: read_known(file.parent, 1, 2), (), lambda file: write_note(file.parent, 5)),
    Reader("contexts.json", load_contexts, (ContextError,)),
    Reader("book.json", AddressBook.load, (AddressBookError,)),
    Reader(
        "application.toml",
        lambda file: parse_application("name", file.read_text(encoding="utf-8", errors="replace")),
        (ApplicationError, PrefixError),
        lambda file: file.write_text("default_topic = 'a'\n[[prefix]]\npattern = 'b/'\ntopic = 'b'\n"),
    ),
    Reader(
        "identity.json",
        lambda file: load_identity(file, 1_800_000_000),
        (IdentityFileError,),
        lambda file: create_identity(file, 1_800_000_000),
    ),
    Reader(
        "trusted", load_trusted, (IdentityFileError,), lambda file: save_trusted(file, {bytes(range(32)): "a name"})
    ),
    Reader("known", KnownHistories, (IdentityFileError,)),
    Reader(MANIFEST_NAME, lambda file: read_manifest(file.parent), (BackupError, StorageError)),
    Reader(
        NOTE_FILE, lambda file: find_workers(file.parent), (ConfigError,), lambda file: file.write_text("workers = 2")
    ),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_reader_of_a_file_raises_its_own_error(tmp_path: Path, reader: Reader) -> None:
    file = tmp_path / reader.name
    file.parent.mkdir(parents=True, exist_ok=True)
    reader.good(file)
    good = file.read_bytes() if file.exists() else b""
    chosen = random.Random(3)
    changed = []
    for _ in range(CHANGED if good else 0):
        mutable = bytearray(good)
        mutable[chosen.randrange(len(mutable))] ^= 1 << chosen.randrange(8)
        changed.append(bytes(mutable))
    for content in (*HOSTILE, *changed):
        overwrite(file, content)
        file.chmod(0o600)
        with suppress(*reader.errors):
            reader.read(file)


def test_a_node_goes_on_with_damaged_files(tmp_path: Path) -> None:
    """Before, a file of rules with 500 brackets and a signal ended the running node."""
    rules, settings = tmp_path / "rules.toml", tmp_path / "node.toml"
    good = '[[rule]]\nname = "all"\nwho = ["anonymous"]\nmay = ["all"]\non = [""]\n'
    rules.write_text(good)
    settings.write_text(f'access_rules = "{rules}"\n')
    node = NodeProcess(tmp_path / "data", arguments=("--config", str(settings)))
    with node, blocking.connect(node.address) as client:
        stream = client.create("s")
        for number, text in enumerate(("rule = " + "[" * DEEP, "rule = " + "9" * DIGITS)):
            for file, event in ((rules, "rules_not_taken"), (settings, "settings_not_taken")):
                before, known = file.read_text(), node.log_file.read_text().count(event)
                file.write_text(text)
                node.signal(signal.SIGHUP)
                deadline_s = time.monotonic() + 60
                while node.log_file.read_text().count(event) == known:
                    assert time.monotonic() < deadline_s, "nothing was logged"
                    time.sleep(0.02)
                file.write_text(before)
            assert stream.push(b"x") == number
        assert node.stop() == 0
