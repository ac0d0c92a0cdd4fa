"""Gives a consumer that was only named its place in the node's index service. It keeps no positions itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stream_client.errors import InvalidArgument
from stream_client.positions.saved import SavedIndexes
from stream_client.share.leases import LeaseMember

if TYPE_CHECKING:
    from stream_client.client import StreamClient
    from stream_client.consume.consumption import Positions
    from stream_client.share.shared import Membership
    from stream_client.shell.session import Session

P = TypeVar("P")


def to_positions(session: Session, positions: Positions | str) -> Positions:
    """Positions as they are, or those that the node keeps under a name. Raises InvalidArgument."""
    if isinstance(positions, str):
        return SavedIndexes(_requester(session), _checked(positions))
    return check_keeps_positions(positions)


def to_membership(session: Session, membership: Membership | str) -> Membership:
    """A membership as it is, or a new member of the group of that name. Raises InvalidArgument."""
    if isinstance(membership, str):
        return LeaseMember(_requester(session), _checked(membership))
    return check_keeps_positions(membership)


def check_keeps_positions(positions: P) -> P:
    """Raises InvalidArgument for an object that keeps no positions."""
    if not hasattr(positions, "save_nowait"):
        raise InvalidArgument(
            "a consumer takes its name, under which the node keeps how far it came, or an object that keeps positions "
            f"(SavedIndexes, LeaseMember), not {type(positions).__name__}"
        )
    return positions


def _checked(name: str) -> str:
    if not name:
        raise InvalidArgument("the name of a consumer is empty; its position is kept under that name, so choose one")
    return name


def _requester(session: Session) -> StreamClient:
    # Here, since the client makes streams, streams make consumers, and consumers come to this module.
    from stream_client.client import StreamClient

    return StreamClient(session)
