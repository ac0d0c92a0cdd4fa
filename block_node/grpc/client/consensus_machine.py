"""Decides the steps of a publisher over gRPC, as a consensus node of a Hiero network does. Pure: no trio, no clock.

The reactions follow facts/grpc_peers.md §1.3 and facts/block_node.md §2.7. A block node would not wish all of them: a
consensus node ignores a SkipBlock for another block than the one that it sends, leaves a stream when a second
BehindPublisher counts (`ConsensusLimits`), and bans a node that ends streams too often.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple

import msgspec

from block_node.grpc.messages import NO_BLOCK, WireMessage, block_or_none, known_block
from block_node.protocol import PublisherEndCode, PublishStatus


class ConsensusLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings `blockNode.*` of a consensus node, with their defaults, in seconds.

    - ends_max, ends_within_s: after more EndOfStreams than this within the time, the client stays away for `ban_s`.
    - behinds_max, behinds_within_s: after more BehindPublishers than this within the time, the stream is left.
      behind_ignored_s: after a BehindPublisher that counts, further ones are ignored for this time.
    - slow_acks_max: the stream ends after so many acknowledgements in a row, each over `slow_ack_s` after its block.
    - send_s, sent_bytes_per_s: a message may wait for its window for `send_s`, plus one second for each
      `sent_bytes_per_s` bytes.
      sends_max: how often one block is begun again after such a wait.
    - cool_down_s: the wait before a node that was left is used again. reset_s: the age at which a new stream replaces a
      stream.
    """

    ends_max: int = 5
    ends_within_s: float = 30.0
    behinds_max: int = 1
    behinds_within_s: float = 30.0
    behind_ignored_s: float = 5.0
    slow_ack_s: float = 30.0
    slow_acks_max: int = 5
    send_s: float = 3.0
    sent_bytes_per_s: int = 2 * 1024 * 1024
    sends_max: int = 3
    cool_down_s: float = 15.0
    ban_s: float = 30.0
    reset_s: float = 24 * 3_600.0


class SendPosition(NamedTuple):
    """The block that a stream is sending. attempt: changes when the same block is begun again."""

    block_number: int
    attempt: int


class Move(enum.Enum):
    """How a stream goes on. AFTER: after the block of the message. TO: at the block of the message. ANEW: the block
    that is being sent begins again. LEAVE: the stream ends."""

    STAY = "stay"
    AFTER = "after"
    TO = "to"
    ANEW = "anew"
    LEAVE = "leave"


class CoolDown(enum.Enum):
    NONE = "none"
    BASIC = "basic"
    BAN = "ban"


_RESET, _TIMEOUT, _ERROR = PublisherEndCode.RESET, PublisherEndCode.TIMEOUT, PublisherEndCode.ERROR
_TOO_FAR = PublisherEndCode.TOO_FAR_BEHIND
_STAY, _LEAVE, _BASIC = Move.STAY, Move.LEAVE, CoolDown.BASIC


class Heard(enum.Enum):
    """An event on a stream, with the reaction to it: how the stream goes on, the last message of a stream that is left,
    and the pause after it. The event of a message depends on its block number, the position and the kept blocks."""

    ACKNOWLEDGED = "a block that is not above the position is durable", _STAY
    ACKNOWLEDGED_AHEAD = "a block above the position is durable", Move.AFTER
    SKIPPED = "another one sends the block at the position", Move.AFTER
    SKIPPED_ELSEWHERE = "another one sends another block", _STAY
    WANTED = "the node wants a block that can be sent", Move.TO
    # The node must catch up from another node. The farewell names the earliest and the latest block.
    WANTED_EARLIER = "the node wants a block before all that can be sent", _LEAVE, _TOO_FAR, _BASIC
    WANTED_LATER = "the node wants a block that does not exist yet", _LEAVE, _ERROR, _BASIC
    BEHIND_SOON = "the node is behind, soon after it was", _STAY
    BEHIND_TWICE = "the node is behind too often", _LEAVE, _RESET, _BASIC
    # A consensus node that closes a stream says RESET first.
    ENDED_FOR_NOW = "the node has ended the stream for the sake of one block", _LEAVE, _RESET
    ENDED = "the node has ended the stream", _LEAVE, _RESET, _BASIC
    ENDED_TOO_OFTEN = "the node has ended too many streams", _LEAVE, _RESET, CoolDown.BAN
    UNKNOWN = "the node has said nothing that is known", _STAY
    NOT_SENT = "a message waited too long for its window", Move.ANEW
    NOT_SENT_AGAIN = "messages of one block have waited too often", _LEAVE, _TIMEOUT, _BASIC
    SLOW = "blocks become durable too slowly", _LEAVE, _TIMEOUT, _BASIC
    DAY_OVER = "the stream is a day old, and between two blocks", _LEAVE, _RESET
    LOST = "the connection or the call has failed", _LEAVE, None, _BASIC
    CLOSED = "the publisher has nothing more to send", _LEAVE, _RESET

    def __init__(
        self, text: str, move: Move, farewell: PublisherEndCode | None = None, pause: CoolDown = CoolDown.NONE
    ) -> None:
        self.text = text
        self.move = move
        self.farewell = farewell
        self.pause = pause


_ENDS_FOR_NOW: Final = frozenset(
    (
        PublishStatus.TIMEOUT,
        PublishStatus.DUPLICATE_BLOCK,
        PublishStatus.BAD_BLOCK_PROOF,
        PublishStatus.INVALID_REQUEST,
    )
)


class ConsensusMachine:
    """The blocks that one consensus node has produced, and its present stream to one block node.

    - blocks: the numbers of the blocks that can be sent. acknowledged: the highest block that is durable; None: none.
    - is_open: whether there is a stream. opens_s: when the next stream may be opened.
    - left: why the last stream was left. None before.

    Invariant (`check`): `position` is None exactly while there is no stream, or the next block does not exist yet.
    """

    def __init__(self, limits: ConsensusLimits | None = None) -> None:
        self._limits = limits or ConsensusLimits()
        self._streaming = self._attempt = self._sends = self._slow = 0
        self._opened_s = 0.0
        self._ends: deque[float] = deque()
        self._behinds: deque[float] = deque()
        self._sent_s: dict[int, float] = {}
        self._farewell: PublisherEndCode | None = None
        self.blocks = range(0)
        self.acknowledged: int | None = None
        self.is_open = False
        self.opens_s = 0.0
        self.left: Heard | None = None

    # The blocks.

    def produced(self, number: int) -> None:
        has_begun = self.blocks.stop > 0
        assert not has_begun or number == self.blocks.stop, "blocks come in order"
        self.blocks = range(self.blocks.start if has_begun else number, number + 1)

    def dropped(self, first: int, now_s: float) -> None:
        """Forgets the blocks below `first`, which is a kept block or will be the next one."""
        assert self.blocks.start <= first <= self.blocks.stop
        self.blocks = range(first, self.blocks.stop)
        if self._streaming < first:
            self._react(Heard.WANTED_EARLIER, 0, now_s)

    # The stream.

    @property
    def position(self) -> SendPosition | None:
        """The block that the stream sends now. When this changes, the rest of the earlier block is not sent."""
        if not self.is_open or self._streaming not in self.blocks:
            return None
        return SendPosition(self._streaming, self._attempt)

    def may_open(self, now_s: float) -> bool:
        return not self.is_open and self.blocks.stop > 0 and now_s >= self.opens_s

    def opened(self, now_s: float, next_expected: int | None) -> None:
        """Begins a stream. next_expected: the block that the node expects; None: unknown; NO_BLOCK: any block."""
        assert self.may_open(now_s)
        self.is_open, self.left, self._opened_s = True, None, now_s
        self._slow = self._sends = 0
        self._sent_s.clear()
        self._attempt += 1
        wanted = self.blocks.stop - 1 if next_expected is None else 0 if next_expected == NO_BLOCK else next_expected
        # If the node wants an earlier block, its answers say so, and the farewell then tells the node to catch up.
        self._go_to(max(wanted, self.blocks.start))

    def finished(self, position: SendPosition, now_s: float) -> None:
        """Records that the end of a block was sent. The next block follows, unless an answer has moved the stream."""
        if position != self.position:
            return
        self._sent_s[position.block_number] = now_s
        self._go_to(position.block_number + 1)
        self.tick(now_s)

    def send_s_max(self, size_bytes: int) -> float:
        """Returns how many seconds a message of this size may wait for its window; then `not_sent` must be called."""
        return self._limits.send_s + size_bytes / self._limits.sent_bytes_per_s

    def not_sent(self, now_s: float) -> None:
        """Records that a message waited too long. Its block begins again on this stream, at most `sends_max` times."""
        self._sends += 1
        self._react(Heard.NOT_SENT if self._sends <= self._limits.sends_max else Heard.NOT_SENT_AGAIN, 0, now_s)

    def lost(self, now_s: float) -> None:
        """Records that the connection failed, or that the call ended without an EndOfStream. Safe to repeat."""
        self._react(Heard.LOST, 0, now_s)

    def close(self, now_s: float) -> None:
        self._react(Heard.CLOSED, 0, now_s)

    def tick(self, now_s: float) -> None:
        if self.is_open and now_s >= self._opened_s + self._limits.reset_s:
            self._react(Heard.DAY_OVER, 0, now_s)

    def take(self, response: WireMessage, now_s: float) -> None:
        """Reacts to a `PublishStreamResponse`. A response after the end of its stream is ignored."""
        if not self.is_open:
            return
        kind = next(iter(response), None)
        fields: WireMessage = response[kind] if kind is not None else {}
        number = known_block(fields.get("block_number", 0))
        if kind == "acknowledgement":
            self._react(self._acknowledge(number, now_s), -1 if number is None else number, now_s)
        elif kind == "end_stream":
            self._acknowledge(number, now_s)
            self._react(self._count_end(fields.get("status", 0), now_s), 0, now_s)
        elif kind == "skip_block":
            is_own = number == self._streaming
            self._react(Heard.SKIPPED if is_own else Heard.SKIPPED_ELSEWHERE, self._streaming, now_s)
        elif kind == "resend_block" and number is not None:
            self._react(self._find(number), number, now_s)
        elif kind == "node_behind_publisher":
            # The largest number says that the node has no block.
            wanted = 0 if number is None else number + 1
            self._react(self._count_behind(wanted, now_s), wanted, now_s)
        else:
            self._react(Heard.UNKNOWN, 0, now_s)

    def take_farewell(self) -> WireMessage | None:
        """Returns the last `PublishStreamRequest` of a stream that was left, to send before the half-close. None if
        there is none, or if an earlier call returned it."""
        code, self._farewell = self._farewell, None
        if code is None:
            return None
        end = {"end_code": int(code), "earliest_block_number": self.blocks.start}
        return {"end_stream": {**end, "latest_block_number": block_or_none(self.acknowledged)}}

    def check(self) -> None:
        assert (self.position is None) == (not self.is_open or self._streaming >= self.blocks.stop)
        assert self._farewell is None or not self.is_open

    # Judging an answer.

    def _acknowledge(self, number: int | None, now_s: float) -> Heard:
        if number is None:
            return Heard.ACKNOWLEDGED
        limits = self._limits
        sent_s = self._sent_s.get(number)
        self._sent_s = {each: when_s for each, when_s in self._sent_s.items() if each > number}
        self.acknowledged = number if self.acknowledged is None else max(self.acknowledged, number)
        # Only a block that this stream has sent shows how long the node needs for a block.
        if sent_s is not None:
            self._slow = self._slow + 1 if now_s - sent_s > limits.slow_ack_s else 0
            if self._slow >= limits.slow_acks_max:
                return Heard.SLOW
        return Heard.ACKNOWLEDGED_AHEAD if number > self._streaming else Heard.ACKNOWLEDGED

    def _count_end(self, status: int, now_s: float) -> Heard:
        if _count(self._ends, now_s, self._limits.ends_within_s) > self._limits.ends_max:
            return Heard.ENDED_TOO_OFTEN
        return Heard.ENDED_FOR_NOW if status in _ENDS_FOR_NOW else Heard.ENDED

    def _count_behind(self, wanted: int, now_s: float) -> Heard:
        limits, behinds = self._limits, self._behinds
        if behinds and now_s < behinds[-1] + limits.behind_ignored_s:
            return Heard.BEHIND_SOON
        if _count(behinds, now_s, limits.behinds_within_s) > limits.behinds_max:
            return Heard.BEHIND_TWICE
        return self._find(wanted)

    def _find(self, number: int) -> Heard:
        if number >= self.blocks.stop:
            return Heard.WANTED_LATER
        return Heard.WANTED if number in self.blocks else Heard.WANTED_EARLIER

    # Reacting.

    def _react(self, heard: Heard, number: int, now_s: float) -> None:
        if not self.is_open:
            return
        move = heard.move
        if move is Move.AFTER:
            self._go_to(number + 1)
        elif move is Move.TO:
            self._go_to(number)
        elif move is Move.ANEW:
            self._attempt += 1
        elif move is Move.LEAVE:
            limits = self._limits
            self.is_open, self.left, self._farewell = False, heard, heard.farewell
            self.opens_s = (
                now_s
                + {CoolDown.NONE: 0.0, CoolDown.BASIC: limits.cool_down_s, CoolDown.BAN: limits.ban_s}[heard.pause]
            )

    def _go_to(self, number: int) -> None:
        # If the wanted block is being sent already, it is sent to its end: only another number begins a block.
        if number != self._streaming:
            self._streaming = number
            self._sends = 0


def _count(times: deque[float], now_s: float, within_s: float) -> int:
    times.append(now_s)
    while times[0] < now_s - within_s:
        times.popleft()
    return len(times)
