"""What reached a living node, in the order in which it came. It judges nothing."""

from __future__ import annotations

from collections import defaultdict

from ockam.actors.address import Address
from ockam.actors.message import Message
from stream_service.extensions import PUSH_BATCH, RICH_PULL, RICH_PUSH
from stream_service.protocol import PULL, PUSH


class Arrivals:
    """Turns of the copies of each push, and of the first copy of each pull. A turn is a number that rises.

    pushes: by stream's address and data. pulls: by client's address and request id.
    """

    def __init__(self) -> None:
        self.pushes: dict[tuple[Address, bytes], list[int]] = defaultdict(list)
        self.pulls: dict[tuple[Address, int], int] = {}
        self._turn = 0

    def note(self, message: Message) -> None:
        """Called when the network hands a message to a node that lives, before the node does anything."""
        self._turn += 1
        payload = message.payload
        for pushes in (PUSH, RICH_PUSH):
            if pushes.is_in(payload):
                self.pushes[message.onward_route[0], pushes.decode_request(payload).data].append(self._turn)
        if PUSH_BATCH.is_in(payload):
            for data in PUSH_BATCH.decode_request(payload).messages:
                self._turn += 1
                self.pushes[message.onward_route[0], data].append(self._turn)
        for pulls in (PULL, RICH_PULL):
            if pulls.is_in(payload):
                key = message.return_route[0], pulls.decode_request(payload).request_id
                self.pulls.setdefault(key, self._turn)

    def copies(self, stream: Address, data: bytes) -> int:
        """How many copies of a push of this data came."""
        return len(self.pushes.get((stream, data), ()))

    def find_only_turn(self, stream: Address, data: bytes) -> int | None:
        """When the push of this data came, if one copy came; None where more did, so that nobody knows which counts."""
        turns = self.pushes.get((stream, data), ())
        return turns[0] if len(turns) == 1 else None
