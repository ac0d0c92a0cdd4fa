"""The service `block_backfill`: reports the missing blocks, the progress and the source nodes, and starts searches."""

from __future__ import annotations

from typing import Any

import msgspec

from block_node.backfill.plan import Kind
from block_node.backfill.protocol import (
    BACKFILL,
    BACKFILL_1,
    BackfillAnswer,
    BackfillAsk,
    BackfillGap,
    BackfillReport,
    source_answers,
)
from block_node.backfill.state import BackfillState
from block_node.backfill.worker import Backfill
from block_node.node import BlockNode
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import AnsweringWorker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import Protocol

BACKFILL_ADDRESS = "block_backfill"
WORKER_ADDRESS = "block_backfill_worker"


class BackfillService:
    def __init__(self, node: Node, blocks: BlockNode, state: BackfillState) -> None:
        self.state = state
        self._node = node
        self._blocks = blocks

    def start(self) -> None:
        """Answers requests at once. The search starts when the node begins to serve publishers."""
        self._node.register([local(BACKFILL_ADDRESS)], lambda: BackfillAnswers(self.state))
        if self.state.is_on:
            self._blocks.when_ready(self._ready)

    def close(self) -> list[Message]:
        """Ends the service, because another node serves the chain now. Returns the requests that were not served."""
        self._node.unregister(local(WORKER_ADDRESS))
        for source in self.state.sources.values():
            source.close()
        return self._node.retire(local(BACKFILL_ADDRESS))

    def _ready(self) -> None:
        self._node.register([local(WORKER_ADDRESS)], lambda: Backfill(self.state))


class BackfillAnswers(AnsweringWorker):
    def __init__(self, state: BackfillState) -> None:
        self._state = state

    def answer(self, message: Message) -> None:
        request = _protocol_of(message).decode_request(message.payload)
        state = self._state
        # The answer does not wait for the search.
        if request.run:
            state.scan_now()
        statistics = state.statistics()
        counters = msgspec.structs.asdict(statistics.counters)
        del counters["last_given_up"]
        eta_s = statistics.eta_s
        unstored = state.store.refusal if statistics.queue else None
        report = BackfillReport(
            request_id=request.request_id,
            state=statistics.state,
            queue=statistics.queue,
            missing=statistics.missing or 0,
            gaps=[BackfillGap(gap.kind is Kind.LIVE_TAIL, gap.first, gap.last) for gap in statistics.gaps],
            held_bytes=statistics.held_bytes,
            under_way=statistics.under_way,
            eta_ms=None if eta_s is None else min(2**53, int(eta_s * 1_000)),
            newest_known=statistics.newest_known,
            sources=source_answers(statistics.sources),
            is_unknown=state.unknown != "",
            disagreements=[f"{each.name}: {each.other_chain}" for each in statistics.sources if each.other_chain],
            problem=f"no block can be stored now: {unstored}" if unstored else statistics.problem,
            **counters,
        )
        if BACKFILL_1.is_in(message.payload):
            answer = BackfillAnswer(**{name: getattr(report, name) for name in BackfillAnswer.__struct_fields__})
            self.reply(message, BACKFILL_1.encode_response(answer))
        else:
            self.reply(message, BACKFILL.encode_response(report))

    def demand(self, message: Message) -> Demand:
        """A search needs the right to operate the node. The right to read its blocks is enough to see the state."""
        starts = _protocol_of(message).decode_request(message.payload).run
        return Demand(Right.OPERATE if starts else Right.OPERATE | Right.BLOCK_READ, self._state.chain)


def _protocol_of(message: Message) -> Protocol[BackfillAsk, Any]:
    return BACKFILL_1 if BACKFILL_1.is_in(message.payload) else BACKFILL
