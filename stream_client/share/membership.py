"""LeaseMember: requests and renews the leases of one member of a consumer group (`node/lease/1`).

`LeaseClientMachine` decides which partitions the member may process. This module sends the machine's requests on time.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import msgspec

from index_service.extensions import (
    FENCED_SAVE,
    LEASE,
    MARKED_SAVE,
    WAITING_LEASE,
    FencedSave,
    LeaseResponse,
    MarkedResponse,
    MarkedSave,
    SaveResponse,
    SaveStatus,
    WaitingLeaseRequest,
)
from ockam.protocol import Protocol
from stream_client.core.calls import answer_of
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import ClientError, RequestRefused
from stream_client.positions import KnownPosition, OnReset, SavedIndexes, knows_no_marks, nothing
from stream_client.session import Connected
from stream_client.share.lease_machine import LeaseClientMachine

MEMBER_ID_BYTES = 4
"""The size of the random part of a member's name. It differs for two members in one process."""
HOST_CHARACTERS_MAX = 64
NEXT_WAIT_S = 0.05
"""The seconds between an answer and the next request. The node delays the next answer until something changes."""


class LeaseMember:
    """One member of a consumer group. The members of a group share the partitions of a stream under one client id.

    Each consumer needs its own LeaseMember. The member saves positions together with the fence of its lease, a number
    that is higher for each later holder of the partition. So the node can refuse a save by a member that has lost the
    lease. The blocking client renews leases only while the program is inside one of its calls.
    """

    def __init__(self, client: Connected, client_id: str, *, member_id: str | None = None) -> None:
        """client: a StreamClient.
        client_id: the name of the group.
        member_id: a name that no other member of the group has, which `stream-node index list` shows. None: the names
            of this host and process, and a random part.
        """
        self._session = client.session
        self._indexes = SavedIndexes(client, client_id)
        self._machine: LeaseClientMachine | None = None
        self._on_change: Callable[[], None] = nothing
        self._cancel_call: Callable[[], None] = nothing
        self._cancel_timer: Callable[[], None] = nothing
        self._left = False
        # Whether the node knows requests that wait, and saves with marks. An older node can follow after a reconnect.
        self._knows_waits = self._knows_marks = True
        self._wait_s = self._asked_s = 0.0
        self._error: ClientError | None = None
        self.client_id = client_id
        # No other member has the same host, process and random part.
        own_id = f"{socket.gethostname()[:HOST_CHARACTERS_MAX]}:{os.getpid()}:{secrets.token_hex(MEMBER_ID_BYTES)}"
        self.member_id = own_id if member_id is None else member_id

    def __repr__(self) -> str:
        return f"<LeaseMember {self.member_id!r} of {self.client_id!r}, {self.members} members>"

    @property
    def members(self) -> int:
        """The number of members of the group. 0 before the node's first answer."""
        return 0 if self._machine is None else self._machine.members

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None:
        """Joins the group of a stream with this number of partitions: requests leases, and renews those that it gets.
        `on_change` is called when the result of `check` has perhaps changed."""
        assert self._machine is None, "a member joins once"
        # Request ids begin at the time, so they are higher than those of an earlier process with the same member id.
        self._machine = LeaseClientMachine(
            self.client_id, stream_name, self.member_id, partitions, request_id=time.time_ns() // 1000
        )
        self._on_change = on_change
        self.renew()

    def grow(self, partitions: int) -> None:
        """Requests leases of partitions that were added to the stream. `partitions`: the number of all partitions."""
        if self._machine is not None:
            self._machine.grow(partitions)
            self._renew_in(0.0)

    def renew(self) -> None:
        """Requests or renews leases now. After `join`, a timer calls this method as often as the leases need it."""
        if self._left or self._error is not None or self._machine is None:
            return
        # Only the answer to the latest request counts, so the earlier one need not be sent again.
        self._cancel_call()
        self._asked_s = now_s = self._session.shell.now_s()
        request = self._machine.request(now_s)
        if self._knows_waits:
            self._wait_s = self._machine.wait_s(now_s)
            waiting = WaitingLeaseRequest(**msgspec.structs.asdict(request), wait_ms=round(self._wait_s * 1000))
            self._cancel_call = self._session.ask_nowait(INDEX_SERVICE, WAITING_LEASE, waiting, self._answered)
        else:
            self._cancel_call = self._session.ask_nowait(INDEX_SERVICE, LEASE, request, self._answered)
        self._schedule()

    def check(self) -> tuple[set[int], set[int]]:
        """Returns the leased partitions and those wanted back. Raises the error that ended the membership."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._machine is None:
            return set(), set()
        now_s = self._session.shell.now_s()
        return self._machine.held(now_s), self._machine.asked_back(now_s)

    def find_fence(self, partition: int) -> int | None:
        """Returns the fence of the lease on this partition; None without a lease that is valid by our clock."""
        return None if self._machine is None else self._machine.find_fence(partition, self._session.shell.now_s())

    def give_back(self, partition: int) -> None:
        """Ends the lease on this partition, and informs the node soon, so that another member gets the partition."""
        if self._machine is not None:
            self._machine.give_back(partition)
            self._renew_in(0.0)

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Returns the saved index of each of these partitions, in order; 0 for a partition without a saved index."""
        return await self._indexes.load(stream_name, partitions)

    async def resume(self, stream_name: str, partitions: Sequence[int], on_reset: OnReset) -> Sequence[KnownPosition]:
        """Returns the position of each of these partitions with its mark (`SavedIndexes.resume`)."""
        return await self._indexes.resume(stream_name, partitions, on_reset)

    async def begin(self, stream_name: str, partition: int, created_us: int) -> SaveResponse:
        """Does what `SavedIndexes.begin` does, if the lease is valid. Without a valid lease, nothing is saved."""
        fence = self.find_fence(partition)
        if fence is None:
            return SaveResponse(0, SaveStatus.FENCED, 0)
        return await self._indexes.begin(stream_name, partition, created_us, fence)

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Saves the index of each partition in `indexes`, except partitions whose lease has expired. When this method
        returns, the node has answered each save. A refused save ends the lease on the partition."""
        saves = self._saves(stream_name, indexes)
        # All saves are sent before the first wait, so that they take one round trip together.
        calls = [self._session.call(INDEX_SERVICE, protocol, request) for protocol, request in saves]
        try:
            for (protocol, request), call in zip(saves, calls, strict=True):
                self._saved(request, answer_of(await self._session.answered(call), protocol))
        except RequestRefused as error:
            if not knows_no_marks(error):
                raise
            self._knows_marks = False
            await self.save(stream_name, indexes)

    async def leave(self) -> None:
        """Leaves the group: ends all leases and requests no more. Waits for the node's answer. Safe to repeat."""
        if self._machine is not None and not self._left:
            self._end()
            await self._session.ask(
                INDEX_SERVICE, LEASE, self._machine.request(self._session.shell.now_s(), leave=True)
            )

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Sends the same saves as `save`, without waiting for the answers."""
        for protocol, request in self._saves(stream_name, indexes):
            self._session.ask_nowait(INDEX_SERVICE, protocol, request, partial(self._saved, request))

    def leave_nowait(self) -> None:
        """Leaves the group without waiting for the node's answer. If the message is lost, the leases expire later."""
        if self._machine is not None and not self._left:
            self._end()
            request = self._machine.request(self._session.shell.now_s(), leave=True)
            self._session.ask_nowait(INDEX_SERVICE, LEASE, request, lambda answer: None)

    def _answered(self, answer: LeaseResponse | ClientError) -> None:
        if isinstance(answer, ClientError):
            if self._knows_waits and not answer.retriable:
                # An older node does not know requests that wait. After another refusal, the next request fails, too.
                self._knows_waits = False
                self.renew()
            else:
                self._failed(answer)
            return
        assert self._machine is not None
        now_s = self._session.shell.now_s()
        changed = self._machine.answer(answer, now_s)
        # After a change or a delayed answer, the next request is sent soon. Otherwise a node that answers at once would
        # be asked in a loop, for example while this member has not given back the partitions that the node wants.
        waited = now_s >= self._asked_s + self._wait_s / 2 and not self._machine.asked_back(now_s)
        if self._knows_waits and (changed or waited):
            self._renew_in(NEXT_WAIT_S)
        else:
            # The timer follows the time to live in the answer.
            self._schedule()
        if changed:
            self._on_change()

    def _saves(
        self, stream_name: str, indexes: Mapping[int, int]
    ) -> list[tuple[Protocol[FencedSave, SaveResponse], FencedSave]]:
        saves: list[tuple[Protocol[FencedSave, SaveResponse], FencedSave]] = []
        for partition, index in indexes.items():
            fence = self.find_fence(partition)
            if fence is None:
                continue
            marked = self._indexes.request(stream_name, partition, index, fence)
            if marked is not None and self._knows_marks:
                saves.append((cast("Protocol[FencedSave, SaveResponse]", MARKED_SAVE), marked))
            else:
                # An older node does not know the incarnations of streams.
                saves.append((FENCED_SAVE, FencedSave(0, self.client_id, stream_name, partition, index, fence)))
        return saves

    def _saved(self, request: FencedSave, answer: SaveResponse | ClientError) -> None:
        """Handles the answer to a save. If the node refused it, another member has the partition: our lease ends."""
        if isinstance(answer, ClientError):
            if isinstance(request, MarkedSave) and knows_no_marks(answer):
                self._knows_marks = False
                self.save_nowait(request.stream_name, {request.partition: request.index})
            else:
                self._failed(answer)
            return
        assert self._machine is not None
        if isinstance(request, MarkedSave) and isinstance(answer, MarkedResponse):
            self._indexes.answered(request, answer)
        # A later lease of the same partition is not concerned by the refusal of an old fence.
        if answer.status is SaveStatus.FENCED and self.find_fence(request.partition) == request.fence:
            self._machine.give_back(request.partition)
            self._renew_in(0.0)
            self._on_change()

    def _failed(self, error: ClientError) -> None:
        """Ends the membership after an error that is not retriable. After any other, the next renewal is a retry."""
        if not error.retriable:
            self._error = error
            self._on_change()

    def _schedule(self) -> None:
        """Sets the timer to the time when the next request is due or the leases expire, whichever comes first."""
        assert self._machine is not None
        self._renew_in(max(0.0, self._machine.next_due_s() - self._session.shell.now_s()))

    def _renew_in(self, delay_s: float) -> None:
        self._cancel_timer()
        if self._left:
            return
        try:
            self._cancel_timer = self._session.shell.call_later(delay_s, self._due)
        # The client has ended, and the membership with it. Whoever ends the client must not get this error.
        except ClientError as error:
            self._error = error
            self._on_change()

    def _due(self) -> None:
        # The reading loop must drop the partitions at once, and not when the node answers.
        assert self._machine is not None
        if self._machine.has_run_out(self._session.shell.now_s()):
            self._on_change()
        self.renew()

    def _end(self) -> None:
        self._left = True
        self._cancel_call()
        self._cancel_timer()
