# Generated from block_node/client/subscriber.py by tools/generate_blocking.py; do not edit.
"""Receives blocks from one of several nodes, and changes to another node after a failure.

Each block arrives complete and once. A subscription reads only when the program asks for the next event.
"""

from __future__ import annotations

from typing import Final, Self

from block_node.client.errors import SubscriptionRefused
from block_node.client.subscribing import PASSING, AboutBlock, Sourcing, Subscribing, SubscriptionEvent
from block_node.protocol_reading import STATUS, StatusRequest, Subscribe, SubscribeStatus
from stream_client.blocking.client import StreamClient
from stream_client.blocking.session import Conversation
from stream_client.core.pushes import PendingResult
from stream_client.errors import ClientError, RequestRefused, RequestTimeout

SERVICE: Final = "block_subscribe"


class Subscription(Subscribing[StreamClient, Conversation]):
    """An iterator over the events of the requested blocks. It opens further connections after failures."""

    _source: _Source | None

    def begin(self) -> None:
        """Subscribes now, so that no block from this moment on is missed. If this fails, the iteration tries again."""
        try:
            self._source = self._subscribe(self._clients[0])
        except ClientError as error:
            self._problem = error

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SubscriptionEvent:
        """Returns the next event. Raises at once AccessDenied, or SubscriptionRefused if no node can send the blocks.
        Raises other errors, such as NodeUnreachable, after `Reconnect.give_up_s` seconds without a block."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                raise StopIteration
            # One round either returns an event, ends the iteration, or learns why this node cannot go on.
            try:
                if self._problem is not None:
                    problem, self._problem = self._problem, None
                    raise problem
                if self._source is None:
                    self._source = self._subscribe(self._clients[self._at])
                response = self._source.next()
                if response is not None:
                    return self._event(response)
                if not self._has_all:
                    # A node may also end a subscription because the subscription has lasted very long.
                    raise SubscriptionRefused(SubscribeStatus.SUCCESS, self._source.end_reason)
                self._is_over = True
            except PASSING as error:
                withdrawn = self._end_source(error)
                if withdrawn is not None:
                    return withdrawn
                if self._failure is None:
                    self._next_node()
            except ClientError as error:
                self._drop_source()
                self._failure = error

    def close(self) -> None:
        """Ends the subscription, so that the node sends nothing more. Safe to repeat."""
        self._is_over = True
        self._drop_source()
        self._clients[self._at].session.shell.yield_control()

    def _subscribe(self, client: StreamClient) -> _Source:
        """Subscribes at this node, beginning with the next block. Raises ClientError."""
        start = self._find_start(client)
        conversation = client.converse(SERVICE)
        try:
            conversation.opened(self._patience_s())
            self.connections += 1
            request = Subscribe(1, start, self._end, self._early, self._window_bytes)
            source = _Source(conversation, request, self._answer_s_max)
            self._note_start(client.address, source.begin(compress=self._compress), start)
        except BaseException:
            conversation.close()
            raise
        return source

    def _find_start(self, client: StreamClient) -> int | None:
        """Returns the first block to request; None means the next new block. A node that was empty is asked again."""
        if self._next is not None or client.address not in self._found_empty:
            return self._next
        conversation = client.converse("block_status")
        try:
            conversation.opened(self._patience_s())
            status = conversation.ask(STATUS, StatusRequest(1, False), self._answer_s_max)
        finally:
            conversation.close()
        return status.first_available

    def _next_node(self) -> None:
        self._at = (self._at + 1) % len(self._clients)
        if self._at == 0:
            self._clients[0].session.shell.wait(PendingResult(), self._backoff.next_delay_s())


class _Source(Sourcing[Conversation]):
    def begin(self, *, compress: bool) -> int | None:
        """Subscribes at the node. Returns the number of the first block, or None if the node has no blocks."""
        self._conversation.send(self._opening(packs=compress))
        try:
            payload = self._receive(self._answer_s_max)
        except RequestRefused:
            if not compress:
                raise
            # An older node cannot compress, so the client subscribes without compression.
            self._conversation.send(self._opening(packs=False))
            payload = self._receive(self._answer_s_max)
        return self._take_begin(payload)

    def next(self) -> AboutBlock | None:
        """Returns the next message about a block, None after the last one. Raises ClientError."""
        confirmation = self._confirmation()
        if confirmation is not None:
            self._conversation.send(confirmation)
        return self._take(self._receive(None))

    def _receive(self, timeout_s: float | None) -> bytes:
        payload = self._conversation.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"the node has not answered for {self._answer_s_max:g} s")
        return payload
