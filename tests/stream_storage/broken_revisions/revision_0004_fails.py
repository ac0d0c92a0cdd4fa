"""Delete all messages, then fail."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute("DELETE FROM messages")
    op.execute("INSERT INTO no_such_table VALUES (1)")
