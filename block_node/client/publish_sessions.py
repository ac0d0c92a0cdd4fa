"""BlockPublisher: publishes blocks in sessions, one after another. After a failure, the next session is with another
node. `publish_session` is one session with a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from block_node.blocks.block_reader import BlockReader
from block_node.client.comparison import read_given
from block_node.client.errors import AnotherBlock, BlockRefused, PublishGaveUp
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publish_session import ClientPublishSession, SessionError
from block_node.client.publisher_machine import PublisherMachine
from stream_client.client import StreamClient
from stream_client.core.pushes import PendingResult
from stream_client.errors import (
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
    doubted,
)
from stream_client.session import ClientSession
from stream_client.shell.base_shell import CHANCE, Backoff, Reconnect

ANSWER_S_MAX: Final = 30.0
"""The default time in seconds that a node may take to answer."""


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a publisher.

    - kept_blocks_max: the maximum number of blocks that wait for an acknowledgement. At this number `send` waits.
    - kept_bytes_max: the maximum total size of these blocks in bytes. `send` waits if a further block exceeds it.
    - answer_s_max: if an acknowledgement is due and the node sends nothing for this many seconds, the session ends.
    - give_up_s: the publisher fails if no block is acknowledged, sent or compared for this many seconds. None: never.
    - refusals_max: the publisher fails after this many refusals of one block. With 1 it never sends a refused
      block again.
    - reconnect: the delays between two sessions with nodes.
    """

    kept_blocks_max: int = 150
    kept_bytes_max: int = 256 * 1024 * 1024
    answer_s_max: float = ANSWER_S_MAX
    give_up_s: float | None = None
    refusals_max: int = 1
    reconnect: Reconnect = Reconnect()


class BlockPublisher:
    """Publishes blocks to one of several nodes. `BlockClient.publisher` creates it. A block is durable if the node has
    stored it from this publisher, or has a block with the same root hash.

    sessions: the number of sessions that nodes have opened so far.
    compared: the number of blocks that a node already had and that proved to be the same.
    """

    # Invariant: `_blocks` has exactly the blocks that the machine keeps. While there are blocks, a session exists or is
    # planned.

    def __init__(self, clients: Sequence[StreamClient], settings: PublishSettings) -> None:
        self.sessions = 0
        self.compared = 0
        self._nodes = [client.session for client in clients]
        self._settings = settings
        self._machine = PublisherMachine()
        self._blocks: dict[int, OutgoingBlock] = {}
        self._kept_bytes = 0
        self._changed: PendingResult | None = None
        self._failure: SessionError | None = None
        self._refusals: dict[int, int] = {}
        self._progress_s = self._nodes[0].now_s()
        self._backoff = Backoff(settings.reconnect, CHANCE)
        self._tried = 0
        self._before: int | None = None
        self._session: ClientPublishSession | None = None
        self._planned: Callable[[], None] | None = None
        self._stop_watch: Callable[[], None] | None = None
        self._problem: ClientError | None = None

    @property
    def acknowledged(self) -> int | None:
        """The highest block number up to which all given blocks are known to be durable. None if there is none."""
        return self._machine.acknowledged

    @property
    def kept(self) -> int:
        """The number of blocks that wait for an acknowledgement."""
        return len(self._blocks)

    async def send(self, block: OutgoingBlock) -> None:
        """Gives a block to the publisher. Waits while too many blocks or bytes wait for an acknowledgement.

        Raises AnotherBlock, BlockNotCompared, BlockRefused, PublishGaveUp or NodeUnreachable; BlockError if the file of
        a block cannot be read. The error can concern an earlier block.
        """
        # This wait bounds the memory: every kept block may have to be sent again.
        while self._failure is None and not self._has_room_for(block):
            await self._wait_change()
        self._check()
        # A number can be given twice: the second block must be the same.
        kept = self._blocks.get(block.number)
        if kept is not None and kept is not block:
            await _check_same(self._nodes[0], block.number, kept, block)
        elif self._keep(block):
            await self._nodes[0].shell.yield_control()

    async def flush(self) -> None:
        """Waits until every block given to `send` is durable. Raises the same errors as `send`."""
        while self._failure is None and self._blocks:
            await self._wait_change()
        self._check()

    def close(self) -> None:
        """Accepts no more blocks. The session with the node ends when all given blocks are durable."""
        self._unplan()
        if self._session is not None:
            self._session.close()

    def abort(self) -> None:
        """Stops publishing at once. The node is notified, because otherwise it would wait for the rest of a block."""
        self._unplan()
        if self._session is not None:
            self._session.abort()
            self._session = None

    async def _wait_change(self) -> None:
        if self._session is None and self._planned is None:
            self._begin()
        if self._changed is None:
            self._changed = PendingResult()
        await self._nodes[0].shell.wait(self._changed)

    def _has_room_for(self, block: OutgoingBlock) -> bool:
        settings = self._settings
        return len(self._blocks) < settings.kept_blocks_max and (
            not self._blocks or self._kept_bytes + block.size_bytes <= settings.kept_bytes_max
        )

    def _keep(self, block: OutgoingBlock) -> bool:
        """Keeps a block until it is acknowledged, and begins to send it. Returns False if it is kept already."""
        # The time without an acknowledgement begins with the first kept block.
        if not self._blocks:
            self._progress_s = self._now_s()
        if not self._machine.add(block.number):
            return False
        self._blocks[block.number] = block
        self._kept_bytes += block.size_bytes
        self._go_on()
        return True

    def _go_on(self) -> None:
        if self._session is not None:
            self._session.pump()
        elif self._planned is None:
            self._begin()

    def _begin(self) -> None:
        self._planned = None
        if not self._blocks or self._failure is not None:
            return
        self._before = self._machine.acknowledged
        try:
            if self._stop_watch is None:
                self._watch()
            self._session = ClientPublishSession(
                self._nodes[0],
                self._machine,
                self._blocks,
                self._settings.answer_s_max,
                on_open=self._opened,
                on_settled=self._forget_settled,
                on_compared=self._note_compared,
                on_end=self._ended,
            )
            self._session.begin()
        except ClientError as error:
            # The program has closed the client while its publisher was in use.
            self._fail(error)

    def _ended(self, error: SessionError | None) -> None:
        self._session = None
        # The node moves to the end of the list, so the next session uses another node.
        self._nodes.append(self._nodes.pop(0))
        if isinstance(error, BlockRefused):
            self._count_refusal(error)
        elif isinstance(error, ConnectionLost | NodeUnreachable | RequestTimeout | UnexpectedAnswer):
            self._problem = error
        elif error is not None:
            # A block that cannot be read is an error of the program that gave the block to `send`.
            self._fail(error)
        if error is not None and self._failure is None:
            self._plan()
        self._report_change()

    def _plan(self) -> None:
        self._tried += 1
        delay_s = 0.0
        # Progress at this node starts a new round.
        if self._machine.acknowledged != self._before:
            self._backoff.succeeded()
            self._tried = len(self._nodes)
        if self._tried >= len(self._nodes):
            self._tried = 0
            delay_s = self._backoff.next_delay_s()
        try:
            self._planned = self._nodes[0].shell.call_later(delay_s, self._begin)
        except ClientError as error:
            self._fail(error)

    def _unplan(self) -> None:
        for stop in (self._planned, self._stop_watch):
            if stop is not None:
                stop()
        self._planned = self._stop_watch = None

    def _opened(self) -> None:
        self.sessions += 1

    def _note_compared(self, number: int) -> None:
        self.compared += 1

    def _forget_settled(self) -> None:
        settled = self._machine.take_settled()
        for number in settled:
            self._kept_bytes -= self._blocks.pop(number).size_bytes
            self._refusals.pop(number, None)
        if settled:
            self._progress_s, self._problem = self._now_s(), None
            self._report_change()

    def _count_refusal(self, error: BlockRefused) -> None:
        number = error.number if error.number is not None else -1
        self._refusals[number] = self._refusals.get(number, 0) + 1
        if self._refusals[number] >= self._settings.refusals_max:
            self._fail(error)
        else:
            self._problem = ConnectionLost(str(error))

    def _watch(self) -> None:
        """Fails when no block was acknowledged, sent or compared for `give_up_s` seconds, with the last error."""
        give_up_s, session, problem = self._settings.give_up_s, self._session, self._problem
        self._stop_watch = None
        if give_up_s is None or not self._blocks or self._failure is not None:
            return
        moved_s = self._progress_s if session is None else max(self._progress_s, session.moved_s)
        left_s = moved_s + give_up_s - self._now_s()
        if left_s > 0:
            self._stop_watch = self._nodes[0].shell.call_later(left_s, self._watch)
            return
        if problem is None and session is not None:
            problem = session.awaited()
        if isinstance(problem, NodeUnreachable):
            self._fail(problem)
        else:
            self._fail(PublishGaveUp(f"no block was acknowledged for {give_up_s:g} s: {problem}"))

    def _fail(self, error: SessionError) -> None:
        # RequestRefused refuses the next session, for example after a change of the node's rules. The node may have
        # stored blocks of earlier sessions.
        self._failure = doubted(error) if self.sessions and isinstance(error, RequestRefused) else error
        self._report_change()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _now_s(self) -> float:
        return self._nodes[0].now_s()

    def _report_change(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.finish()


async def _check_same(session: ClientSession, number: int, one: OutgoingBlock, other: OutgoingBlock) -> None:
    """Raises AnotherBlock if two blocks of the program with the same number differ, BlockError if one is incomplete."""
    first, second = await _read(session, one), await _read(session, other)
    if first.roots != second.roots:
        raise AnotherBlock(number, first.roots[0].root, second.roots, None)


async def _read(session: ClientSession, block: OutgoingBlock) -> BlockReader:
    reading = read_given(block)
    while isinstance(given := next(reading), int):
        # A large block takes seconds to read, so the client sends and receives between the chunks.
        await session.shell.yield_control()
    return given
