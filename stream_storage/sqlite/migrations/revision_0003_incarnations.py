"""Adds to every saved position the incarnation of its stream and a generation. The present stream of that name counts
as the stream of the position, as in programs before this version."""

from __future__ import annotations

import sqlalchemy
from alembic import op

revision = "0003"
down_revision = "0002"

PRESENT = (
    "SELECT streams.created_us FROM streams "
    "WHERE streams.name = saved_indexes.stream_name AND streams.partition = saved_indexes.partition"
)


def upgrade() -> None:
    for name in ("created_us", "generation"):
        op.add_column(
            "saved_indexes", sqlalchemy.Column(name, sqlalchemy.BigInteger, nullable=False, server_default="0")
        )
    op.execute(f"UPDATE saved_indexes SET created_us = COALESCE(({PRESENT}), 0)")
    op.execute("UPDATE saved_indexes SET seal = (seal + 101 * created_us) % 2305843009213693951")
