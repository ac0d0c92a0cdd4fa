"""The simulated publishers: many pushes on their way at once, and pulls between them that nobody waits for."""

from __future__ import annotations

import trio

from stream_service.extensions import PUSH_BATCH, RICH_PUSH, PushBatch, RichPush, RichStatus, Sequence
from stream_service.names import stream_address
from stream_service.protocol import PULL, PUSH, PullRequest, PushRequest, Status
from tests.simulation.auditor import Auditor
from tests.simulation.clients import Client, create

WINDOW_MAX = 20


class Publisher:
    """Pushes `count` messages to one stream, each again and again until it is confirmed.

    sequenced: with numbers, so that each is stored once; the others wait until the first is confirmed, since a node
    takes the first number that it sees of a publisher as the beginning.
    Some send what follows each other in batches.
    Invariant: `_waiting` has the messages that were sent and are not confirmed, at most as many as the window, oldest
    first.
    """

    def __init__(self, client: Client, stream: str, count: int, auditor: Auditor, *, sequenced: bool) -> None:
        self._client = client
        self._stream = stream
        self._address = stream_address(stream, 0)
        self._count = count
        self._auditor = auditor
        self._window = client.rng.randint(1, WINDOW_MAX)
        self._sequenced = sequenced
        self._begun = not sequenced
        self._batch_max = 1 if sequenced else client.rng.choice((1, 2, WINDOW_MAX))
        self._pull_share = client.rng.choice((0.0, 0.3))
        self._data = [f"{client.name}:{number}".encode() for number in range(count)]
        self._waiting: set[int] = set()
        self._pulls: dict[int, PullRequest] = {}
        self._pulls_sent = 0
        self._next_index = 0
        self._confirmed = trio.Event()

    async def run(self) -> None:
        client = self._client
        await create(client, self._stream)
        client.listen(self._hear)
        sent = 0
        while sent < self._count or self._waiting:
            while sent < self._count and len(self._waiting) < (self._window if self._begun else 1):
                first = sent
                room = (self._window if self._begun else 1) - len(self._waiting)
                sent += min(self._batch_max, room, self._count - sent)
                self._waiting.update(range(first, sent))
                self._push_run(range(first, sent))
            self._confirmed = trio.Event()
            with trio.move_on_after(client.patience_s()) as patience:
                await self._confirmed.wait()
            if patience.cancelled_caught:
                for number in sorted(self._waiting):
                    self._push_run(range(number, number + 1))
            elif client.rng.random() < 0.3:
                await trio.sleep(round(client.rng.random(), 1))

    def _push_run(self, numbers: range) -> None:
        rng, number = self._client.rng, numbers[0]
        payload = PUSH.encode_request(PushRequest(number, self._data[number]))
        if self._sequenced:
            sequence = Sequence(self._client.name.encode(), number)
            payload = RICH_PUSH.encode_request(RichPush(number, self._data[number], b"key", [], sequence))
        elif self._batch_max > 1:
            payload = PUSH_BATCH.encode_request(PushBatch(number, [self._data[each] for each in numbers]))
        self._client.tell(self._address, payload)
        if rng.random() < self._pull_share:
            self._pulls_sent += 1
            pull = PullRequest(self._pulls_sent, rng.choice((0, self._next_index)), rng.choice((3, 100)))
            self._pulls[pull.request_id] = pull
            self._client.tell(self._address, PULL.encode_request(pull))

    def _hear(self, payload: bytes) -> None:
        """Every answer counts, those to copies too."""
        if PUSH.is_in(payload):
            confirm = PUSH.decode_response(payload)
            if confirm.status is Status.OK:
                self._stored(confirm.request_id, confirm.index)
        elif PUSH_BATCH.is_in(payload):
            joined = PUSH_BATCH.decode_response(payload)
            if joined.failure is None:
                for place in range(joined.count):
                    self._stored(joined.request_id + place, joined.index + place)
        elif RICH_PUSH.is_in(payload):
            answer = RICH_PUSH.decode_response(payload)
            if answer.status in (RichStatus.OK, RichStatus.DUPLICATE):
                self._stored(answer.request_id, answer.index)
        elif PULL.is_in(payload):
            page = PULL.decode_response(payload)
            pull = self._pulls[page.request_id]
            self._auditor.pulled(self._client.name, self._client.address, self._stream, pull, page)

    def _stored(self, number: int, index: int) -> None:
        self._begun = True
        self._auditor.confirmed(self._stream, index, self._data[number])
        self._next_index = max(self._next_index, index + 1)
        self._waiting.discard(number)
        self._confirmed.set()
