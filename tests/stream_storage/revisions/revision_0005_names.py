"""Rename a column and add one, by which Alembic copies the table and replaces it."""

from __future__ import annotations

import sqlalchemy
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("totals", recreate="always") as table:
        table.alter_column("size", new_column_name="size_bytes")
        table.add_column(sqlalchemy.Column("name", sqlalchemy.Text))
    op.execute("UPDATE totals SET name = (SELECT name FROM streams WHERE id = stream_id)")
