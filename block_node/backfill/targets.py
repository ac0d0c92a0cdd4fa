"""Stores the highest block that publishers have announced, so that a restarted node knows which blocks it is missing.
The list of missing blocks is computed from it and from the stored blocks."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Table, Text, bindparam, select

from stream_storage.contract import Session
from stream_storage.schema import metadata
from stream_storage.seal import seal_column, seal_of
from stream_storage.statement import compiled, replacing

backfill_targets = Table(
    "backfill_targets",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("newest_known", BigInteger, nullable=False),
    seal_column(),
)
"""The highest announced block of each chain. A chain has a row only if the node ever lacked an announced block."""

_FIND: Final = compiled(
    select(backfill_targets.c.newest_known, backfill_targets.c.seal).where(
        backfill_targets.c.chain == bindparam("chain")
    ),
    "chain",
)
_SAVE: Final = replacing(backfill_targets, "chain")


def load_target(session: Session, chain: str) -> int | None:
    row = session.execute(_FIND, (chain,)).fetchone()
    # A damaged row is ignored, because publishers and source nodes will announce the newest block again.
    sound = row is not None and row[1] == seal_of(backfill_targets.name, (chain, row[0]))
    return row[0] if sound else None


def save_target(session: Session, chain: str, newest_known: int) -> None:
    row = (chain, newest_known)
    session.execute(_SAVE, (*row, seal_of(backfill_targets.name, row)))
