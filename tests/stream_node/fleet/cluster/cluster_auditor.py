"""What must hold for the users of a simulated cluster, whatever happens to its members."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from ockam.actors.address import Address
from ockam.actors.message import Message
from stream_service.extensions import RICH_PUSH, RichStatus
from stream_service.protocol import PUSH, Status
from stream_storage.contract import Session
from tests.simulation.auditor import BrokenPromise


class ClusterAuditor:
    """What was sent, confirmed, read, leased and saved, as the users have seen it.

    refused: the pushes that were answered with an error, by the client's address and the request id.
    """

    def __init__(self) -> None:
        self.confirms: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.refused: set[tuple[Address, int]] = set()
        self.publishing = 0
        self._sent: dict[tuple[str, Address], list[tuple[int, bytes]]] = defaultdict(list)
        self._numbered: dict[tuple[str, str], int] = {}
        self._read: dict[str, dict[int, bytes]] = defaultdict(dict)
        self._saved: dict[tuple[str, str, int], int] = {}
        self._leases: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        self._fences: dict[tuple[str, int, int], str] = {}
        self._newest: dict[tuple[str, int], int] = {}
        self.ordered = self.leased = self.old_fences = self.saves = 0

    # Pushes and pulls.

    def sent(self, stream: str, client: Address, request_id: int, data: bytes) -> None:
        """A push left its client, which sends data only once. The client's address is that of one connection."""
        self._sent[stream, client].append((request_id, data))

    def numbered(self, stream: str, publisher: str, count: int) -> None:
        """A publisher has sent so many messages with the sequence numbers from 0."""
        self._numbered[stream, publisher] = count

    def answered(self, message: Message) -> None:
        """An answer left a member. Called at each hop of its way."""
        if PUSH.is_in(message.payload) and len(message.onward_route) > 1:
            try:
                confirm = PUSH.decode_response(message.payload)
            except ValueError:
                # A push on its way to another member.
                return
            if confirm.status is not Status.OK:
                self.refused.add((message.onward_route[-1], confirm.request_id))
        elif RICH_PUSH.is_in(message.payload) and len(message.onward_route) > 1:
            try:
                rich = RICH_PUSH.decode_response(message.payload)
            except ValueError:
                return
            if rich.status not in (RichStatus.OK, RichStatus.DUPLICATE):
                self.refused.add((message.onward_route[-1], rich.request_id))

    def confirmed(self, stream: str, index: int, data: bytes) -> None:
        known = self.confirms[stream].setdefault(index, data)
        if known != data:
            raise BrokenPromise(f"{stream} index {index} was confirmed for {known!r} and for {data!r}")

    def read(self, stream: str, index: int, data: bytes) -> None:
        known = self._read[stream].setdefault(index, data)
        if known != data:
            raise BrokenPromise(f"{stream} index {index} was read as {known!r} and as {data!r}")

    def all_read(self, stream: str, seen: set[int]) -> bool:
        """Whether a consumer has read all that was confirmed, and no more comes."""
        return not self.publishing and self.confirms[stream].keys() <= seen

    # Saved indexes and leases.

    def saved_index(self, client_id: str, stream: str, partition: int) -> int:
        """The highest index that was confirmed as saved until now."""
        return self._saved.get((client_id, stream, partition), 0)

    def saw_saved(self, client_id: str, stream: str, partition: int, index: int, least: int) -> None:
        """least: what `saved_index` was when the request left."""
        if index < least:
            raise BrokenPromise(f"{client_id} on {stream}/{partition}: index {least} was saved, and now it is {index}")
        key = client_id, stream, partition
        self._saved[key] = max(index, self._saved.get(key, 0))
        self.saves += 1

    def newest_fence(self, stream: str, partition: int) -> int:
        return self._newest.get((stream, partition), 0)

    def saved_with(self, stream: str, partition: int, fence: int, newest: int, *, fenced: bool) -> None:
        """newest: the highest fence that any member had when the save left its client."""
        if fence < newest:
            self.old_fences += 1
            if not fenced:
                raise BrokenPromise(f"{stream}/{partition}: a save with fence {fence} passed after fence {newest}")

    def leases(self, stream: str, member: str, fences: dict[int, int], until_s: float, now_s: float) -> None:
        """A member got these leases, which it can use until then."""
        self.release(stream, member)
        for partition, fence in fences.items():
            key = stream, partition
            others = {other for other, end_s in self._leases[key].items() if other != member and end_s > now_s}
            if others:
                raise BrokenPromise(f"{stream}/{partition}: {member} has a lease beside {others}")
            if self._fences.setdefault((stream, partition, fence), member) != member:
                raise BrokenPromise(f"{stream}/{partition}: fence {fence} was given twice")
            self._newest[key] = max(fence, self._newest.get(key, 0))
            self._leases[key][member] = until_s
            self.leased += 1

    def release(self, stream: str, member: str, keeps: frozenset[int] = frozenset()) -> None:
        """A member no longer uses its leases, but for those of these partitions."""
        for (name, partition), holders in self._leases.items():
            if name == stream and partition not in keeps:
                holders.pop(member, None)

    # The end.

    def check_log(self, session: Session, streams: tuple[str, ...]) -> None:
        for stream in streams:
            record = session.log.find_stream(stream, 0)
            rows = [] if record is None else session.log.read(record.stream_id, 0, 10**6, 10**9)
            if [row[0] for row in rows] != list(range(len(rows))):
                raise BrokenPromise(f"{stream}: the indexes have gaps")
            stored = [row[1] for row in rows]
            for known in (self.confirms[stream], self._read[stream]):
                for index, data in known.items():
                    if index >= len(stored) or stored[index] != data:
                        raise BrokenPromise(f"{stream} index {index}: {data!r} was confirmed or read, and is not there")
            self._check_sent(stream, stored)
            self._check_numbered(stream, stored)

    def _check_sent(self, stream: str, stored: list[bytes]) -> None:
        numbers = {data for each in stored if (data := each).startswith(b"numbered")}
        places = {data: place for place, data in enumerate(stored)}
        twice = [data for data, count in Counter(stored).items() if count > 1]
        if twice:
            raise BrokenPromise(f"{stream}: {twice[0]!r} is stored twice")
        unexplained = places.keys() - numbers
        for (name, client), pushes in self._sent.items():
            if name == stream:
                unexplained -= {data for _, data in pushes}
                self._check_order(stream, client, pushes, places)
        if unexplained:
            raise BrokenPromise(f"{stream}: {min(unexplained)!r} is stored and was never sent")

    def _check_order(
        self, stream: str, client: Address, pushes: list[tuple[int, bytes]], places: dict[bytes, int]
    ) -> None:
        """What a connection has sent is stored in order, and nothing behind a message that was lost. A push that was
        answered with ERROR may still be stored, at any place (docs/scale.md): it may wait at a third member."""
        told = {data for request_id, data in pushes if (client, request_id) in self.refused}
        found = [places[data] for _, data in pushes if data in places and data not in told]
        for earlier, later in pairwise(found):
            if later < earlier:
                raise BrokenPromise(f"{stream}: a message of {client} overtook another one at {later}")
        self.ordered += len(found)
        last = max((number for number, (_, data) in enumerate(pushes) if data in places), default=-1)
        for request_id, data in pushes[: last + 1]:
            if data not in places and (client, request_id) not in self.refused:
                raise BrokenPromise(f"{stream}: {data!r} of {client} was lost, and a later message is stored")

    def _check_numbered(self, stream: str, stored: list[bytes]) -> None:
        for (name, publisher), count in self._numbered.items():
            if name == stream:
                prefix = f"numbered {publisher}:".encode()
                numbers = [int(data.removeprefix(prefix)) for data in stored if data.startswith(prefix)]
                if numbers != list(range(count)):
                    raise BrokenPromise(f"{stream}: {publisher} sent {count} numbers, and {numbers} are stored")
