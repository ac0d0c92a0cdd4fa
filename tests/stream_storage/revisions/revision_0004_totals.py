"""Add a table that is filled from the messages, so that this step reads and writes rows."""

from __future__ import annotations

import sqlalchemy
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "totals",
        sqlalchemy.Column("stream_id", sqlalchemy.Integer, primary_key=True),
        sqlalchemy.Column("size", sqlalchemy.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO totals SELECT stream_id, sum(length(data)) FROM messages GROUP BY stream_id")
