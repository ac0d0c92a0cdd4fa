# Generated from block_node/client/publisher.py by tools/generate_blocking.py; do not edit.
"""Publishes blocks to one of several nodes, goes on at another one when that fails, and tells when they are durable.

A block is kept until it is acknowledged, so that it can be sent again; how much is kept is bounded, and `send` waits
for room. A block is durable when the node has stored what this publisher sent, or has a block with the same root
(`comparison`). A session with a node is `publish_session`; the connections are those of the clients.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from block_node.client.blocking.comparison import check_same
from block_node.client.blocking.publish_session import ClientPublishSession, SessionError
from block_node.client.errors import BlockRefused, PublishGaveUp
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publisher_machine import PublisherMachine
from block_node.client.settings import PublishSettings
from stream_client.blocking.client import StreamClient
from stream_client.core.requests import Waiting
from stream_client.errors import (
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_client.shell.backoff import Backoff


class BlockPublisher:
    """See the module; made by `BlockClient.publisher`.

    sessions: the number of sessions that nodes have opened. compared: the number of blocks that the node had without
    this session, and that were compared by their roots.
    Invariant: `_blocks` has exactly the blocks that the machine keeps; there is a session, or a time for the next one,
    while there are blocks.
    """

    def __init__(self, clients: Sequence[StreamClient], settings: PublishSettings) -> None:
        self.sessions = 0
        self.compared = 0
        self._clients = list(clients)
        self._settings = settings
        self._machine = PublisherMachine()
        self._blocks: dict[int, OutgoingBlock] = {}
        self._kept_bytes = 0
        self._changed: Waiting | None = None
        self._failure: SessionError | None = None
        self._refusals: dict[int, int] = {}
        self._progress_s = clients[0].now_s()
        self._backoff = Backoff(settings.reconnect, random.random)
        self._tried = 0
        self._before: int | None = None
        self._session: ClientPublishSession | None = None
        self._planned: Callable[[], None] | None = None

    @property
    def acknowledged(self) -> int | None:
        """The highest block of those given to `send` that is known to be durable, with all given below it."""
        return self._machine.acknowledged

    @property
    def kept(self) -> int:
        """The number of blocks without an acknowledgement."""
        return len(self._blocks)

    def send(self, block: OutgoingBlock) -> None:
        """Have a block published; waits while too much is kept.

        Raises AnotherBlock, BlockNotCompared, BlockRefused, PublishGaveUp, NodeUnreachable, and BlockError where a
        block's file cannot be read.
        """
        settings = self._settings
        # Memory is bounded by this wait: every block that is kept may be asked for again.
        while self._failure is None and (
            len(self._blocks) >= settings.kept_blocks_max
            or (self._blocks and self._kept_bytes + block.size_bytes > settings.kept_bytes_max)
        ):
            self._wait_change()
        self._check()
        # The time without an acknowledgement begins with the first block that waits for one.
        if not self._blocks:
            self._progress_s = self._now_s()
        kept = self._blocks.get(block.number)
        if kept is not None and kept is not block:
            check_same(self._clients[0], block.number, kept, block)
        elif self._machine.add(block.number):
            self._blocks[block.number] = block
            self._kept_bytes += block.size_bytes
            self._go_on()
            self._clients[0].shell.give_way()

    def flush(self) -> None:
        """Wait until every block that was given to `send` is durable. Raises as `send` does."""
        while self._failure is None and self._blocks:
            self._wait_change()
        self._check()

    def close(self) -> None:
        """Nothing more will be sent; the node is told at the end of what is under way."""
        self._unplan()
        if self._session is not None:
            self._session.close()

    def abort(self) -> None:
        """Give up what is under way. The node is told, since it would else wait for the rest of a block."""
        self._unplan()
        if self._session is not None:
            self._session.abort()
            self._session = None

    def _go_on(self) -> None:
        """Send what there is to send, over the session there is, or a new one."""
        if self._session is not None:
            self._session.pump()
        elif self._planned is None:
            self._begin()

    def _begin(self) -> None:
        """Begin a session with the preferred node of those that are connected."""
        self._planned = None
        if not self._blocks or self._failure is not None:
            return
        self._before = self._machine.acknowledged
        give_up_s = self._settings.give_up_s
        patience_s = None if give_up_s is None else max(0.0, self._progress_s + give_up_s - self._now_s())
        try:
            self._session = ClientPublishSession(
                self._clients[0],
                self._machine,
                self._blocks,
                self._settings.answer_s_max,
                on_open=self._opened,
                on_settled=self._forget_settled,
                on_compared=self._note_compared,
                on_end=self._ended,
            )
            self._session.begin(patience_s)
        except ClientError as error:
            # The client has been closed under its publisher.
            self._fail(error)

    def _ended(self, error: SessionError | None) -> None:
        """A session is over: fail, or plan the next one."""
        self._session = None
        # A node that fails stays in the list, behind the others.
        self._clients.append(self._clients.pop(0))
        if isinstance(error, BlockRefused):
            self._count_refusal(error)
        elif isinstance(error, ConnectionLost | NodeUnreachable | RequestTimeout | UnexpectedAnswer):
            self._look_for_patience(error)
        elif error is not None:
            # A block whose source cannot be read is an error of the program that gave it to `send`.
            self._fail(error)
        if error is not None and self._failure is None:
            self._plan()
        self._tell_change()

    def _plan(self) -> None:
        """Begin anew: at once where another node is left to try, else after a delay."""
        self._tried += 1
        delay_s = 0.0
        if self._machine.acknowledged != self._before:
            self._backoff.succeeded()
            self._tried = len(self._clients)
        if self._tried >= len(self._clients):
            self._tried = 0
            delay_s = self._backoff.next_delay_s()
        try:
            self._planned = self._clients[0].shell.call_later(delay_s, self._begin)
        except ClientError as error:
            self._fail(error)

    def _unplan(self) -> None:
        planned, self._planned = self._planned, None
        if planned is not None:
            planned()

    def _opened(self) -> None:
        self.sessions += 1

    def _note_compared(self, number: int) -> None:
        self.compared += 1

    def _forget_settled(self) -> None:
        """Drop the blocks that have become known to be durable; `send` and `flush` may go on."""
        settled = self._machine.take_settled()
        for number in settled:
            self._kept_bytes -= self._blocks.pop(number).size_bytes
            self._refusals.pop(number, None)
        if settled:
            self._progress_s = self._now_s()
            self._tell_change()

    def _count_refusal(self, error: BlockRefused) -> None:
        """Fail where nodes blame the same block too often."""
        number = error.number if error.number is not None else -1
        self._refusals[number] = self._refusals.get(number, 0) + 1
        if self._refusals[number] >= self._settings.refusals_max:
            self._fail(error)
        else:
            self._look_for_patience(ConnectionLost(str(error)))

    def _look_for_patience(self, error: ClientError) -> None:
        """Give up where no block was acknowledged for too long."""
        give_up_s = self._settings.give_up_s
        if give_up_s is None or self._now_s() - self._progress_s < give_up_s:
            return
        if isinstance(error, NodeUnreachable):
            self._fail(error)
        else:
            self._fail(PublishGaveUp(f"no block was acknowledged for {give_up_s:g} s: {error}"))

    def _fail(self, error: SessionError) -> None:
        self._failure = error
        self._tell_change()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _now_s(self) -> float:
        return self._clients[0].now_s()

    def _tell_change(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.finish()

    def _wait_change(self) -> None:
        """Wait until blocks are durable, the publisher has failed, or a session has ended: then at another client."""
        if self._session is None and self._planned is None:
            self._begin()
        if self._changed is None:
            self._changed = Waiting()
        self._clients[0].shell.wait(self._changed)
