"""Carries out the decisions of a fill machine (`fill_machine`): sends requests to source nodes, finds the root hashes
of missing blocks, passes fetched blocks to the facility. The plugin (`worker`) decides when a block may be passed
on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, ParamSpec, Protocol

import structlog
import trio

from block_node.backfill.fill_machine import FetchedRange, FillMachine
from block_node.backfill.plan import Kind
from block_node.backfill.route_source import RunningFetch
from block_node.backfill.state import BackfillState
from block_node.blocks.errors import Level
from block_node.events import BackfilledBlockNotification, PersistedNotification, VerificationNotification
from block_node.persist.stored_items import find_previous_root

NEEDED_LEVELS = Level.MERKLE | Level.CHAIN
"""The levels that are needed to check a fetched block against the root hash that the next block names."""

P = ParamSpec("P")

logger = structlog.get_logger(__name__)


class Guard(Protocol):
    """The type of `ockam.actors.worker.Context.guard`."""

    def __call__(self, function: Callable[P, None], /) -> Callable[P, None]: ...


class _Listener(NamedTuple):
    grew: Callable[..., None]
    block: Callable[..., None]
    ended: Callable[..., None]


class Filler:
    """Fetches the missing blocks of one kind. `wake` asks the plugin to call `step`.

    Invariant: when `step` returns, `_fetches` has exactly the running requests of the machine.
    """

    def __init__(self, kind: Kind, state: BackfillState, wake: Callable[[], None], guard: Guard) -> None:
        self.machine = FillMachine(kind, state.settings, state.health)
        self._state = state
        self._wake = wake
        self._guard = guard
        self._fetches: dict[int, RunningFetch] = {}
        self._reading: set[int] = set()

    @property
    def busy(self) -> bool:
        return self.machine.busy or bool(self.machine.given_up)

    def step(self, may_deliver: bool) -> BackfilledBlockNotification | None:
        """Checks deadlines, sends requests and passes on at most one block, which it returns."""
        machine, now_s = self.machine, trio.current_time()
        # Deadlines come first: they free requests, and blocks to be fetched again.
        for chunk in machine.late(now_s):
            self.fail(chunk.chunk_id, "it took too long", slow=True)
        for number in machine.overdue(now_s):
            logger.warning("backfilled_block_not_stored_yet", block=number)
        # Cancel requests whose blocks are no longer expected before the same blocks are requested again.
        self._tidy()
        while (fetch := machine.next_fetch(now_s)) is not None:
            self._begin(fetch)
        # Received blocks of history wait for the root hash that they must have.
        for number in machine.wanted_anchors():
            self._find_anchor(number)
        # At most one block a step, so that other workers run between two blocks.
        delivery = machine.next_delivery(now_s) if may_deliver else None
        if delivery is not None:
            self._state.facility.publish(delivery)
        self._tidy()
        return delivery

    def verified(self, notification: VerificationNotification) -> None:
        machine, number = self.machine, notification.block_number
        pending = machine.delivered.get(number)
        if pending is None:
            return
        if notification.success:
            machine.verified(number, notification.previous_root)
        elif not notification.informational:
            self._state.counters.fetch_errors += 1
            logger.error(
                "backfilled_block_refused",
                block=number,
                source=pending.source,
                failure=notification.failure,
                reason=notification.reason,
            )
            machine.refused(number, trio.current_time(), notification.reason)
        elif number not in self._state.store.ever_stored:
            # Nobody is to blame for a block that was verified from another source, or came too early.
            next_number = self._state.verifier.chain.next_number
            if next_number is not None and number < next_number:
                # The node is storing this block, which takes a while on a slow disk. If the block were fetched again
                # and again meanwhile, it would be given up, and all blocks above it, too.
                machine.being_stored(number)
            else:
                machine.put_back(number, notification.reason)

    def persisted(self, notification: PersistedNotification, *, is_backfilled: bool) -> None:
        number = notification.block_number
        if notification.succeeded:
            if self.machine.stored(number) and is_backfilled:
                self._state.counters.blocks_stored += 1
        elif is_backfilled and number in self.machine.delivered:
            self._state.counters.persistence_failures += 1
            self.machine.put_back(number, notification.reason)

    def node_failed(self, reason: str) -> None:
        for number in sorted(self.machine.delivered):
            self.machine.put_back(number, reason)

    def stop(self) -> None:
        self.machine.forget()
        self._tidy()

    def fail(self, chunk_id: int, reason: str, *, lied: bool = False, slow: bool = False) -> None:
        chunk = self.machine.find_awaited(chunk_id)
        if chunk is None:
            return
        self._state.counters.fetch_errors += 1
        logger.warning(
            "backfill_fetch_failed", source=chunk.source, first=chunk.first, last=chunk.last, at=chunk.next_block,
            reason=reason,
        )  # fmt: skip
        self.machine.failed(chunk_id, trio.current_time(), reason, lied=lied, slow=slow)
        self._wake()

    def _begin(self, fetch: FetchedRange) -> None:
        handlers = (self._grew, self._arrived, self.fail)
        listener = _Listener(*(self._guard(partial(handler, fetch.chunk_id)) for handler in handlers))
        logger.debug("backfill_fetch", source=fetch.source, first=fetch.first, last=fetch.last)
        self._fetches[fetch.chunk_id] = self._state.sources[fetch.source].fetch(fetch.first, fetch.last, listener)

    def _grew(self, chunk_id: int, size_bytes: int) -> None:
        # A request that was dropped may still bring bytes.
        if self.machine.find_awaited(chunk_id) is None:
            return
        self._state.counters.fetched_bytes += size_bytes
        if not self.machine.grew(chunk_id, size_bytes):
            self.machine.overflowed(chunk_id)
            self._wake()

    def _arrived(self, chunk_id: int, number: int, items: list[bytes]) -> None:
        if self.machine.find_awaited(chunk_id) is not None:
            self._state.counters.blocks_fetched += 1
            self.machine.arrived(chunk_id, number, items)
            self._wake()

    def _find_anchor(self, number: int) -> None:
        """Finds the root hash that a missing block must have: the next block or the chain names it."""
        # A read of the footer is under way.
        if number in self._reading:
            return
        chain = self._state.verifier.chain
        # Without these levels, the footer of the next block proves nothing.
        if self._state.verifier.settings.levels & NEEDED_LEVELS != NEEDED_LEVELS:
            self.machine.anchored(number, ())
        elif number + 1 in self._state.store.available:
            self._reading.add(number)
            find_previous_root(self._state.store, number + 1, partial(self._anchor_found, number), self._guard)
        elif chain.next_number == number + 1 and chain.previous_root:
            # The last block of the chain can have several possible root hashes until the next block names one.
            self.machine.anchored(number, tuple(each.root for each in chain.open) or (chain.previous_root,))
        else:
            self.machine.not_anchored(number, f"block {number + 1}, which would name its root, is not here")

    def _anchor_found(self, number: int, root: bytes | None, reason: str) -> None:
        self._reading.discard(number)
        if root:
            self.machine.anchored(number, (root,))
        else:
            self.machine.not_anchored(number, f"block {number + 1}, which names its root: {reason or 'names none'}")
        self._wake()

    def _tidy(self) -> None:
        # Requests that the machine has dropped are cancelled at their source.
        for chunk_id in list(self._fetches):
            if self.machine.find_awaited(chunk_id) is None:
                self._fetches.pop(chunk_id).cancel()
        for (first, last), reason in self.machine.given_up:
            self._state.counters.given_up += 1
            self._state.counters.last_given_up = f"blocks {first} to {last} were given up: {reason}"
            kind = self.machine.kind.value
            logger.error("backfill_given_up", kind=kind, first=first, last=last, reason=reason)
        self.machine.given_up.clear()
