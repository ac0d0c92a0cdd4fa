"""What the tests of persistence share: blocks of any bytes, and a database with a chain."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha384
from pathlib import Path

from block_node.persist.chain_log import ChainLog, NewBlock, StoredChain
from block_node.persist.plugin import BlockCollector, prefix_of
from block_node.persist.schema import BlockPlace
from stream_storage.contract import Engine, Session
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.stream_storage.storage_samples import reading, writing
from tests.support.databases import open_database

EVERYTHING = 1 << 40


def items_of(number: int, count: int = 3, size_bytes: int = 20) -> list[bytes]:
    """Items that no other block has; persistence does not look into them."""
    rng = random.Random(number)
    return [rng.randbytes(size_bytes) for _ in range(count)]


def serialized(items: Sequence[bytes]) -> bytes:
    return b"".join(prefix_of(len(item)) + item for item in items)


def root_of(items: Sequence[bytes]) -> bytes:
    """Any 48 bytes that belong to these items."""
    return sha384(serialized(items)).digest()


def block_of(number: int, items: Sequence[bytes] | None = None) -> NewBlock:
    items = items_of(number) if items is None else items
    collector = BlockCollector(number)
    collector.add(items)
    return collector.finish(number, root_of(items), b"behind %d" % number)


def open_chain(database: Engine, log: ChainLog) -> StoredChain:
    with writing(database) as session:
        return log.open(session)[1]


def read_block(session: Session, log: ChainLog, place: BlockPlace) -> bytes:
    found: list[bytes] = []
    while len(found) < place.parts:
        found += log.read(session, place, len(found), EVERYTHING)
    return b"".join(found)


def check_database(path: Path) -> None:
    """Raises AssertionError where the log is not sound."""
    database = open_database(path)
    try:
        with reading(database) as session:
            # Another kind of database has no file that could be verified.
            assert not isinstance(database, Database) or verify(session).problems == ()
    finally:
        database.close()
