"""Goal: a database that an earlier version of the program wrote opens in this one, with every value as it was given.

Method: databases that are kept in the repository, each with a file that says what real clients gave the node; plain
SQLite reads them, then a node serves them. `tests/vectors/storage/make_version.py` makes them.
"""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from block_node.blocks.items import split_block
from block_node.client.blocking import connect as connect_blocks
from stream_client import FromIndex, Retention, blocking
from stream_client.blocking import SavedIndexes
from stream_node.node.process import NodeProcess
from stream_storage.schema import metadata
from stream_storage.sqlite.database import FILE_NAME
from stream_storage.sqlite.schema import SCHEMA_VERSION
from tests.stream_storage.test_seals import problems_of
from tests.support.backups import stored_streams

VECTORS = Path(__file__).parents[1] / "vectors" / "storage"
VERSIONS = [json.loads(file.read_text()) for file in sorted(VECTORS.glob("version_*.json"))]


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def unpacked(directory: Path, version: int) -> Path:
    directory.mkdir()
    packed = VECTORS / f"version_{version}.sqlite.gz"
    (directory / FILE_NAME).write_bytes(gzip.decompress(packed.read_bytes()))
    return directory


def check_with_sqlite(directory: Path, given: dict[str, Any]) -> None:
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        for name, messages in given["streams"].items():
            stream, _, partition = name.rpartition("/")
            stream_id, first, end = connection.execute(
                "SELECT id, first_index, next_index FROM streams WHERE name = ? AND partition = ?", (stream, partition)
            ).fetchone()
            wanted = [
                (index, bytes_of(row[0]), bytes_of(row[1])) for index, row in enumerate(messages) if row is not None
            ]
            rows = 'SELECT idx, data, "key" FROM messages WHERE stream_id = ? ORDER BY idx'
            assert connection.execute(rows, (stream_id,)).fetchall() == wanted
            assert (first, end) == (messages.count(None), len(messages))
        positions = dict(connection.execute("SELECT client_id, idx FROM saved_indexes WHERE stream_name LIKE 'gr%'"))
        assert positions == given["positions"]
        leases = connection.execute("SELECT partition, fence, holder IS NOT NULL FROM lease_fences ORDER BY partition")
        assert leases.fetchall() == [(int(partition), fence, 1) for partition, fence in given["fences"].items()]
        numbers = [row[0] for row in connection.execute("SELECT number FROM block_index ORDER BY number")]
        assert [str(number) for number in numbers] == list(given["blocks"])
        assert connection.execute("SELECT newest_known FROM backfill_targets").fetchall() == [(9,)]
        assert connection.execute("SELECT idx FROM time_falls").fetchall() == [(1,)]


def test_the_newest_version_is_kept() -> None:
    assert [each["schema_version"] for each in VERSIONS] == list(range(2, SCHEMA_VERSION + 1))
    assert all(file.stat().st_size < 300_000 for file in VECTORS.iterdir())


@pytest.mark.parametrize("given", VERSIONS, ids=lambda given: f"version {given['schema_version']}")
def test_a_node_serves_a_kept_database_with_every_value(tmp_path: Path, given: dict[str, Any]) -> None:
    directory = unpacked(tmp_path / "data", given["schema_version"])
    check_with_sqlite(directory, given)
    assert problems_of(directory) == ()
    with NodeProcess(directory) as node:
        with blocking.connect(node.address) as client:
            for name, messages in given["streams"].items():
                stream, _, partition = name.rpartition("/")
                found = client.get_stream(stream).partitions[int(partition)]
                first = messages.count(None)
                page = (
                    list(found.pull_page(FromIndex(first), len(messages) + 1).messages) if len(messages) > first else []
                )
                headers = [[(each, bytes_of(value)) for each, value in row[2]] for row in messages[first:]]
                assert [[(each.name, each.value) for each in message.headers] for message in page] == headers
                assert [message.data for message in page] == [bytes_of(row[0]) for row in messages[first:]]
                assert [message.key for message in page] == [bytes_of(row[1]) for row in messages[first:]]
            named = client.get_stream("größe/Ω 字").partitions[0]
            assert named.info().retention == Retention(None, 10_000, 10**9)
            for consumer, index in given["positions"].items():
                assert SavedIndexes(client, consumer).get(named.name) == index
            if "numbered/0" in given["streams"]:
                numbered = client.create("numbered")
                with numbered.publisher(publisher_id=b"device", first_number=2) as publisher:
                    pushes = [publisher.push(data) for data in (b"2", b"3")]
                assert [push.index for push in pushes] == [2, 3], "the last message was stored before"
                assert numbered.info().next_index == 4
            events: list[object] = []
            with named.consumer("reader", on_event=events.append) as resumed:
                assert next(iter(resumed)).index == given["positions"]["reader"]
            assert events == []
            assert named.push(b"more") == len(given["streams"]["größe/Ω 字/0"])
        with connect_blocks(node.address) as blocks:
            for number, digest in given["blocks"].items():
                items = split_block(blocks.get(int(number))[2])
                assert sha256(b"".join(bytes(item) for item in items)).hexdigest() == digest
        assert node.stop() == 0
    assert problems_of(directory) == ()
    assert stored_streams(directory)["jobs"] == 5 + 6 + 7
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        # A position of a stream that was there at the upgrade is one of this stream. Later ones say so, or not.
        of_their_stream = connection.execute(
            "SELECT p.created_us = s.created_us FROM saved_indexes p JOIN streams s "
            "ON (s.name, s.partition) = (p.stream_name, p.partition) WHERE client_id = 'größe'"
        )
        assert of_their_stream.fetchall() == [(given["schema_version"] < 3,)]
        there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert there >= {table.name for table in metadata.sorted_tables} - {"commit_blocks"}
    # A database of the newest version is served as it is; every older one is copied first.
    assert len(list(directory.glob("backup-schema-*"))) == (given["schema_version"] < SCHEMA_VERSION)
