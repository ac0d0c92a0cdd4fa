"""The version at which the chain of the tests begins."""

from __future__ import annotations

revision = "0003"
down_revision = None


def upgrade() -> None:
    raise AssertionError("a database that has this version does not get it again")
