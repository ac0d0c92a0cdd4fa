"""What a chain store has, read by other means: sqlite3, a decoder of its own, and a plain replay of a journal."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from cardinal_streams.payload import CompleteBatch


class Stored(msgspec.Struct):
    """A block as it is on disk."""

    hash: bytes
    parent: bytes
    number: int
    weight: int
    values: dict[str, bytes]
    deletes: list[bytes]


def stored_chain(database: Path) -> list[Stored]:
    """The stored chain, oldest first."""
    with sqlite3.connect(database) as connection:
        states = connection.execute("SELECT data FROM commit_blocks WHERE store = 'chain state'").fetchall()
        rows = connection.execute("SELECT block_id, previous_id, number, data FROM commit_blocks WHERE store = 'chain'")
        blocks = {block_id: (previous, number, data) for block_id, previous, number, data in rows}
    assert len(states) < 2
    at = json.loads(states[0][0])["tip"] if states else None
    found: list[Stored] = []
    while at in blocks:
        at, number, data = blocks[at]
        found.append(decoded(number, data))
    return found[::-1]


def decoded(number: int, data: bytes) -> Stored:
    at = 64

    def uint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def some() -> bytes:
        nonlocal at
        length = uint()
        at += length
        return data[at - length : at]

    weight = int.from_bytes(some(), "big")
    values = {os.fsdecode(some()): some() for _ in range(uint())}
    deletes = [some() for _ in range(uint())]
    assert at == len(data)
    return Stored(data[:32], data[32:64], number, weight, values, deletes)


def text_of(values: dict[str, bytes]) -> str:
    return ascii(sorted(values.items()))


def write_of(
    removed: Sequence[CompleteBatch], added: Sequence[CompleteBatch]
) -> Callable[[sqlite3.Connection], object]:
    """What an indexer keeps in a table of its own: each block that it undid or did, in order, with its contents."""
    rows = [("undo", batch.hash, text_of(batch.values)) for batch in reversed(removed)]
    rows += [("do", batch.hash, text_of(batch.values)) for batch in added]

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS journal (n INTEGER PRIMARY KEY, act TEXT, hash BLOB, what TEXT)")
        connection.executemany("INSERT INTO journal (act, hash, what) VALUES (?, ?, ?)", rows)

    return write


def replayed(database: Path) -> list[tuple[bytes, str]]:
    """The chain that the journal leads to. Raises AssertionError where a row does not fit those before it: a block was
    done twice, or not the newest one was undone, or it was undone with other contents."""
    stack: list[tuple[bytes, str]] = []
    with sqlite3.connect(database) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'journal'").fetchone()[0]:
            return stack
        for act, hash_, what in connection.execute("SELECT act, hash, what FROM journal ORDER BY n"):
            if act == "do":
                assert hash_ not in [each for each, _ in stack]
                stack.append((hash_, what))
            else:
                assert stack.pop() == (hash_, what)
    return stack
