"""The state machine of one publisher's session: which message is permitted in which state, and which action follows.

The header of a block causes two steps: the first returns OFFER, and the publish machine's answer, ACCEPTED or REFUSED,
is the input of the second.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from block_node.persist.schema import NUMBER_MAX
from block_node.protocol import EndStream, Piece, PublisherEndCode


class SessionState(enum.Enum):
    """The state of a session.

    - IDLE: the next message must be a header. RECEIVING: the items of a block are arriving.
    - DISCARDING: items are ignored until the end of their block or the next header, since the node does not want this
      block.
    - ENDED: all messages are ignored.
    """

    IDLE = "idle"
    RECEIVING = "receiving"
    DISCARDING = "discarding"
    ENDED = "ended"


class Input(enum.Enum):
    """A message from the publisher, or a decision of the node. TAKEN_AWAY: the node does not want the rest of the
    arriving block. FAULT: the node ends the session."""

    HEADER = "header"
    HEADER_AGAIN = "header again"
    ITEMS = "items"
    BLOCK_END = "block end"
    BLOCK_END_FOREIGN = "block end with a foreign number"
    STREAM_END = "stream end"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    TAKEN_AWAY = "taken away"
    FAULT = "fault"


class Action(enum.Enum):
    """The action that follows from an input.

    - OFFER: ask for the verdict on a header. GIVE_BACK_AND_OFFER: give up the arriving block first.
    - BEGIN_ANEW: drop the items of the arriving block and begin the same block again.
    - COMPLETE_AND_NOTE, NOTE: log an unexpected end; COMPLETE_AND_NOTE also completes the block.
    """

    NOTHING = "nothing"
    OFFER = "offer"
    GIVE_BACK_AND_OFFER = "give back and offer"
    BEGIN_ANEW = "begin anew"
    ADD = "add"
    COMPLETE = "complete"
    COMPLETE_AND_NOTE = "complete and note"
    NOTE = "note"
    DISCARD = "discard"
    REFUSE_REQUEST = "refuse request"


class SessionStep(NamedTuple):
    action: Action
    state: SessionState


_IDLE, _RECEIVING, _DISCARDING, _ENDED = SessionState

TRANSITIONS: dict[tuple[SessionState, Input], SessionStep] = {
    # A header asks for the verdict, which is the next input. Items without a header break the protocol.
    (_IDLE, Input.HEADER): SessionStep(Action.OFFER, _IDLE),
    (_IDLE, Input.ACCEPTED): SessionStep(Action.NOTHING, _RECEIVING),
    (_IDLE, Input.REFUSED): SessionStep(Action.NOTHING, _DISCARDING),
    (_IDLE, Input.ITEMS): SessionStep(Action.REFUSE_REQUEST, _ENDED),
    (_IDLE, Input.BLOCK_END): SessionStep(Action.NOTE, _IDLE),
    (_IDLE, Input.STREAM_END): SessionStep(Action.NOTHING, _ENDED),
    (_IDLE, Input.FAULT): SessionStep(Action.NOTHING, _ENDED),
    # Another header gives the arriving block up; the same one begins it again.
    (_RECEIVING, Input.HEADER): SessionStep(Action.GIVE_BACK_AND_OFFER, _IDLE),
    (_RECEIVING, Input.HEADER_AGAIN): SessionStep(Action.BEGIN_ANEW, _RECEIVING),
    (_RECEIVING, Input.ITEMS): SessionStep(Action.ADD, _RECEIVING),
    (_RECEIVING, Input.BLOCK_END): SessionStep(Action.COMPLETE, _IDLE),
    (_RECEIVING, Input.BLOCK_END_FOREIGN): SessionStep(Action.COMPLETE_AND_NOTE, _IDLE),
    (_RECEIVING, Input.STREAM_END): SessionStep(Action.NOTHING, _ENDED),
    (_RECEIVING, Input.TAKEN_AWAY): SessionStep(Action.NOTHING, _DISCARDING),
    (_RECEIVING, Input.FAULT): SessionStep(Action.NOTHING, _ENDED),
    # The publisher sent these items before it received the node's answer. They are discarded up to the next header.
    (_DISCARDING, Input.HEADER): SessionStep(Action.OFFER, _IDLE),
    (_DISCARDING, Input.ITEMS): SessionStep(Action.DISCARD, _DISCARDING),
    (_DISCARDING, Input.BLOCK_END): SessionStep(Action.DISCARD, _IDLE),
    (_DISCARDING, Input.STREAM_END): SessionStep(Action.NOTHING, _ENDED),
    (_DISCARDING, Input.FAULT): SessionStep(Action.NOTHING, _ENDED),
    # Messages that were under way when the stream ended are harmless.
    (_ENDED, Input.HEADER): SessionStep(Action.DISCARD, _ENDED),
    (_ENDED, Input.ITEMS): SessionStep(Action.DISCARD, _ENDED),
    (_ENDED, Input.BLOCK_END): SessionStep(Action.DISCARD, _ENDED),
    (_ENDED, Input.STREAM_END): SessionStep(Action.DISCARD, _ENDED),
    (_ENDED, Input.FAULT): SessionStep(Action.NOTHING, _ENDED),
}
"""For each state and input, the action and the next state. A pair that is not listed cannot happen."""


class InvalidPublishRequest(Exception):
    """The error of a message that the protocol does not permit now. The stream ends with INVALID_REQUEST."""


class MessageMissing(Exception):
    """The error of a session of which a message was lost."""


class SessionMachine:
    """One publisher's session. in_item: whether an item has begun and not ended.

    next_sequence: the number of the next message.

    Invariant (`check`): `block_number` is set exactly in RECEIVING. `in_item` is true only in RECEIVING.
    """

    def __init__(self) -> None:
        self.state = SessionState.IDLE
        self.block_number: int | None = None
        self.in_item = False
        self.next_sequence = 0

    def take(self, happened: Input, block_number: int | None = None) -> Action:
        """Makes one step of the transition table. block_number: comes with ACCEPTED."""
        # A pair that the table does not have is a mistake of this node, and raises KeyError.
        action, self.state = TRANSITIONS[self.state, happened]
        # The number and the pieces belong to the arriving block only.
        if happened is Input.ACCEPTED:
            self.block_number = block_number
        elif self.state is not SessionState.RECEIVING:
            self.block_number = None
            self.in_item = False
        return action

    def header(self, block_number: int) -> Action:
        # A header also ends an item that arrives in pieces and is not complete.
        self.in_item = False
        return self.take(Input.HEADER_AGAIN if block_number == self.block_number else Input.HEADER)

    def items(self, piece: Piece) -> Action:
        """Handles items that do not begin with a header. Raises InvalidPublishRequest."""
        # Between two items, the next piece must begin an item; within an item, it must not.
        begins_item = piece is Piece.WHOLE or piece is Piece.FIRST
        if self.state is SessionState.RECEIVING and begins_item is self.in_item:
            raise InvalidPublishRequest("the pieces of an item do not follow each other")
        action = self.take(Input.ITEMS)
        if action is Action.REFUSE_REQUEST:
            raise InvalidPublishRequest("items came before a header")
        # After a first or middle piece, the rest of the item is still to come.
        if action is Action.ADD:
            self.in_item = piece is Piece.FIRST or piece is Piece.MIDDLE
        return action

    def block_end(self, block_number: int) -> Action:
        """Handles the end of a block. Raises InvalidPublishRequest if the last piece of an item has not arrived."""
        if self.in_item:
            raise InvalidPublishRequest(f"block {self.block_number} ends in the middle of an item")
        # An end with another number still ends the arriving block; the caller logs it.
        foreign = self.state is SessionState.RECEIVING and block_number != self.block_number
        return self.take(Input.BLOCK_END_FOREIGN if foreign else Input.BLOCK_END)

    def in_order(self, sequence: int) -> bool:
        """Whether this message is the next one, not a repeated one. Raises MessageMissing if a message was lost."""
        if sequence > self.next_sequence:
            raise MessageMissing(f"message {self.next_sequence} is missing; {sequence} came")
        if sequence < self.next_sequence:
            return False
        self.next_sequence += 1
        return True

    def check(self) -> None:
        assert (self.block_number is not None) == (self.state is SessionState.RECEIVING)
        assert not self.in_item or self.state is SessionState.RECEIVING


class PublisherStatistics(msgspec.Struct, frozen=True):
    """A connected publisher, see `PublisherState`. block_number: the block that it sends now."""

    publisher_id: int
    peer: str
    block_number: int | None
    newest_offered: int | None
    behind: int | None
    is_held: bool


class PublisherState:
    """The publish machine's knowledge of one publisher. The session writes `is_held` and `used_s`.

    - peer: its protocol and its address, for operators. wants_roots: whether its acknowledgements list root hashes.
    - cursor: the block that it should send next. newest_offered: the highest block whose header it sent. -1 at first.
    - behind: the last block that it offered, if that block was too high for the node; else None.
    - is_held: whether the node has stopped reading from it.
    - used_s, asked_s: the time of its last message, and of the last ResendBlock to it.
    """

    def __init__(self, publisher_id: int, wants_roots: bool, now_s: float, peer: str = "") -> None:
        self.publisher_id = publisher_id
        self.peer = peer
        self.wants_roots = wants_roots
        self.session = SessionMachine()
        self.cursor = -1
        self.newest_offered = -1
        self.behind: int | None = None
        self.is_held = False
        self.used_s = self.asked_s = now_s

    def describe(self) -> PublisherStatistics:
        newest = None if self.newest_offered < 0 else self.newest_offered
        block_number = self.session.block_number
        return PublisherStatistics(self.publisher_id, self.peer, block_number, newest, self.behind, self.is_held)

    def note_end(self, end: EndStream) -> None:
        latest, earliest = end.latest_block, end.earliest_block or 0
        # In the reference block node, the highest unsigned number stands for an unknown block.
        if end.code is PublisherEndCode.TOO_FAR_BEHIND and latest is not None and earliest <= latest <= NUMBER_MAX:
            self.behind = max(latest, -1 if self.behind is None else self.behind)

    def is_idle(self, since_s: float) -> bool:
        """Whether the publisher has been silent since `since_s` and sends no block, although the node reads from it."""
        return self.session.block_number is None and not self.is_held and self.used_s <= since_s

    def is_to_be_asked(self, wanted: int, since_s: float) -> bool:
        """Whether the publisher is past the block `wanted`, or offered it and has been silent since `since_s`."""
        # A publisher that was asked a moment ago may still be on its way back.
        is_silent = self.is_idle(since_s) and self.asked_s <= since_s
        return self.cursor > wanted or (is_silent and self.newest_offered >= wanted)
