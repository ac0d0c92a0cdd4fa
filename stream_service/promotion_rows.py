"""Reads and writes the table of promotions: at which addresses this node was reached while it promoted a stream.

The source of a promoted stream becomes a mirror of this node, at its address of that time. If the node starts again at
another address in the middle of the promotion, this table shows that the source follows this node and no other node.
"""

from __future__ import annotations

from sqlalchemy import Column, Integer, String, Table

from stream_storage.contract import Session
from stream_storage.schema import metadata
from stream_storage.seal import seal_column
from stream_storage.sealed_rows import SealedRows

ADDRESSES_MAX = 16
"""The largest number of addresses that one promotion keeps. Each needs a start of the node at a new address."""

promotions = Table(
    "stream_promotions",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("addresses", String, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)
"""`addresses` has the `host:port` of each address of the node, the latest first, separated by spaces."""

_rows = SealedRows(promotions, "the addresses of the promotion of stream {} are not as written")


def list_addresses(session: Session, stream_id: int) -> list[str]:
    """Returns the addresses of this node during the promotion of a stream. Raises DatabaseCorrupt."""
    return [address for _, addresses in _rows.of(session, stream_id) for address in addresses.split()]


def note_address(session: Session, stream_id: int, address: str) -> None:
    """Writes down at which address this node is reached now, in a transaction. Raises DatabaseCorrupt."""
    known = list_addresses(session, stream_id)
    if address not in known:
        _rows.write(session, stream_id, [(stream_id, " ".join([address, *known][:ADDRESSES_MAX]))])


def forget_addresses(session: Session, stream_id: int) -> None:
    _rows.forget(session, stream_id)
