"""The state machine of one publisher's session. A table says which message may come in which state, and which action
follows. Pure.

`block_node.publish.publish_machine` decides about blocks, and `block_node.publish.session` reads the messages. A header
takes two steps: the action OFFER asks for a verdict, and that verdict is the next input.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from block_node.protocol import Piece


class State(enum.Enum):
    """The state of a session. IDLE: the next message is a header. RECEIVING: a block is arriving. DISCARDING: items are
    ignored until the next header; they belong to a block that was refused or taken away, and the publisher sent them
    before it knew. ENDED: all messages are ignored."""

    IDLE = "idle"
    RECEIVING = "receiving"
    DISCARDING = "discarding"
    ENDED = "ended"


class Input(enum.Enum):
    """An event that happens to a session. HEADER_AGAIN: the header of the block that is already arriving.
    BLOCK_END_FOREIGN: the end of another block."""

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
    """The action that follows from an input. CLOSE also gives up the block that is arriving."""

    NOTHING = "nothing"
    OFFER = "offer"
    GIVE_BACK_AND_OFFER = "give back and offer"
    BEGIN = "begin"
    BEGIN_ANEW = "begin anew"
    ADD = "add"
    COMPLETE = "complete"
    COMPLETE_AND_NOTE = "complete and note"
    NOTE = "note"
    DISCARD = "discard"
    REFUSE_REQUEST = "refuse request"
    CLOSE = "close"


class Step(NamedTuple):
    action: Action
    state: State


_IDLE, _RECEIVING, _DISCARDING, _ENDED = State.IDLE, State.RECEIVING, State.DISCARDING, State.ENDED

TRANSITIONS: dict[tuple[State, Input], Step] = {
    (_IDLE, Input.HEADER): Step(Action.OFFER, _IDLE),
    (_IDLE, Input.ACCEPTED): Step(Action.BEGIN, _RECEIVING),
    (_IDLE, Input.REFUSED): Step(Action.NOTHING, _DISCARDING),
    (_IDLE, Input.ITEMS): Step(Action.REFUSE_REQUEST, _ENDED),
    (_IDLE, Input.BLOCK_END): Step(Action.NOTE, _IDLE),
    (_IDLE, Input.STREAM_END): Step(Action.CLOSE, _ENDED),
    (_IDLE, Input.FAULT): Step(Action.CLOSE, _ENDED),
    (_RECEIVING, Input.HEADER): Step(Action.GIVE_BACK_AND_OFFER, _IDLE),
    (_RECEIVING, Input.HEADER_AGAIN): Step(Action.BEGIN_ANEW, _RECEIVING),
    (_RECEIVING, Input.ITEMS): Step(Action.ADD, _RECEIVING),
    (_RECEIVING, Input.BLOCK_END): Step(Action.COMPLETE, _IDLE),
    (_RECEIVING, Input.BLOCK_END_FOREIGN): Step(Action.COMPLETE_AND_NOTE, _IDLE),
    (_RECEIVING, Input.STREAM_END): Step(Action.CLOSE, _ENDED),
    (_RECEIVING, Input.TAKEN_AWAY): Step(Action.NOTHING, _DISCARDING),
    (_RECEIVING, Input.FAULT): Step(Action.CLOSE, _ENDED),
    (_DISCARDING, Input.HEADER): Step(Action.OFFER, _IDLE),
    (_DISCARDING, Input.ITEMS): Step(Action.DISCARD, _DISCARDING),
    (_DISCARDING, Input.BLOCK_END): Step(Action.DISCARD, _IDLE),
    (_DISCARDING, Input.STREAM_END): Step(Action.CLOSE, _ENDED),
    (_DISCARDING, Input.FAULT): Step(Action.CLOSE, _ENDED),
    (_ENDED, Input.HEADER): Step(Action.DISCARD, _ENDED),
    (_ENDED, Input.ITEMS): Step(Action.DISCARD, _ENDED),
    (_ENDED, Input.BLOCK_END): Step(Action.DISCARD, _ENDED),
    (_ENDED, Input.STREAM_END): Step(Action.DISCARD, _ENDED),
    (_ENDED, Input.FAULT): Step(Action.NOTHING, _ENDED),
}
"""The table of a session: for each state and input, the action and the next state. A pair that is not listed cannot
happen."""


class RequestRefused(Exception):
    """Raised for a message that the protocol does not allow here. The stream then ends with INVALID_REQUEST."""


class MessageMissing(Exception):
    """Raised if a message of the session was lost, so that the later messages cannot be used."""


class SessionMachine:
    """The state machine of one session: its state, the number of the arriving block (None if there is none), and the
    number of the next message.

    Invariant: `block_number` is set exactly in RECEIVING, between an accepted header and the end of the block.
    `in_item`, which means that an item has begun and its last piece has not arrived, is true only in RECEIVING
    (`check`).
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self.block_number: int | None = None
        self.in_item = False
        self.next_sequence = 0

    def take(self, happened: Input, block_number: int | None = None) -> Action:
        """Makes one step of the table. block_number: the number in the header, if the input is ACCEPTED."""
        action, self.state = TRANSITIONS[self.state, happened]
        if happened is Input.ACCEPTED:
            self.block_number = block_number
        elif self.state is not State.RECEIVING:
            self.block_number = None
            self.in_item = False
        return action

    def header(self, block_number: int) -> Action:
        """Handles the header of a block. A header also ends an item that has not arrived completely."""
        self.in_item = False
        return self.take(Input.HEADER_AGAIN if block_number == self.block_number else Input.HEADER)

    def items(self, piece: Piece) -> Action:
        """Handles items, the first of which is no header. Raises RequestRefused if they may not come now."""
        begins_item = piece is Piece.WHOLE or piece is Piece.FIRST
        if self.state is State.RECEIVING and begins_item is self.in_item:
            raise RequestRefused("the pieces of an item do not follow each other")
        action = self.take(Input.ITEMS)
        if action is Action.REFUSE_REQUEST:
            raise RequestRefused("items came before a header")
        if action is Action.ADD:
            self.in_item = piece is Piece.FIRST or piece is Piece.MIDDLE
        return action

    def block_end(self, block_number: int) -> Action:
        """Handles the end of a block. Raises RequestRefused if the block ends within an item."""
        if self.in_item:
            raise RequestRefused(f"block {self.block_number} ends in the middle of an item")
        foreign = self.state is State.RECEIVING and block_number != self.block_number
        return self.take(Input.BLOCK_END_FOREIGN if foreign else Input.BLOCK_END)

    def in_order(self, sequence: int) -> bool:
        """Whether this message is the next one. Returns False if it was received before. Raises MessageMissing if an
        earlier message is missing."""
        if sequence > self.next_sequence:
            raise MessageMissing(f"message {self.next_sequence} is missing; {sequence} came")
        if sequence < self.next_sequence:
            return False
        self.next_sequence += 1
        return True

    def check(self) -> None:
        """Checks the invariant."""
        assert (self.block_number is not None) == (self.state is State.RECEIVING)
        assert not self.in_item or self.state is State.RECEIVING


class PublisherState:
    """The machine's state of one publisher. The session writes `is_held` and `used_s`, the publish machine everything
    else.

    wants_roots: whether its acknowledgements name the roots of the blocks. session: the state machine of its session.
    cursor: the block with which the publisher will continue, judged by its messages and our answers. newest_offered:
    the highest block whose header it sent. behind: the last block that it offered, if that block was too high; else
    None. is_held: whether the service does not read from it. used_s: when it last sent something. asked_s: when it was
    last asked to go back.
    """

    __slots__ = (
        "asked_s",
        "behind",
        "cursor",
        "is_held",
        "newest_offered",
        "publisher_id",
        "session",
        "used_s",
        "wants_roots",
    )

    def __init__(self, publisher_id: int, wants_roots: bool, now_s: float) -> None:
        self.publisher_id = publisher_id
        self.wants_roots = wants_roots
        self.session = SessionMachine()
        self.cursor = -1
        self.newest_offered = -1
        self.behind: int | None = None
        self.is_held = False
        self.used_s = self.asked_s = now_s

    def is_idle(self, since_s: float) -> bool:
        """Whether the publisher sends no block, and has sent nothing since `since_s` although it was read."""
        return self.session.block_number is None and not self.is_held and self.used_s <= since_s

    def is_to_be_asked(self, wanted: int, since_s: float) -> bool:
        """Whether the publisher may have the wanted block: it is beyond that block, or it offered that block or a
        higher one and has been silent since `since_s`."""
        is_silent = self.session.block_number is None and max(self.used_s, self.asked_s) <= since_s
        return self.cursor > wanted or (is_silent and self.newest_offered >= wanted)
