"""Creates the tables of schema version 1. A new database gets its newest tables from `stream_storage.sqlite.schema`;
this revision serves the tests, which check that all revisions together lead to the same tables."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

TABLES = (
    """CREATE TABLE streams (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,
    partition INTEGER NOT NULL, first_index BIGINT NOT NULL, next_index BIGINT NOT NULL, size_bytes BIGINT NOT NULL,
    created_us BIGINT NOT NULL, attributes BLOB, UNIQUE (name, partition))""",
    """CREATE TABLE messages (stream_id INTEGER NOT NULL, idx BIGINT NOT NULL, time_us BIGINT NOT NULL,
    checksum BIGINT NOT NULL, "key" BLOB, headers BLOB, data BLOB NOT NULL, PRIMARY KEY (stream_id, idx))""",
    """CREATE TABLE saved_indexes (client_id VARCHAR NOT NULL, stream_name VARCHAR NOT NULL,
    partition INTEGER NOT NULL, idx BIGINT NOT NULL, saved_us BIGINT NOT NULL,
    PRIMARY KEY (client_id, stream_name, partition)) WITHOUT ROWID""",
    "CREATE INDEX saved_indexes_by_stream ON saved_indexes (stream_name, client_id, partition)",
    """CREATE TABLE lease_fences (client_id VARCHAR NOT NULL, stream_name VARCHAR NOT NULL,
    partition INTEGER NOT NULL, fence BIGINT NOT NULL, holder VARCHAR, ttl_ms INTEGER NOT NULL,
    PRIMARY KEY (client_id, stream_name, partition)) WITHOUT ROWID""",
    "CREATE TABLE lease_floor (fence BIGINT NOT NULL, PRIMARY KEY (fence))",
    """CREATE TABLE block_chains (chain TEXT NOT NULL, stream_id INTEGER NOT NULL, indexed_to BIGINT NOT NULL,
    blocks BIGINT NOT NULL, size_bytes BIGINT NOT NULL, verifier_state BLOB NOT NULL, PRIMARY KEY (chain))""",
    """CREATE TABLE block_evicted (chain TEXT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL,
    PRIMARY KEY (chain, first))""",
    """CREATE TABLE block_index (chain TEXT NOT NULL, number BIGINT NOT NULL, first_index BIGINT NOT NULL,
    parts INTEGER NOT NULL, items INTEGER NOT NULL, size_bytes BIGINT NOT NULL, root BLOB NOT NULL,
    PRIMARY KEY (chain, number))""",
    "CREATE INDEX block_index_by_place ON block_index (chain, first_index)",
    """CREATE TABLE block_staged (chain TEXT NOT NULL, attempt BIGINT NOT NULL, part INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (chain, attempt, part))""",
    "CREATE TABLE backfill_targets (chain TEXT NOT NULL, newest_known BIGINT NOT NULL, PRIMARY KEY (chain))",
)


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)
