"""One publisher's session as a table: what it may send when, and what the session does about it.

It decides nothing about blocks (`block_node.publish.decision`) and carries nothing (`block_node.publish.session`). An
offered header is two steps: OFFER asks for a verdict, and the verdict is the next input.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class State(enum.Enum):
    """IDLE: a header comes next. RECEIVING: a block is on its way. DISCARDING: what comes before the next header is the
    rest of a block that was refused or taken away, and was sent before the publisher knew. ENDED: nothing counts."""

    IDLE = "idle"
    RECEIVING = "receiving"
    DISCARDING = "discarding"
    ENDED = "ended"


class Input(enum.Enum):
    """What happens. HEADER_AGAIN: of the block that is on its way. BLOCK_END_FOREIGN: with another number."""

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
    """What the session does. CLOSE also returns what is on its way."""

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
"""Whatever is not here cannot happen: the session has those inputs only in the states that they belong to."""


class SessionMachine:
    """A state, the block that is on its way (None where none is), and the next message's number.

    Invariant: `block_number` is set exactly in RECEIVING, between an accepted header and its end.
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self.block_number: int | None = None
        self.next_sequence = 0

    def take(self, happened: Input, block_number: int | None = None) -> Action:
        """Go on by one input. block_number: of the header that was accepted."""
        action, self.state = TRANSITIONS[self.state, happened]
        if happened is Input.ACCEPTED:
            self.block_number = block_number
        elif self.state is not State.RECEIVING:
            self.block_number = None
        return action

    def header(self, block_number: int) -> Action:
        """The header of a block has come."""
        return self.take(Input.HEADER_AGAIN if block_number == self.block_number else Input.HEADER)

    def block_end(self, block_number: int) -> Action:
        """The end of a block has come."""
        foreign = self.state is State.RECEIVING and block_number != self.block_number
        return self.take(Input.BLOCK_END_FOREIGN if foreign else Input.BLOCK_END)

    def in_order(self, sequence: int) -> bool:
        """Whether this message is the next one; False where it came before. Raises MessageMissing."""
        if sequence > self.next_sequence:
            raise MessageMissing(f"message {self.next_sequence} is missing; {sequence} came")
        if sequence < self.next_sequence:
            return False
        self.next_sequence += 1
        return True


class MessageMissing(Exception):
    """A message of the session was lost on its way, so that what follows cannot be used."""
