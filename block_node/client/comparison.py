"""Compares blocks that the program wants to publish with the blocks that a node already has. It publishes nothing.

Two blocks count as the same if their root hashes are equal: a root hash covers every item except the proofs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from block_node.blocks.block_reader import BlockReader
from block_node.blocks.errors import BlockError, Level
from block_node.blocks.settings import VerifierSettings
from block_node.client.errors import AnotherBlock, BlockNotCompared
from block_node.client.outgoing import OutgoingBlock
from block_node.protocol_reading import GET, BlockPart, GetBlock, GetStatus
from stream_client.errors import ClientError, RequestTimeout, UnexpectedAnswer
from stream_client.session import ClientSession

READING: Final = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE)
"""The checks that a block must pass before its root hash is computed."""
STEP_BYTES: Final = 16 * 1024
"""The bytes of small blocks that one step reads. The node answers the questions of a step during the next step."""


def read_given(block: OutgoingBlock) -> Iterator[int | BlockReader]:
    """Reads and hashes a block in steps. Yields the size of each chunk, then the finished reader. Raises BlockError."""
    reader = BlockReader(block.number, READING)
    for chunk in block.chunks():
        reader.add(chunk.items, chunk.piece)
        yield chunk.size_bytes
    yield reader.finish()


class Comparison:
    """Compares blocks with the node's blocks of the same numbers, in steps, between which the client sends and
    receives. The next block is read before the node has answered.

    on_done: called once for each block, with its number and an error; None: the two blocks are the same.

    Invariant: every block is in `_unread`, in `_asked` (with the function that gives the question up), or done.
    """

    def __init__(
        self,
        session: ClientSession,
        blocks: Sequence[OutgoingBlock],
        stored: Mapping[int, bytes],
        answer_s_max: float,
        on_done: Callable[[int, ClientError | BlockError | None], None],
    ) -> None:
        """`stored` has the root hashes of the node's blocks; empty bytes if the node must be asked."""
        self._session = session
        self._unread = deque(blocks)
        self._stored = stored
        self._answer_s_max = answer_s_max
        self._on_done = on_done
        self._reading: Iterator[int | BlockReader] | None = None
        self._asked: dict[int, Callable[[], None]] = {}
        self._answered_s = session.now_s()
        self._stop_timer: Callable[[], None] | None = None
        self._stop_step = session.shell.call_later(0.0, self._step)

    def cancel(self) -> None:
        self._on_done = lambda number, error: None
        self._unread.clear()
        self._stop_step()
        for forget in self._asked.values():
            forget()
        self._asked.clear()
        self._rest()

    def _step(self) -> None:
        read_bytes = 0
        while self._unread and read_bytes < STEP_BYTES:
            block = self._unread[0]
            if self._reading is None:
                self._reading = read_given(block)
            given: int | BlockReader | BlockError
            # A large block is read over several steps.
            try:
                given = next(self._reading)
            except BlockError as error:
                given = error
            if isinstance(given, int):
                read_bytes += given
                continue
            self._reading = None
            self._unread.popleft()
            if isinstance(given, BlockError):
                self._finish(block.number, given)
            elif stored := self._stored[block.number]:
                self._compare(block.number, given, stored)
            else:
                self._ask(block.number, given, given.size_bytes)
        if self._unread:
            self._stop_step = self._session.shell.call_later(0.0, self._step)

    def _ask(self, number: int, given: BlockReader, offset: int) -> None:
        """Asks the node for the root hash of its block. With an `offset` near the block's end, the answer is small."""
        if not self._asked:
            self._answered_s = self._session.now_s()
        # The question is noted first, and its timer runs: if the client has ended, `_answered` is called at once.
        self._asked[number] = lambda: None
        if self._stop_timer is None:
            self._stop_timer = self._session.shell.call_later(self._answer_s_max, self._look_at_time)
        forget = self._session.ask_nowait(
            "block_get",
            GET,
            GetBlock(1, number, False, offset),
            lambda answer: self._answered(number, given, offset, answer),
        )
        if number in self._asked:
            self._asked[number] = forget

    def _look_at_time(self) -> None:
        left_s = self._answered_s + self._answer_s_max - self._session.now_s() if self._asked else self._answer_s_max
        if left_s > 0:
            self._stop_timer = self._session.shell.call_later(left_s, self._look_at_time)
            return
        self._stop_timer = None
        for number, forget in list(self._asked.items()):
            forget()
            self._finish(
                number, RequestTimeout(f"{self._session.address} has not answered for {self._answer_s_max:g} s")
            )

    def _answered(self, number: int, given: BlockReader, offset: int, answer: BlockPart | ClientError) -> None:
        node = self._session.address
        self._answered_s = self._session.now_s()
        if isinstance(answer, ClientError):
            self._finish(number, answer)
        elif answer.status is GetStatus.INVALID_REQUEST and offset:
            # The stored block is shorter than `offset`, so the next request has the offset 0.
            self._ask(number, given, 0)
        elif answer.status in (GetStatus.NOT_AVAILABLE, GetStatus.NOT_FOUND):
            self._finish(number, BlockNotCompared(number, given.roots, node))
        elif answer.status is not GetStatus.SUCCESS:
            self._finish(number, UnexpectedAnswer(f"{node} cannot read block {number} ({answer.status.name})"))
        else:
            self._compare(number, given, answer.root)

    def _compare(self, number: int, given: BlockReader, stored: bytes) -> None:
        if stored in [each.root for each in given.roots]:
            self._finish(number, None)
        else:
            self._finish(number, AnotherBlock(number, stored, given.roots, self._session.address))

    def _finish(self, number: int, error: ClientError | BlockError | None) -> None:
        self._asked.pop(number, None)
        if not self._asked and not self._unread:
            self._rest()
        self._on_done(number, error)

    def _rest(self) -> None:
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None
