"""Joins the pages of one list that several nodes have in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ockam.protocol import Protocol, ProtocolError

A = TypeVar("A")
T = TypeVar("T")


class PageMissing(Exception):
    """Error: a node has not sent its page of a list. The text is for the one who asked for the list."""


def read_pages(protocol: Protocol[Any, A], payloads: Sequence[bytes] | None, what: str) -> list[A]:
    """Returns the answers of all nodes to one list request.

    payloads: None if a node did not answer. what: the name of the list, for the error. Raises PageMissing.
    """
    if payloads is None:
        raise PageMissing("a worker of this node does not answer; ask again")
    try:
        return [protocol.decode_response(payload) for payload in payloads]
    except ProtocolError as error:
        # One of them has answered with an error.
        raise PageMissing(f"the {what} of a worker cannot be listed: {error}") from error


def join_pages(pages: Sequence[tuple[Sequence[T], bool]], key: Callable[[T], Any], limit: int) -> tuple[list[T], bool]:
    """Joins pages that begin at the same place. Returns the first entries of all together, and whether more follow.

    pages: the entries of each page in order, and whether more follow there. key: the order. limit: the most entries.
    """
    # Behind the end of a page that is not the last one, entries can be missing.
    ends = [key(entries[-1]) for entries, more in pages if more and entries]
    joined = sorted((entry for entries, _ in pages for entry in entries), key=key)
    whole = [entry for entry in joined if not ends or key(entry) <= min(ends)]
    return whole[:limit], bool(ends) or len(whole) > limit
