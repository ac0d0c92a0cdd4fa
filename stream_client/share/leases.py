"""Membership in a shared stream by leases of a node's index service (`node/lease/1`), for
`stream_client.SharedConsumer`: who has which partition is `lease_machine`'s business, asking is ours.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from index_service.extensions import FENCED_SAVE, LEASE, FencedSave, LeaseResponse, SaveResponse, SaveStatus
from stream_client.positions.saved import SERVICE, Requester, SavedIndexes
from stream_client.share.lease_machine import LeaseClientMachine

MEMBER_ID_BYTES = 8


class LeaseMember:
    """One member of those that share a stream under one client id; for one consumer.

    Positions are saved with the fence of the lease, so that the node refuses a save from who has lost it.
    """

    def __init__(self, client: Requester, client_id: str, *, member_id: str | None = None) -> None:
        """member_id: unique among the members; a random one where none is given."""
        self._client = client
        self._indexes = SavedIndexes(client, client_id)
        self._machine: LeaseClientMachine | None = None
        self._on_change: Callable[[], None] = _nothing
        self._cancel_call: Callable[[], None] = _nothing
        self._cancel_timer: Callable[[], None] = _nothing
        self._left = False
        self._error: Exception | None = None
        self.client_id = client_id
        self.member_id = secrets.token_hex(MEMBER_ID_BYTES) if member_id is None else member_id

    def __repr__(self) -> str:
        return f"<LeaseMember {self.member_id!r} of {self.client_id!r}, {self.members} members>"

    @property
    def members(self) -> int:
        """How many share the stream, as far as the node has told; 0 before."""
        return 0 if self._machine is None else self._machine.members

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None:
        """Begin to ask for partitions, and keep what is got. on_change: called when `check` has news."""
        assert self._machine is None, "a member joins once"
        self._machine = LeaseClientMachine(
            self.client_id, stream_name, self.member_id, partitions, request_id=time.time_ns() // 1000
        )
        self._on_change = on_change
        self.renew()

    def renew(self) -> None:
        """Ask for the leases now; this happens by itself as often as it must."""
        if self._left or self._error is not None or self._machine is None:
            return
        self._cancel_call()
        request = self._machine.request(self._client.now_s())
        self._cancel_call = self._client.ask_nowait(SERVICE, LEASE, request, self._answered)
        self._schedule()

    def check(self) -> tuple[set[int], set[int]]:
        """The partitions held now, and those of them that are asked back for others. Raises what ended membership."""
        if self._error is not None:
            raise self._error
        if self._machine is None:
            return set(), set()
        now_s = self._client.now_s()
        return self._machine.held(now_s), self._machine.asked_back(now_s)

    def find_fence(self, partition: int) -> int | None:
        """The fence of the lease that is held now, by this process's clock; None where there is none."""
        return None if self._machine is None else self._machine.find_fence(partition, self._client.now_s())

    def give_back(self, partition: int) -> None:
        """Somebody else may have it now; the node is told as soon as there is time."""
        if self._machine is not None:
            self._machine.give_back(partition)
            self._renew_in(0.0)

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none."""
        return await self._indexes.load(stream_name, partitions)

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition. One whose lease is over is not saved, and no longer held."""
        requests = self._saves(stream_name, indexes)
        answers = await self._client.ask_all(SERVICE, FENCED_SAVE, requests)
        for request, answer in zip(requests, answers, strict=True):
            self._saved(request, answer)

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting."""
        for request in self._saves(stream_name, indexes):
            self._client.ask_nowait(SERVICE, FENCED_SAVE, request, partial(self._saved, request))

    async def leave(self) -> None:
        """Give everything back and ask for no more. Safe to repeat."""
        if self._machine is not None and not self._left:
            self._end()
            await self._client.ask(SERVICE, LEASE, self._machine.request(self._client.now_s(), leave=True))

    def leave_nowait(self) -> None:
        """The same without waiting; where it does not arrive, the leases run out."""
        if self._machine is not None and not self._left:
            self._end()
            request = self._machine.request(self._client.now_s(), leave=True)
            self._client.ask_nowait(SERVICE, LEASE, request, lambda answer: None)

    def _answered(self, answer: LeaseResponse | Exception) -> None:
        if isinstance(answer, Exception):
            self._failed(answer)
            return
        assert self._machine is not None
        changed = self._machine.answer(answer, self._client.now_s())
        self._schedule()
        if changed:
            self._on_change()

    def _saves(self, stream_name: str, indexes: Mapping[int, int]) -> list[FencedSave]:
        fences = {partition: self.find_fence(partition) for partition in indexes}
        return [
            FencedSave(0, self.client_id, stream_name, partition, index, fences[partition])
            for partition, index in indexes.items()
            if fences[partition] is not None
        ]

    def _saved(self, request: FencedSave, answer: SaveResponse | Exception) -> None:
        if isinstance(answer, Exception):
            self._failed(answer)
            return
        assert self._machine is not None
        if answer.status is SaveStatus.FENCED and self.find_fence(request.partition) == request.fence:
            self._machine.lose(request.partition)
            self._renew_in(0.0)
            self._on_change()

    def _failed(self, error: Exception) -> None:
        """What may go better the next time is asked again by itself; anything else ends the membership."""
        if not getattr(error, "retriable", False):
            self._error = error
            self._on_change()

    def _schedule(self) -> None:
        """Come back when a request is due, or the leases run out."""
        assert self._machine is not None
        self._renew_in(max(0.0, self._machine.next_due_s() - self._client.now_s()))

    def _renew_in(self, delay_s: float) -> None:
        self._cancel_timer()
        if not self._left:
            self._cancel_timer = self._client.call_later(delay_s, self._due)

    def _due(self) -> None:
        assert self._machine is not None
        if self._machine.has_run_out(self._client.now_s()):
            self._on_change()
        self.renew()

    def _end(self) -> None:
        self._left = True
        self._cancel_call()
        self._cancel_timer()


def _nothing() -> None:
    """There is nothing to cancel, and nobody to tell."""
