"""ServiceWorker: the stream service, which creates and lists streams.

A new stream is stored on disk first. Then the create request is forwarded to the stream's own worker, which answers the
client. The answer is called Init, and its return route is the address of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog

from ockam.actors.address import local
from ockam.actors.asker import ask_all, join_pages
from ockam.actors.message import Message
from ockam.actors.worker import HandlingFailed, Worker
from ockam.errors import AddressInUse
from ockam.identity.gate import DENIED
from ockam.identity.rules.rights import STREAM_RIGHTS, Demand, Right, rights_text
from ockam.protocol import Protocol, ProtocolError, error_payload, failed_payload, find_name
from stream_service.extensions import LIST, WHERE, ListRequest, ListResponse, StreamInfo, WhereResponse
from stream_service.names import GENERATED_PREFIX, refusal_of_name, stream_address
from stream_service.operations import describe_streams, ensure_streams
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    CREATE_PARTITIONS,
    CreatePartitions,
    CreateStream,
    PartitionCreated,
)
from stream_service.stored import StoredStream
from stream_service.workers.directory import Reservation, StreamDirectory
from stream_storage.contract import Do

SERVICE_ADDRESSES = ("stream_service", "stream", "stream_kafka")
"""The addresses of the stream service: the address in the specification, and two that real clients use."""

PART_ADDRESS = local("stream_service_part")
"""The address to which other nodes of a cluster send list requests, and creates of one partition. The next hop in the
route of such a create is the number of the partition."""
PART_DIGITS_MAX = 9

PARTITIONS_PER_TURN = 4_096
"""The number of requested partitions after which the service worker lets the other workers of the node run."""

PartitionedCreate: TypeAlias = Protocol[CreatePartitions, PartitionCreated]
PARTITIONED: Final = (CREATE_PARTITIONED, CREATE_PARTITIONS)

logger = structlog.get_logger(__name__)


class ServiceWorker(Worker):
    """Serves requests to create a stream or partitions of it, to list streams, and to tell who serves a stream."""

    def __init__(self, directory: StreamDirectory) -> None:
        self._directory = directory
        self._held: Sequence[Message] = ()

    def receive(self, run: Sequence[Message]) -> None:
        """Serves requests until they name PARTITIONS_PER_TURN partitions together, and the others in later turns."""
        spent = 0
        for position, message in enumerate(run):
            if spent >= PARTITIONS_PER_TURN:
                # The mailbox is paused, so that no later request overtakes the remaining ones.
                self._held = run[position:]
                self.context.pause()
                self.context.call_later(0, self._next_turn)
                return
            try:
                spent += self._serve(message)
            except ProtocolError as error:
                self._directory.counters.refuse(self, message, str(error))
            except Exception as error:
                raise HandlingFailed(position) from error

    def _next_turn(self) -> None:
        held, self._held = self._held, ()
        self.context.resume()
        self.receive(held)

    def _serve(self, message: Message) -> int:
        """Serves one request. Returns the number of partitions that it names, at least 1. Raises ProtocolError."""
        if LIST.is_in(message.payload):
            self._list(message)
            return 1
        if WHERE.is_in(message.payload):
            self._report_to_owner(message)
            return 1
        return self._create(message)

    def demand(self, message: Message) -> Demand:
        """Returns the right that the sender of this message needs. Raises ProtocolError.

        Every client sends a create before it uses a stream. So if the stream exists, one right on it is enough;
        otherwise the right to create is needed.
        """
        payload = message.payload
        if LIST.is_in(payload):
            return Demand(STREAM_RIGHTS, None)
        if WHERE.is_in(payload):
            return Demand(STREAM_RIGHTS, WHERE.decode_request(payload).stream_name)
        name, partitions, _ = self._read_create(payload)
        if name is None:
            return Demand(Right.CREATE, GENERATED_PREFIX)
        # Only the first and the last partition are looked up, because anybody may send creates. `_check_may_create`
        # refuses if one between them is missing. The node that serves a partition decides about that partition.
        part = _part_of(message)
        looked_at = (0, partitions - 1) if part is None else (part, part)
        addresses = [stream_address(name, partition) for partition in looked_at]
        exists = all(self._directory.node.is_registered(each) or self._directory.is_remote(each) for each in addresses)
        return Demand(STREAM_RIGHTS if exists else Right.CREATE, name)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)

    def _create(self, message: Message) -> int:
        asked, partitions, partitioned = self._read_create(message.payload)
        # A missing name is chosen here. The forwarded request contains the name, so that each partition's worker can
        # check it.
        name = self._directory.new_name() if asked is None else asked
        if partitioned is None:
            forwarded = CREATE.encode_request(CreateStream(name))
        else:
            forwarded = partitioned.encode_request(CreatePartitions(name, partitions))
        # Each partition's worker gets a copy of the request, and answers the client from its own address.
        part = _part_of(message)
        wanted = range(partitions) if part is None else range(part, min(part + 1, partitions))
        missing, requests, remote_streams = [], [], self._directory.remote_streams
        for partition in wanted:
            address = stream_address(name, partition)
            if remote_streams is not None and remote_streams.is_remote(address):
                route = (PART_ADDRESS, local(str(partition)))
                remote_streams.send(address, Message(route, message.return_route, forwarded, message.origin))
                continue
            if not self._directory.node.is_registered(address):
                missing.append(partition)
            requests.append(Message((address,), message.return_route, forwarded, message.origin))
        # A stream that a part of the node writes is created only by this part. For an existing one, a client may get
        # the Init.
        if not missing:
            self.context.send_run(requests)
            return partitions
        self._check_may_create(message, name)
        directory, addresses = self._directory, [stream_address(name, partition) for partition in missing]
        reserved = directory.reserve(message.origin, addresses)
        if isinstance(reserved, str):
            raise ProtocolError(reserved)
        # An Init promises that the stream exists, so the streams must be on disk before the requests are forwarded.
        made = self.context.guard(lambda operation: self._made(operation, name, message, requests, reserved))
        work = partial(ensure_streams, name=name, partitions=missing, created_us=directory.now_us())
        directory.storage.submit_write(Do(work, made))
        return partitions

    def _check_may_create(self, message: Message, name: str) -> None:
        """Raises ProtocolError if the sender of this message may not create the stream.

        The rules were asked when the message arrived. If the stream existed then and was deleted since, they were not
        asked for the right to create.
        """
        decision = self._directory.kept.decide(message.origin.identity, Demand(Right.CREATE, name))
        gate = self._directory.node.gate
        refusal = None if decision.allowed else decision.explanation
        if refusal is None and gate is not None and not gate.holds(message.origin, Right.CREATE, name):
            refusal = f"{DENIED}{rights_text(Right.CREATE)} on {name!r}: the stream or a partition of it was deleted"
        if refusal is not None:
            raise ProtocolError(refusal)

    def _made(
        self,
        operation: Do[list[StoredStream]],
        name: str,
        message: Message,
        requests: Sequence[Message],
        reserved: Reservation,
    ) -> None:
        # The reservation ends: the directory counts the streams that exist now.
        self._directory.give_back(reserved, 0 if operation.error is None else len(reserved.addresses))
        if operation.error is not None:
            self._directory.counters.creates_failed += 1
            logger.error("create_failed", stream=name, reason=str(operation.error))
            # The answer is delayed, because a client may repeat a failed create at once.
            answer = failed_payload(f"the stream cannot be made: {operation.error}")
            self.context.call_later(self._directory.limits.error_delay_s, lambda: self.reply(message, answer))
            return
        try:
            # The workers must run before the requests are forwarded to them. If a shard has moved meanwhile, another
            # node serves the stream, and the directory sends the request there.
            for stream in operation.result:
                if not self._directory.is_remote(stream_address(stream.record.name, stream.record.partition)):
                    self._directory.open_stream(stream)
        except AddressInUse as error:
            self._directory.counters.refuse(self, message, str(error))
            return
        logger.info("stream_created", stream=name, partitions=len(reserved.addresses), **message.origin.who)
        self.context.send_run(requests)

    def _list(self, message: Message) -> None:
        request = LIST.decode_request(message.payload)
        # Other nodes may have streams in databases of their own.
        joined = partial(self._join_lists, message, request)
        if ask_all(self, self._directory.remote_streams, PART_ADDRESS, message, LIST, joined):
            return
        after = (request.after.stream_name, request.after.partition) if request.after is not None else None
        self._list_after(message, request, after)

    def _report_to_owner(self, message: Message) -> None:
        request = WHERE.decode_request(message.payload)
        _check_name(request.stream_name)
        remote_streams = self._directory.remote_streams
        stream = stream_address(request.stream_name, request.partition)
        address, epoch = ("", 0) if remote_streams is None else remote_streams.owner_of(stream)
        self.reply(message, WHERE.encode_response(WhereResponse(request.request_id, address, epoch)))

    def _join_lists(self, message: Message, request: ListRequest, pages: list[ListResponse]) -> None:
        infos, more = join_pages(
            [(page.streams, page.more) for page in pages],
            lambda info: (info.stream_name, info.partition),
            min(request.limit, self._directory.limits.list_streams_max),
        )
        self.reply(message, LIST.encode_response(ListResponse(request.request_id, infos, more)))

    def _list_after(self, message: Message, request: ListRequest, after: tuple[str, int] | None) -> None:
        """Answers with the next streams that the sender may see, behind `after`: a name and a partition."""
        gate = self._directory.node.gate

        def listed(operation: Do[tuple[list[StreamInfo], bool]]) -> None:
            if operation.error is not None:
                self.reply(message, failed_payload(str(operation.error)))
                return
            found, more = operation.result
            infos = found
            if gate is not None:
                infos = [each for each in infos if gate.holds(message.origin, STREAM_RIGHTS, each.stream_name)]
            # A client goes on after the last stream of a page, so a page without a stream would end its list.
            # The next read skips the names that the sender may not see, whatever their number.
            if found and not infos and more and gate is not None:
                following = gate.find_next(message.origin, STREAM_RIGHTS, found[-1].stream_name)
                if following is not None:
                    self._list_after(message, request, (following, -1))
                    return
            self.reply(message, LIST.encode_response(ListResponse(request.request_id, infos, more and bool(infos))))

        limit = min(request.limit, self._directory.limits.list_streams_max)
        work = partial(describe_streams, prefix=request.prefix, after=after, limit=limit)
        self._directory.storage.submit_read(Do(work, self.context.guard(listed)))

    def _read_create(self, payload: bytes) -> tuple[str | None, int, PartitionedCreate | None]:
        """Returns the name and the number of partitions in a create, and its protocol if that is one for several
        partitions. Raises ProtocolError."""
        if CREATE.is_in(payload):
            name, partitions, partitioned = CREATE.decode_request(payload).stream_name, 1, None
        else:
            partitioned = next((each for each in PARTITIONED if each.is_in(payload)), None)
            if partitioned is None:
                what = find_name(payload)
                raise ProtocolError(
                    f"the stream service serves no {what!r}" if what is not None else "the payload names no protocol"
                )
            request = partitioned.decode_request(payload)
            name, partitions = request.stream_name, request.partitions
        most = self._directory.limits.partitions_max
        if not 1 <= partitions <= most:
            raise ProtocolError(f"{partitions} partitions; a stream has 1 to {most}")
        # The gate remembers and audits the name, so it must be short.
        if name is not None:
            _check_name(name)
        return name, partitions, partitioned


def _check_name(name: str) -> None:
    refusal = refusal_of_name(name)
    if refusal is not None:
        raise ProtocolError(refusal)


def _part_of(message: Message) -> int | None:
    """Returns the partition for which another node has sent a create; None if a client has sent it."""
    if message.onward_route[0] != PART_ADDRESS:
        return None
    part = message.onward_route[1].value if len(message.onward_route) > 1 else b""
    if not part.isdigit() or len(part) > PART_DIGITS_MAX:
        raise ProtocolError("a create for one partition names the partition in its route")
    return int(part)


def register_service(directory: StreamDirectory, addresses: Sequence[str] = SERVICE_ADDRESSES) -> None:
    part = (PART_ADDRESS,) if directory.remote_streams is not None else ()
    directory.node.register([*map(local, addresses), *part], lambda: ServiceWorker(directory))
