"""The statements that create the tables of a node in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Table
from sqlalchemy.schema import CreateIndex, CreateTable

from stream_storage.postgres.dialect import compile_statement
from stream_storage.schema import messages, metadata, streams
from stream_storage.statement import compiled

SCHEMA_VERSION = 2
"""The version of the tables in PostgreSQL. It rises with every change that shuts older programs out."""

UPGRADES = {
    # The incarnation and the generation of saved positions, as `revision_0003_incarnations` in SQLite.
    2: "ALTER TABLE saved_indexes ADD created_us bigint NOT NULL DEFAULT 0, ADD generation bigint NOT NULL DEFAULT 0; "
    "UPDATE saved_indexes SET created_us = streams.created_us, "
    "seal = (saved_indexes.seal + 101 * streams.created_us) % 2305843009213693951 FROM streams "
    "WHERE streams.name = saved_indexes.stream_name AND streams.partition = saved_indexes.partition",
}
"""The commands that lead to each version from the one before it. They run in one transaction."""
FENCE_ALL = (
    "UPDATE log_writer SET owner = '', epoch = epoch + 1; UPDATE cluster_writers SET owner = '', epoch = epoch + 1"
)
"""Ends the right to write of every node that runs: a node of the version before would write rows of its version."""

LOG_TABLES = {
    "schema_version": "CREATE TABLE schema_version (version bigint NOT NULL)",
    # One row: the node that writes. Every transaction of the node updates the row, so a node that was replaced cannot
    # commit any more, and a new connection can ask which transaction was the last one.
    "log_writer": "CREATE TABLE log_writer (id int PRIMARY KEY CHECK (id = 1), owner text NOT NULL, "
    "epoch bigint NOT NULL, commits bigint NOT NULL) WITH (fillfactor = 50); "
    "INSERT INTO log_writer VALUES (1, '', 0, 0)",
    # One row for each member of a cluster, in place of the row above.
    "cluster_writers": "CREATE TABLE cluster_writers (member bytea PRIMARY KEY, owner text NOT NULL, "
    "epoch bigint NOT NULL, commits bigint NOT NULL) WITH (fillfactor = 50)",
    # Rows of streams change with every append. With room in its page, the new version of a row needs no index entry.
    "streams": "CREATE TABLE streams (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name bytea NOT NULL, "
    "partition bigint NOT NULL, first_index bigint NOT NULL, next_index bigint NOT NULL, size_bytes bigint NOT NULL, "
    "created_us bigint NOT NULL, attributes bytea, seal bigint NOT NULL DEFAULT 0, UNIQUE (name, partition)) "
    "WITH (fillfactor = 50)",
    # Retention deletes as many rows as are appended. These settings let autovacuum free their room as fast, and spread
    # the freezing of rows that are only appended.
    "messages": "CREATE TABLE messages (stream_id bigint NOT NULL, idx bigint NOT NULL, time_us bigint NOT NULL, "
    "checksum bigint NOT NULL, key bytea, headers bytea, data bytea NOT NULL, PRIMARY KEY (stream_id, idx)) "
    "WITH (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_scale_factor = 0.02, "
    "autovacuum_vacuum_cost_delay = 0)",
}
"""The tables of the log, by name, with the columns of `stream_storage.schema`."""


def own_tables(further: Sequence[Table] = ()) -> str:
    """Returns the FROM and WHERE of a query of `pg_class` for the tables of a node. Further conditions can follow."""
    names = sorted({*LOG_TABLES, *metadata.tables, *(table.name for table in further)})
    listed = ", ".join(f"'{name}'" for name in names)
    return f"FROM pg_class WHERE relkind = 'r' AND relname IN ({listed}) AND pg_table_is_visible(oid)"


def create_statements(further: Sequence[Table] = ()) -> dict[str, str]:
    """Returns the statements that create the tables and indexes, by name. A table comes before its indexes. Run only
    those of missing names: even CREATE INDEX IF NOT EXISTS on an existing index waits for the writers of its table."""
    others = [table for table in (*metadata.sorted_tables, *further) if table not in (streams, messages)]
    made = {table.name: compiled(CreateTable(table)) for table in others}
    made |= {
        str(index.name): compiled(CreateIndex(index))
        for table in others
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    }
    return LOG_TABLES | {name: compile_statement(statement).text for name, statement in made.items()}
