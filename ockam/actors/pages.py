"""Asks all nodes of a cluster for their parts of a list, and joins the pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.protocol import Protocol, ProtocolError, failed_payload
from ockam.transport.remote_streams import RemoteStreams

A = TypeVar("A")
T = TypeVar("T")


def ask_all(
    worker: Worker,
    remote_streams: RemoteStreams | None,
    part: Address,
    message: Message,
    protocol: Protocol[Any, A],
    on_answers: Callable[[list[A]], None],
) -> bool:
    """Sends a request that a worker has received to all nodes with a database of their own. Returns False, and does
    nothing, if this node answers alone.

    part: the address at which the worker answers for its own node only.
    on_answers: called with the answers of all nodes. If one answer is missing or an error, the sender gets an error."""
    if remote_streams is None or message.onward_route[0] == part:
        return False

    def joined(payloads: list[bytes] | None) -> None:
        if payloads is None:
            worker.reply(message, failed_payload("a worker of this node does not answer; ask again"))
            return
        try:
            answers = [protocol.decode_response(payload) for payload in payloads]
        except ProtocolError as error:
            worker.reply(message, failed_payload(f"a worker of this node has answered with an error: {error}"))
        else:
            on_answers(answers)

    asked = Message((part,), (), message.payload, message.origin)
    return remote_streams.ask_all(asked, worker.context.guard(joined))


def join_pages(pages: Sequence[tuple[Sequence[T], bool]], key: Callable[[T], Any], limit: int) -> tuple[list[T], bool]:
    """Joins pages that begin at the same entry. Returns the first entries of all together, at most `limit`, and whether
    more follow.

    pages: the entries of each page in order, and whether more follow in it. key: returns the sort key of an entry."""
    # Behind the end of a page that is not the last one, entries can be missing.
    ends = [key(entries[-1]) for entries, more in pages if more and entries]
    joined = sorted((entry for entries, _ in pages for entry in entries), key=key)
    # So only the entries up to the first such end are complete.
    whole = [entry for entry in joined if not ends or key(entry) <= min(ends)]
    return whole[:limit], bool(ends) or len(whole) > limit
