"""Membership in a consumer group by leases of a node's index service (`node/lease/1`), for `SharedConsumer`.

`LeaseClientMachine` decides which member has which partition; this module sends its requests and keeps its time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from index_service.extensions import FENCED_SAVE, LEASE, FencedSave, LeaseResponse, SaveResponse, SaveStatus
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import ClientError
from stream_client.positions import SavedIndexes, check_keeps_positions, check_name
from stream_client.session import Session
from stream_client.share.lease_machine import LeaseClientMachine

MEMBER_ID_BYTES = 8


class LeaseMember:
    """One member of a consumer group: of the consumers that share a stream under one client id. For one consumer.

    Positions are saved with the fence of the lease, so that the node refuses a save from a member that has lost the
    lease. The blocking client renews leases inside its calls only.
    """

    def __init__(self, client: Session, client_id: str, *, member_id: str | None = None) -> None:
        """client: a StreamClient. member_id: unique among the members; a random one where none is given."""
        self._session = client
        self._indexes = SavedIndexes(client, client_id)
        self._machine: LeaseClientMachine | None = None
        self._on_change: Callable[[], None] = _nothing
        self._cancel_call: Callable[[], None] = _nothing
        self._cancel_timer: Callable[[], None] = _nothing
        self._left = False
        self._error: ClientError | None = None
        self.client_id = client_id
        self.member_id = secrets.token_hex(MEMBER_ID_BYTES) if member_id is None else member_id

    def __repr__(self) -> str:
        return f"<LeaseMember {self.member_id!r} of {self.client_id!r}, {self.members} members>"

    @property
    def members(self) -> int:
        """How many members share the stream; 0 before the node has told."""
        return 0 if self._machine is None else self._machine.members

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None:
        """Begin to ask for partitions, and renew the leases of those got. on_change: called when `check` has news."""
        assert self._machine is None, "a member joins once"
        self._machine = LeaseClientMachine(
            self.client_id, stream_name, self.member_id, partitions, request_id=time.time_ns() // 1000
        )
        self._on_change = on_change
        self.renew()

    def renew(self) -> None:
        """Ask for the leases now. The member does so by itself as often as its leases need it."""
        if self._left or self._error is not None or self._machine is None:
            return
        self._cancel_call()
        request = self._machine.request(self._session.shell.now_s())
        self._cancel_call = self._session.ask_nowait(INDEX_SERVICE, LEASE, request, self._answered)
        self._schedule()

    def check(self) -> tuple[set[int], set[int]]:
        """The partitions held now, and those of them that are asked back for others.

        Raises the error that ended the membership.
        """
        if self._error is not None:
            raise self._error
        if self._machine is None:
            return set(), set()
        now_s = self._session.shell.now_s()
        return self._machine.held(now_s), self._machine.asked_back(now_s)

    def find_fence(self, partition: int) -> int | None:
        """The fence of the lease that is held now, by this process's clock; None where there is none."""
        return None if self._machine is None else self._machine.find_fence(partition, self._session.shell.now_s())

    def give_back(self, partition: int) -> None:
        """Let another member have the partition; the node is told as soon as there is time."""
        if self._machine is not None:
            self._machine.give_back(partition)
            self._renew_in(0.0)

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none."""
        return await self._indexes.load(stream_name, partitions)

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition. The index of a partition whose lease is over is not saved."""
        requests = self._saves(stream_name, indexes)
        answers = await self._session.ask_all(INDEX_SERVICE, FENCED_SAVE, requests)
        for request, answer in zip(requests, answers, strict=True):
            self._saved(request, answer)

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting."""
        for request in self._saves(stream_name, indexes):
            self._session.ask_nowait(INDEX_SERVICE, FENCED_SAVE, request, partial(self._saved, request))

    async def leave(self) -> None:
        """Give all partitions back and ask for no more. Safe to repeat."""
        if self._machine is not None and not self._left:
            self._end()
            await self._session.ask(
                INDEX_SERVICE, LEASE, self._machine.request(self._session.shell.now_s(), leave=True)
            )

    def leave_nowait(self) -> None:
        """The same without waiting; where the message does not arrive, the leases run out."""
        if self._machine is not None and not self._left:
            self._end()
            request = self._machine.request(self._session.shell.now_s(), leave=True)
            self._session.ask_nowait(INDEX_SERVICE, LEASE, request, lambda answer: None)

    def _answered(self, answer: LeaseResponse | ClientError) -> None:
        """Take over the leases that the node has given, and tell the consumer where they changed."""
        if isinstance(answer, ClientError):
            self._failed(answer)
            return
        assert self._machine is not None
        changed = self._machine.answer(answer, self._session.shell.now_s())
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

    def _saved(self, request: FencedSave, answer: SaveResponse | ClientError) -> None:
        """Give up the lease of a partition whose save the node refused, since another member has it."""
        if isinstance(answer, ClientError):
            self._failed(answer)
            return
        assert self._machine is not None
        if answer.status is SaveStatus.FENCED and self.find_fence(request.partition) == request.fence:
            self._machine.lose(request.partition)
            self._renew_in(0.0)
            self._on_change()

    def _failed(self, error: ClientError) -> None:
        """Go on after an error that a retry may help, since the next renewal is one; any other ends the membership."""
        if not error.retriable:
            self._error = error
            self._on_change()

    def _schedule(self) -> None:
        """Have the timer wake this member when a request is due, or the leases run out."""
        assert self._machine is not None
        self._renew_in(max(0.0, self._machine.next_due_s() - self._session.shell.now_s()))

    def _renew_in(self, delay_s: float) -> None:
        self._cancel_timer()
        if not self._left:
            self._cancel_timer = self._session.shell.call_later(delay_s, self._due)

    def _due(self) -> None:
        assert self._machine is not None
        if self._machine.has_run_out(self._session.shell.now_s()):
            self._on_change()
        self.renew()

    def _end(self) -> None:
        self._left = True
        self._cancel_call()
        self._cancel_timer()


def to_member(session: Session, membership: LeaseMember | str) -> LeaseMember:
    """A membership as it is, or a new member of the group of that name. Raises InvalidArgument."""
    if isinstance(membership, str):
        return LeaseMember(session, check_name(membership))
    return check_keeps_positions(membership)


def _nothing() -> None:
    """Stands in for a timer, a request or a listener that there is not."""
