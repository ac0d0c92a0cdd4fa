"""IndexWorker: saves the positions of consumers, and answers requests for them. It keeps the highest saved index.

In the specification's protocols, a request that cannot be decoded gets no answer, as in the real service. A request
beyond a limit, and a get that fails, is answered with `error`. Otherwise, a save gets no answer. A get can create a
position, so its answer waits until the position is on disk. In our own protocols (`index_service.extensions`), every
request gets an answer. The worker does not read streams: it also keeps positions for streams that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
import trio

from index_service import limits, requests
from index_service.accesses import Access, IndexRequests, PositionRow, list_positions, load_positions
from index_service.extensions import (
    LOAD_POSITIONS,
    MARKED_POSITIONS,
    POSITIONS,
    SET_POSITION,
    FencedSave,
    LeaseRequest,
    LeaseResponse,
    LoadedPosition,
    LoadRequest,
    LoadResponse,
    MarkedPosition,
    PositionKey,
    PositionsRequest,
    SaveStatus,
    SetRequest,
    SetResponse,
    WaitingLeaseRequest,
    lease_payload,
    leave_payload,
)
from index_service.fences import FENCES, FencesRequest, FencesResponse, StoredFence, list_fences
from index_service.lease_groups import GroupKey, LeaseGroups, Refusal
from index_service.lease_waits import LeaseWaits
from index_service.member_watch import MemberWatch
from index_service.protocol import Request, SaveIndex, SavePartitionIndex
from index_service.storage import SetPosition, StoredPosition
from ockam.actors.address import local
from ockam.actors.asker import ask_all, join_pages
from ockam.actors.message import Message, reply_to
from ockam.actors.node import Node
from ockam.actors.worker import HandlingFailed, Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.log_rate import LogRate
from ockam.protocol import Protocol, ProtocolError, error_payload, failed_payload
from ockam.transport.forwarding import RemoteStreams
from stream_storage.contract import Do, DoLittle, Session
from stream_storage.errors import DatabaseCorrupt, StorageClosed, StorageError
from stream_storage.runner import Runner

SERVICE_ADDRESSES = ("stream_index_service", "stream_index", "stream_kafka_index")
"""The addresses of the index service: the address in the specification, and two that real clients use."""
PART_ADDRESS = local("index_service_part")
"""The address for list requests of other nodes of the cluster, which join our pages with their own."""

T = TypeVar("T")
Row = TypeVar("Row", PositionRow, StoredFence)

logger = structlog.get_logger(__name__)


class IndexService:
    """The index service: its storage, its leases and its counters. This object survives crashes of the worker.

    now_us: returns the time of the streams, in microseconds since 1970.
    """

    def __init__(
        self,
        storage: Runner,
        now_us: Callable[[], int],
        *,
        lease_limits: limits.LeaseLimits = limits.LEASE_LIMITS,
        remote_streams: RemoteStreams | None = None,
    ) -> None:
        """remote_streams: knows which streams other nodes of a cluster serve; None: this node serves all streams."""
        self.storage = storage
        self.now_us = now_us
        self.node: Node | None = None
        self.remote_streams = remote_streams
        since_s = None if remote_streams is None else partial(_served_since_s, remote_streams)
        clock = trio.current_time
        self.groups = LeaseGroups(storage, lease_limits, now_us=now_us, monotonic_s=clock, served_since_s=since_s)
        self.gets = self.saves = self.ignored = self.failed = 0
        self.refused = self.fenced = self.lists = self.sets = 0
        self.lists_waiting = 0
        self.members = MemberWatch(self.end_member, lease_limits.ttl_s, clock)
        self.write_failure: str | None = None
        self.lines = LogRate()

    def register(self, node: Node, addresses: Sequence[str] = SERVICE_ADDRESSES) -> None:
        self.node = node
        part = (PART_ADDRESS,) if self.remote_streams is not None else ()
        node.register([*map(local, addresses), *part], lambda: IndexWorker(self))

    def end_member(self, message: Message, request: LeaseRequest) -> None:
        """Ends the leases of a member that can send no more requests. `message`: its last request."""
        # This node or another one keeps the leases of the stream, and that node ends them.
        if self.remote_streams is None or not self.is_kept_elsewhere(request.stream_name):
            # A node that fails closes its storage before its connections.
            with suppress(StorageClosed):
                self.groups.leave((request.client_id, request.stream_name), request.member_id)
            return
        # If the member has asked again by another connection, the other node ignores this request with its lower id.
        leave = Message(message.onward_route, message.return_route, leave_payload(request), message.origin)
        self.remote_streams.send(self.remote_streams.home_of(request.stream_name), leave)

    def is_kept_elsewhere(self, stream_name: str) -> bool:
        """Returns whether another node of the cluster keeps the consumers of a stream."""
        return self.remote_streams is not None and self.remote_streams.is_remote(
            self.remote_streams.home_of(stream_name)
        )

    def statistics(self) -> limits.IndexStatistics:
        counts = {name: getattr(self, name) for name in limits.IndexStatistics.__struct_fields__ if name != "leases"}
        return limits.IndexStatistics(**counts, leases=self.groups.statistics())


def _served_since_s(remote_streams: RemoteStreams, stream_name: str) -> float:
    return remote_streams.served_since_s(remote_streams.home_of(stream_name))


class IndexWorker(Worker):
    """Serves the index protocols. Gets and saves that arrive together are one storage operation, which keeps their
    order."""

    def __init__(self, service: IndexService) -> None:
        self._service = service
        self._writing = 0
        self._under_way = 0
        self._sweeps = False

    def started(self) -> None:
        self._waits = LeaseWaits(self._service.groups, self._offer, self.context.call_later)
        self._service.groups.on_move = self._waits.moved
        self._arm_sweep()

    def receive(self, run: Sequence[Message]) -> None:
        # Collect gets and saves until all messages are read, or until a request follows that must not overtake them.
        asked: list[tuple[Message, Request | FencedSave]] = []
        accesses: list[Access] = []
        for position, message in enumerate(run):
            try:
                request, access = self._read(message)
                if self._is_passed_on(message, request):
                    continue
                if access is None:
                    # An operation of its own, which must not overtake the saves that came earlier.
                    self._submit_accesses(asked, accesses)
                    self._serve(message, request)
                else:
                    asked.append((message, request))
                    accesses.append(access)
            except ProtocolError as error:
                self._not_served(message, error)
            except Exception as error:
                # The requests before this one must still be served. The node delivers the requests after it again.
                self._submit_accesses(asked, accesses)
                raise HandlingFailed(position) from error
        self._submit_accesses(asked, accesses)

    def _read(self, message: Message) -> tuple[Any, Access | None]:
        """Decodes a request: a `Request` or an `Extension`. Returns it, and the get or save of a position that it asks
        for, or None. Raises ProtocolError if the request is not valid."""
        if not requests.is_extension(message.payload):
            return requests.read_plain(message.payload)
        request = requests.read_extension(message.payload, self._service.groups.limits.partitions_max)
        return request, requests.access_of(request) if isinstance(request, FencedSave) else None

    def demand(self, message: Message) -> Demand:
        """Returns the right that the sender of this message needs. Raises ProtocolError."""
        request, _ = self._read(message)
        if isinstance(request, FencesRequest):
            return Demand(Right.INDEX, None)
        client_id = request.key.client_id if isinstance(request, SetRequest) else request.client_id
        return Demand(Right.SHARE if isinstance(request, LeaseRequest) else Right.INDEX, client_id)

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        if requests.is_extension(message.payload):
            return error_payload(reason)
        # A save of the specification gets no answer: its sender would take it for the answer to a get.
        is_save = isinstance(requests.read_plain(message.payload)[0], SaveIndex | SavePartitionIndex)
        return None if is_save else error_payload(reason)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason) if requests.is_extension(message.payload) else None

    def _is_passed_on(self, message: Message, request: Any) -> bool:
        """Sends a request to the node of the cluster that keeps the consumers of its stream. Returns False if this
        node keeps them."""
        remote_streams = self._service.remote_streams
        # Every node can answer a list: `_list` asks other nodes for the positions in databases of their own.
        if remote_streams is None or isinstance(request, PositionsRequest):
            return False
        name = request.key.stream_name if isinstance(request, SetRequest) else request.stream_name
        if not self._service.is_kept_elsewhere(name):
            return False
        remote_streams.send(remote_streams.home_of(name), message)
        # The answer comes from the other node, but only this one sees the member's connection end.
        if isinstance(request, LeaseRequest):
            self._service.members.watch(message, request)
        return True

    def _serve(self, message: Message, request: requests.Extension) -> None:
        """Serves a request of our own protocols that is no get or save. Raises ProtocolError if it is refused."""
        groups = self._service.groups
        if isinstance(request, PositionsRequest):
            self._list(message, request)
        elif isinstance(request, LoadRequest):
            self._load(message, request)
        elif isinstance(request, FencesRequest):
            self._list_fences(message, request)
        elif isinstance(request, SetRequest):
            set_done = self._counted(lambda result: self._set_done(message, request, result))
            groups.set_position(request.key, request.index, set_done, _party_of(message))
        elif isinstance(request, LeaseRequest):
            lease_done = self._counted(lambda result: self._lease_done(message, request, result))
            groups.lease(request, lease_done, _party_of(message))
        # The request may have brought the first group, whose members must be removed if they do not renew.
        self._arm_sweep()

    def _submit_accesses(self, asked: list[tuple[Message, Request | FencedSave]], accesses: list[Access]) -> None:
        """Submits the collected gets and saves as one storage operation, and empties both lists."""
        if accesses:
            self._write(tuple(asked), tuple(accesses))
            asked.clear()
            accesses.clear()

    def _write(self, asked: Sequence[tuple[Message, Request | FencedSave]], accesses: Sequence[Access]) -> None:
        # The worker reads no further messages until the write has ended. So a burst of saves waits in the mailbox,
        # whose size is limited.
        self._writing += 1
        self.context.pause()
        done = self.context.guard(lambda operation: self._accesses_done(operation, asked))
        self._service.storage.submit_write(IndexRequests(accesses, self._service.now_us(), on_done=done))

    def _accesses_done(self, operation: IndexRequests, asked: Sequence[tuple[Message, Request | FencedSave]]) -> None:
        self._writing -= 1
        if isinstance(operation.error, DatabaseCorrupt) and len(asked) > 1:
            # The row of one request is damaged. The other requests must not fail with it, so each is written alone.
            for each, access in zip(asked, operation.requests, strict=True):
                self._write((each,), (access,))
            return
        self._tell(operation, asked)
        self._resume()

    def _counted(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Returns the callback of a load, a set or a lease. While UNDER_WAY_MAX of them are under way, further messages
        wait in the mailbox."""
        self._under_way += 1
        if self._under_way >= limits.UNDER_WAY_MAX:
            self.context.pause()

        def ended(result: Any) -> None:
            self._under_way -= 1
            done(result)
            self._resume()

        return self.context.guard(ended)

    def _resume(self) -> None:
        if not self._writing and self._under_way < limits.UNDER_WAY_MAX:
            self.context.resume()

    def _tell(self, operation: IndexRequests, asked: Sequence[tuple[Message, Request | FencedSave]]) -> None:
        if operation.error is not None:
            self._service.failed += len(asked)
            self._service.write_failure = str(operation.error)
            logger.error("index_requests_failed", requests=len(asked), reason=str(operation.error))
            for message, request in asked:
                # A save of the specification gets no answer: its sender would take it for the answer to a get.
                if not isinstance(request, SaveIndex | SavePartitionIndex):
                    self._refuse_later(message, str(operation.error))
            return
        answers = []
        # Each request gets the answer of its own protocol, in the order in which the requests came.
        for place, ((message, request), index) in enumerate(zip(asked, operation.indexes, strict=True)):
            status = SaveStatus.OK
            if place in operation.fenced:
                status = SaveStatus.FENCED
            elif place in operation.reset:
                status = SaveStatus.RESET
            self._service.fenced += status is SaveStatus.FENCED
            if index is None or isinstance(request, FencedSave):
                self._service.saves += status is SaveStatus.OK
                # The write has succeeded, so positions can be saved again.
                self._service.write_failure = None
            else:
                self._service.gets += 1
            if index is not None:
                payload = requests.access_payload(message, request, index, status, operation.generations.get(place, 0))
                answers.append(reply_to(message, message.onward_route[0], payload))
        self.context.send_run(answers)

    def _load(self, message: Message, request: LoadRequest) -> None:
        """Answers with the positions of one client. Only a request that may create positions waits for a write."""
        service = self._service

        def loaded(operation: DoLittle[list[StoredPosition | None]]) -> None:
            if operation.error is not None:
                self._failed(message, operation.error)
                return
            service.gets += len(operation.result)
            positions = [None if each is None else LoadedPosition(*each) for each in operation.result]
            self.reply(message, LOAD_POSITIONS.encode_response(LoadResponse(request.request_id, positions)))

        work = partial(load_positions, request=request, now_us=service.now_us())
        operation = DoLittle(work, self._counted(loaded))
        (service.storage.submit_write if request.creates else service.storage.submit_read)(operation)

    def _list(self, message: Message, request: PositionsRequest) -> None:
        service = self._service
        protocol: Protocol[PositionsRequest, Any] = POSITIONS
        if MARKED_POSITIONS.is_in(message.payload):
            protocol = MARKED_POSITIONS
        # Other nodes may have positions in databases of their own.
        joined = partial(self._join_lists, message, request)
        if ask_all(self, service.remote_streams, PART_ADDRESS, message, protocol, joined):
            return
        limit = min(request.limit, limits.PAGE_POSITIONS_MAX)
        work = partial(list_positions, request=request, limit=limit)
        self._read_page(message, work, partial(self._listed, message, request, limit))

    def _read_page(self, message: Message, work: Callable[[Session], T], on_page: Callable[[T], None]) -> None:
        """Reads rows from the database by `work`, and calls `on_page` with them. Raises ProtocolError if too many
        pages are being read."""
        service = self._service
        if service.lists_waiting >= limits.LISTS_WAITING_MAX:
            raise ProtocolError(f"{limits.LISTS_WAITING_MAX} lists are being read; ask again later")

        def done(operation: Do[T]) -> None:
            service.lists_waiting -= 1
            if operation.error is None:
                on_page(operation.result)
            else:
                self._failed(message, operation.error)

        service.storage.submit_read(Do(work, self.context.guard(done)))
        service.lists_waiting += 1

    def _join_lists(self, message: Message, request: PositionsRequest, pages: list[Any]) -> None:
        positions, more = join_pages(
            [(page.positions, page.more) for page in pages],
            lambda row: (row.client_id, row.stream_name, row.partition),
            min(request.limit, limits.PAGE_POSITIONS_MAX),
        )
        # Each page fits into a frame of the reader, but all of them together may not.
        fits = requests.fitting(positions, requests.page_bytes_max(message))
        more = more or len(fits) < len(positions)
        self.reply(message, requests.list_payload(message, request.request_id, fits, more))

    def _listed(self, message: Message, request: PositionsRequest, limit: int, found: list[PositionRow]) -> None:
        service = self._service
        rows = requests.fitting(found[:limit], requests.page_bytes_max(message))
        more = len(found) > len(rows)
        shown = self._shown(message, rows)
        gate = service.node.gate if service.node is not None else None
        # A client goes on after the last position of a page, so a page without a position would end its list. The next
        # read skips the clients that the sender may not see, whatever the number of their positions.
        if more and rows and not shown and gate is not None:
            following = gate.find_next(message.origin, Right.INDEX, rows[-1].client_id)
            if following is not None:
                after = PositionKey(following, "", -1)
                self._list(message, msgspec.structs.replace(request, after=after))
                return
            more = False
        service.lists += 1
        positions = []
        for row in shown:
            # If another node of the cluster keeps the leases of the stream, the stored holder counts.
            is_elsewhere = service.is_kept_elsewhere(row.stream_name)
            holder = row.holder if is_elsewhere else service.groups.find_holder(row)
            positions.append(MarkedPosition(*row[:5], holder, *row[7:]))
        self.reply(message, requests.list_payload(message, request.request_id, positions, more))

    def _shown(self, message: Message, rows: list[Row]) -> list[Row]:
        """Returns the rows of the clients that the sender may see."""
        gate = self._service.node.gate if self._service.node is not None else None
        return [row for row in rows if gate is None or gate.holds(message.origin, Right.INDEX, row.client_id)]

    def _list_fences(self, message: Message, request: FencesRequest) -> None:
        limit, after = max(1, min(request.limit, limits.PAGE_FENCES_MAX)), request.after
        start = ("", -1) if after is None else (after.client_id, after.partition)

        def listed(found: list[StoredFence]) -> None:
            rows, following = found[:limit], None
            if len(found) > limit:
                following = PositionKey(rows[-1].client_id, request.stream_name, rows[-1].partition)
            response = FencesResponse(request.request_id, self._shown(message, rows), following)
            self.reply(message, FENCES.encode_response(response))

        # One row more than the page holds is read: it shows whether more rows follow.
        work = partial(list_fences, stream_name=request.stream_name, after=start, limit=limit + 1)
        self._read_page(message, work, listed)

    def _set_done(self, message: Message, request: SetRequest, result: SetPosition | Refusal) -> None:
        if isinstance(result, Refusal):
            self._refused(message, result)
            return
        self._service.sets += 1
        key = request.key
        logger.info(
            "index_set" if request.index is not None else "index_forgotten",
            **message.origin.who,
            client_id=key.client_id,
            stream=key.stream_name,
            partition=key.partition,
            index=request.index,
            before=result.before,
        )
        self.reply(message, SET_POSITION.encode_response(SetResponse(request.request_id, result.before)))

    def _lease_done(self, message: Message, request: LeaseRequest, result: LeaseResponse | Refusal) -> None:
        if isinstance(result, LeaseResponse):
            self._service.members.watch(message, request)
            if isinstance(request, WaitingLeaseRequest) and self._waits.wait(message, request, result):
                return
        self._answer_lease(message, request, result)

    def _offer(self, message: Message, request: LeaseRequest) -> None:
        # If another node keeps the consumers of the stream by now, it answers. Leases that were read here would be old
        # when the stream comes back.
        if self._is_passed_on(message, request):
            return
        answer = self.context.guard(lambda result: self._answer_lease(message, request, result))
        self._service.groups.offer(request, answer, _party_of(message))

    def _answer_lease(self, message: Message, request: LeaseRequest, result: LeaseResponse | Refusal) -> None:
        if isinstance(result, Refusal):
            self._refused(message, result)
        else:
            self.reply(message, lease_payload(request, result))

    def _refused(self, message: Message, refusal: Refusal) -> None:
        if refusal.error is not None:
            self._failed(message, refusal.error)
        elif refusal.is_passing:
            # An answer that the request is not valid would end the membership. Here the member can ask again.
            self._service.refused += 1
            self._log(message, "index_request_refused", ProtocolError(refusal.reason))
            self._refuse_later(message, refusal.reason)
        else:
            self._not_served(message, ProtocolError(refusal.reason))

    def _not_served(self, message: Message, error: ProtocolError) -> None:
        """Refuses or ignores a request that is not valid or not allowed, and counts and logs it."""
        # A request of our own protocols, and every request beyond a limit, is answered. The senders of other
        # requests expect no `error`.
        if isinstance(error, requests.BeyondLimit) or requests.is_extension(message.payload):
            self._service.refused += 1
            self._log(message, "index_request_refused", error)
            self.reply(message, error_payload(str(error)))
        else:
            self._service.ignored += 1
            self._log(message, "index_request_ignored", error)

    def _log(self, message: Message, event: str, error: ProtocolError) -> None:
        self._service.lines.log(logger.info, event, **message.origin.who, reason=str(error))

    def _failed(self, message: Message, error: StorageError) -> None:
        self._service.failed += 1
        logger.error("index_requests_failed", requests=1, reason=str(error))
        self._refuse_later(message, str(error))

    def _refuse_later(self, message: Message, reason: str) -> None:
        self.context.call_later(limits.FAILURE_DELAY_S, lambda: self.reply(message, failed_payload(reason)))

    def _arm_sweep(self) -> None:
        if not self._sweeps and len(self._service.groups):
            self._sweeps = True
            self.context.call_later(self._service.groups.limits.ttl_s, lambda: self._sweep(self._service.groups.keys))

    def _sweep(self, keys: list[GroupKey]) -> None:
        # Other tasks have their turn between the parts: ten thousand groups take half a second.
        self._service.groups.sweep(keys[: limits.SWEEP_GROUPS_MAX])
        if left := keys[limits.SWEEP_GROUPS_MAX :]:
            self.context.call_later(0, lambda: self._sweep(left))
            return
        self._sweeps = False
        self._waits.sweep()
        self._arm_sweep()


def _party_of(message: Message) -> str:
    """Returns the party of the sender, for which the limits count a group (see `LeaseGroups.lease`)."""
    return "" if message.origin.is_node else message.origin.party
