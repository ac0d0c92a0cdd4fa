"""What must hold of a block node in every run, checked while it happens and against the log at the end."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from block_node.blocks.generator import GeneratedBlock
from block_node.grpc.messages import known_block, read_message
from block_node.persist.chain_log import ChainLog
from block_node.protocol import PUBLISH, Acknowledgement, DuplicateBlock, SessionOpened, StreamEnded
from block_node.protocol_reading import SUBSCRIBE, SubscribedItems, SubscribeResponse
from block_node.publish.block_machine import BlockInFlight, PublishLimits
from block_node.publish.publish_machine import PublishMachine
from ockam.actors.message import Message
from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt
from tests.simulation.auditor import BrokenPromise
from tests.support.blocks import join_block

EVERYTHING = 1 << 40


class BlockAuditor:
    """Knows the one true chain, sees every answer as it leaves the node, and looks into the database by itself.

    acknowledged: the highest block that a publisher may think is safe, -1 while there is none. checked: how many
    answers that say so were compared with what is committed.
    """

    def __init__(self, chain: Sequence[GeneratedBlock]) -> None:
        self._chain = chain
        self._log = ChainLog("blocks")
        self._session: Session | None = None
        self._in_flight: dict[int, tuple[BlockInFlight, float]] = {}
        self._broken: BrokenPromise | None = None
        self._seen_s = 0.0
        self._acknowledged_before = -1
        self.acknowledged = -1
        self.checked = 0

    def attach(self, session: Session | None) -> None:
        """From now on look through this reading session; None while there is no node."""
        self._session = session
        self._in_flight.clear()

    def leaving(self, message: Message) -> None:
        """An answer leaves the node: what it says is safe must be committed, without a hole, and never go back.

        Nothing is raised here, where the node would take it for a mistake of a worker; `check_answers` does.
        """
        try:
            self._check_answer(message)
        except BrokenPromise as broken:
            self.note(broken)

    def leaving_grpc(self, message: bytes) -> None:
        """As `leaving`, for a `PublishStreamResponse`."""
        response = read_message("PublishStreamResponse", message)
        for kind in ("acknowledgement", "end_stream", "node_behind_publisher"):
            # The largest number says that the node has no block.
            if kind in response and (last := known_block(response[kind].get("block_number", 0))) is not None:
                try:
                    self._check_safe(last, response)
                except BrokenPromise as broken:
                    self.note(broken)

    def note(self, broken: BrokenPromise) -> None:
        """The first one is raised by `check_answers`."""
        self._broken = self._broken or broken

    def check_answers(self) -> None:
        """Every answer so far was true. Raises BrokenPromise."""
        if self._broken is not None:
            raise self._broken

    def _check_answer(self, message: Message) -> None:
        if SUBSCRIBE.is_in(message.payload):
            self._check_given(SUBSCRIBE.decode_response(message.payload))
        if not PUBLISH.is_in(message.payload):
            return
        response = PUBLISH.decode_response(message.payload)
        if isinstance(response, Acknowledgement):
            last = response.block_number
        elif isinstance(response, SessionOpened | StreamEnded | DuplicateBlock):
            said = response.last_block
            last = -1 if said is None else said
        else:
            return
        self._check_safe(last, response)

    def _check_safe(self, last: int, response: object) -> None:
        """All blocks up to `last` were said to be durable."""
        now_s = trio.current_time()
        if now_s > self._seen_s:
            # Answers of one moment leave in any order, since each goes to its own publisher.
            self._seen_s, self._acknowledged_before = now_s, self.acknowledged
        if last < self._acknowledged_before:
            raise BrokenPromise(f"{response} came after block {self._acknowledged_before} was acknowledged")
        self._check_committed(self.acknowledged + 1, last)
        self.acknowledged = max(self.acknowledged, last)
        self.checked += 1

    def _check_given(self, response: SubscribeResponse) -> None:
        """What is given as verified is committed."""
        if isinstance(response, SubscribedItems) and response.verified:
            self._check_committed(response.block_number, response.block_number)

    def check_in_flight(self, machine: PublishMachine, limits: PublishLimits, now_s: float) -> None:
        """No block is anybody's for longer than all its stages may take."""
        machine.check()
        longest_s = limits.block_s_max * 2 + limits.processing_s_max * 3
        known, self._in_flight = self._in_flight, {}
        for block in machine.blocks.all():
            same, since_s = known.get(block.number, (block, now_s))
            since_s = since_s if same is block else now_s
            self._in_flight[block.number] = block, since_s
            if since_s + longest_s < now_s:
                raise BrokenPromise(f"block {block.number} is in flight for {now_s - since_s:g} s")

    def check_none_in_flight(self, machine: PublishMachine) -> None:
        """No publisher is left that could send a block."""
        machine.check()
        if len(machine.blocks):
            raise BrokenPromise(f"the blocks {sorted(machine.blocks)} were forgotten in flight")

    def check_log(self, session: Session, robbed: frozenset[int] = frozenset()) -> None:
        """Everything acknowledged is stored as it was, and nothing else that could be taken for a block. robbed: blocks
        whose bytes somebody took, which nobody may have noticed yet."""
        for each in self._log.state(session).available:
            for number in range(each.first, each.last + 1):
                place = self._log.find(session, number)
                assert place is not None
                try:
                    data = b"".join(self._log.read(session, place, 0, EVERYTHING))
                except DatabaseCorrupt:
                    if number in robbed:
                        continue
                    raise
                if number >= len(self._chain) or data != join_block(self._chain[number].items):
                    raise BrokenPromise(f"block {number} is stored, and is not what was published")
        self._check_stored(session, 0, self.acknowledged)

    def _check_committed(self, first: int, last: int) -> None:
        if self._session is None:
            raise BrokenPromise("an answer came from a node that is dead")
        self._check_stored(self._session, first, last)

    def _check_stored(self, session: Session, first: int, last: int) -> None:
        for number in range(first, last + 1):
            place = self._log.find(session, number)
            if place is None:
                above = any(self._log.find(session, higher) for higher in range(number + 1, last + 1))
                what = "passes a hole" if above else "is not stored"
                raise BrokenPromise(f"block {last} was acknowledged: block {number} {what}")
            if place.root != self._chain[number].root:
                raise BrokenPromise(f"block {number} was acknowledged with another root")
