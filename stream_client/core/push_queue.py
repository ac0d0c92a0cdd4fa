"""PushQueue: the pushes of one publisher to one partition, each sent, and finished when its confirm arrives.
`distribute`: gives received messages to the queues.

After a reconnect, the queue sends its unanswered pushes again. Its return address is its own, so its confirms do not
mix with those of other publishers. This code runs hundreds of thousands of times a second, so every step for a push
must be cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mypy_extensions import mypyc_attr

from ockam.actors.address import Address, Route
from ockam.actors.message import Message
from ockam.protocol import ERROR, ProtocolError
from stream_client.core.client_connection import BATCHED_DATA_BYTES_MAX, ClientConnection, OpenBatch
from stream_client.core.payloads import refusal
from stream_client.core.pushes import PLAIN_BYTES_MAX, KeyedPush, PendingResult, Push
from stream_client.core.sequence_machine import NO_REASON, SequenceMachine, not_saved, refused_by_node
from stream_client.errors import ClientError, PushUnknown, UnexpectedAnswer
from stream_service.extensions import PUSH_FAILED, RICH_PUSH, BatchAnswer, Header, PushFailure, RichConfirm, RichStatus
from stream_service.protocol import PUSH, Status
from stream_service.push_codec import BATCH_TAG, decode_batch_answer, decode_confirm

DOUBTFUL_CHECKS_MAX = 150
"""The checks for late answers (five minutes) during which pushes in doubt (`sequence_machine`) are sent again. Then
they fail with PushUnknown. While the node does not run, `Reconnect` limits the waiting instead."""
FAILED_KEPT = 100
"""When a queue has collected this many failed pushes, it drops those for whose result the program has asked."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PushQueue:
    """The unanswered pushes of one publisher to one partition.

    address: the return address of the confirms.
    pushes: the unanswered pushes, in order, by request id.
    failed: the failed pushes for whose result the program has not asked; None if failed pushes are not collected.
    sent_again: the number of pushes that were sent more than once.
    answers: how often answers to pushes have come, including answers that finished no push.
    gone: the error of every later push if the partition was deleted, else None.

    Invariant: request ids ascend in `pushes`, and none of these pushes is done. While the route is known, all of them
    have been sent or are in the open batch, except pushes that `SequenceMachine` delays.
    """

    __slots__ = (
        "_batch",
        "_connection",
        "_has_rich",
        "_header",
        "_look_through_at",
        "_next_request_id",
        "_oldest_checked",
        "_on_empty",
        "_room",
        "_sent_again_below",
        "_takes_batches",
        "address",
        "answers",
        "failed",
        "gone",
        "partition",
        "pushes",
        "sent_again",
    )

    def __init__(
        self, connection: ClientConnection, address: Address, partition: int, failed: list[Push] | None = None
    ) -> None:
        self._connection = connection
        self._has_rich = False
        self._takes_batches = False
        self._batch: OpenBatch | None = None
        self._header = b""
        self._next_request_id = 0
        self._oldest_checked = -1
        self._look_through_at = FAILED_KEPT
        self._sent_again_below = 0
        self._room: PendingResult | None = None
        self._on_empty: Callable[[], None] | None = None
        self.address = address
        self.partition = partition
        self.pushes: dict[int, Push] = {}
        self.failed = failed
        self.answers = 0
        self.gone: ClientError | None = None
        self.sent_again = 0

    @property
    def is_open(self) -> bool:
        """Whether the route to the partition is known, so that pushes are sent at once."""
        return bool(self._header)

    @property
    def is_on_its_way(self) -> bool:
        """Whether some unanswered push is no longer in the open batch: it has been sent, and its answer will come."""
        batch = self._batch
        return len(self.pushes) > (len(batch.messages) if batch is not None and batch.is_open else 0)

    def check(self) -> None:
        assert list(self.pushes) == sorted(self.pushes)
        assert not any(push.done for push in self.pushes.values())
        assert all(request_id < self._next_request_id for request_id in self.pushes)

    def push(self, data: bytes) -> Push:
        """Sends one message, at once or as soon as the route is known. Raises the error that ended the client."""
        if self._connection.closed is not None:
            raise self._connection.closed.with_traceback(None)
        push = Push(data, self.partition)
        request_id = self._next_request_id
        self._next_request_id = request_id + 1
        # The push is added before it can fail, since `_fail` finds it by its request id.
        self.pushes[request_id] = push
        if self.gone is not None or len(data) > PLAIN_BYTES_MAX:
            self._fail(request_id, self.gone or push.refusal())
        elif self._header:
            self._send(request_id, push)
        return push

    def push_keyed(self, data: bytes, key: bytes | None, headers: Sequence[Header]) -> KeyedPush:
        """Does what `push` does, for a message with a key and headers, which are stored with it."""
        self._connection.check_open()
        push = KeyedPush(data, self.partition, key, headers)
        request_id = self._next_request_id
        self._next_request_id = request_id + 1
        self.pushes[request_id] = push
        if self.gone is not None:
            self._fail(request_id, self.gone)
        # The queue of an idempotent publisher may delay the push: a number must not overtake an earlier one.
        elif self._admit(request_id, push) and self._header:
            self._send(request_id, push)
        return push

    def open(self, route: Route) -> None:
        # `close` records which pushes the node may have stored already. Only then are they sent again.
        self.close()
        self._header = self._connection.header(route, self.address)
        for request_id, push in self._sendable():
            self._send(request_id, push)
        # Some pushes may have failed at once, because they are too large for the framing of this connection.
        self._report_room()

    def close(self) -> None:
        # The node may have stored these pushes. If a second copy fails, this does not prove that the first copy failed.
        if self._header:
            self._sent_again_below = self._next_request_id
        self._header = b""
        # The next connection can lead to another version of the node.
        self._takes_batches = self._has_rich = False
        self._batch = None

    def take(self, payload: bytes) -> None:
        """Finishes the pushes that this received payload answers. A payload that answers no push is ignored."""
        try:
            # The plain confirm is tested first, since nearly all answers are plain confirms.
            if payload.startswith(PUSH.tag):
                confirm = decode_confirm(payload)
                if confirm.status is Status.OK:
                    push = self.pushes.pop(confirm.request_id, None)
                    if push is not None:
                        push.index = confirm.index
                        push.finish()
                elif confirm.request_id in self.pushes:
                    self._fail(confirm.request_id, PushUnknown(NO_REASON))
            # This confirm has a status of its own, and proves that the node knows pushes with keys.
            elif RICH_PUSH.is_in(payload):
                rich = RICH_PUSH.decode_response(payload)
                keyed = self.pushes.get(rich.request_id)
                self._has_rich = True
                if isinstance(keyed, KeyedPush):
                    self._take_keyed(keyed, rich)
            # One answer for a whole batch, and the only proof that the stream takes batches.
            elif payload.startswith(BATCH_TAG):
                self._take_batch(decode_batch_answer(payload))
            # A plain confirm cannot give a reason, so this message says why one push was not stored.
            elif PUSH_FAILED.is_in(payload):
                failure = PUSH_FAILED.decode_response(payload)
                if failure.request_id in self.pushes:
                    self._take_failure(self.pushes[failure.request_id], failure)
            # An `error` names no request. If the node has never confirmed a push with a key, it may be the answer of a
            # node that does not know such pushes.
            elif ERROR.is_in(payload):
                has_keyed = any(isinstance(push, KeyedPush) for push in self.pushes.values())
                self._take_error(refusal(payload, request=RICH_PUSH.tag if has_keyed and not self._has_rich else b""))
        # A peer's garbage must not end the client. The push stays unanswered and is sent again.
        except ProtocolError:
            return

    def settle(self) -> None:
        """Sends the delayed pushes that the latest answers allow, and wakes the publisher, after calls of `take`."""
        # The publisher counts also answers that finish no push: a node that gives them is not silent.
        self.answers += 1
        for request_id, push in self._released():
            # Without a route, the push waits: `open` sends it.
            if self._header:
                self._send(request_id, push)
        self._report_room()

    def fail_all(self, error: ClientError) -> None:
        for request_id, push in list(self.pushes.items()):
            # If the partition is gone, so is the message, whether it was stored or not.
            push.finish(error if self.gone is not None else self._doubted(request_id, error))
        self._drop_finished(list(self.pushes))
        self._report_room()

    def forget(self, push: Push) -> None:
        """Drops a push whose caller no longer waits. It is not sent again, and its confirm is ignored."""
        for request_id in [request_id for request_id, each in self.pushes.items() if each is push]:
            del self.pushes[request_id]

    def room(self) -> PendingResult:
        """Returns a result that is done as soon as more pushes are answered, so that the publisher can push again."""
        if self._room is None:
            self._room = PendingResult()
        return self._room

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when no push is unanswered: at once if that is so already."""
        self._on_empty = callback
        self._report_room()

    def is_stalled(self) -> bool:
        """Whether the oldest unanswered push was already the oldest at the last call of this method."""
        oldest = next(iter(self.pushes), -1)
        stalled = oldest >= 0 and oldest == self._oldest_checked
        self._oldest_checked = oldest
        return stalled

    def _admit(self, request_id: int, push: KeyedPush) -> bool:
        """Whether to send a new push as soon as the route is known. If false, the push has failed or must wait."""
        error = push.refusal()
        if error is not None:
            self._fail(request_id, error)
        return error is None

    def _sendable(self) -> list[tuple[int, Push]]:
        self.sent_again += sum(request_id < self._sent_again_below for request_id in self.pushes)
        return list(self.pushes.items())

    def _released(self) -> Iterable[tuple[int, Push]]:
        return ()

    def _take_error(self, error: ClientError) -> None:
        """Fails the pushes that an `error` message can refer to. The message does not say which push it answers."""
        # A node that has never confirmed a push with a key perhaps does not support keys. Then only the pushes with
        # keys are meant, and none of them is stored.
        keyed = [request_id for request_id, push in self.pushes.items() if isinstance(push, KeyedPush)]
        refused = list(self.pushes) if self._has_rich or not keyed else keyed
        if len(refused) > 1 and refused is not keyed:
            # Else any push can be meant. If there are several, each may have been stored, and the error must say so.
            what = f"the node refused one of {len(refused)} pushes and did not say which; this one may have been stored"
            self.fail_all(UnexpectedAnswer(f"{what}: {error}"))
            return
        for request_id in refused:
            self.pushes[request_id].finish(self._doubted(request_id, error))
        self._drop_finished(refused)
        self._report_room()

    def _take_failure(self, push: Push, failure: PushFailure) -> None:
        self._fail(failure.request_id, not_saved(failure, failure.request_id < self._sent_again_below))

    def _take_batch(self, answer: BatchAnswer) -> None:
        self._takes_batches = True
        failure, index, pushes = answer.failure, answer.index, self.pushes
        # The peer chooses the count, and a count beyond the last push would only cost time.
        for request_id in range(answer.request_id, min(answer.request_id + answer.count, self._next_request_id)):
            # A push that is already answered is skipped, and so is a push with a key: it was never in a batch.
            push = pushes.get(request_id)
            if push is None or type(push) is not Push:
                continue
            if failure is None:
                del pushes[request_id]
                push.index = index + request_id - answer.request_id
                push.finish()
            else:
                self._take_failure(push, PushFailure(request_id, failure.outcome, failure.reason))

    def _take_keyed(self, push: KeyedPush, confirm: RichConfirm) -> None:
        if confirm.status in (RichStatus.OK, RichStatus.DUPLICATE):
            push.index = confirm.index
            push.finish()
            del self.pushes[confirm.request_id]
        elif confirm.status is RichStatus.REFUSED:
            self._fail(confirm.request_id, refused_by_node(confirm.request_id < self._sent_again_below))
        else:
            self._fail(confirm.request_id, PushUnknown(NO_REASON))

    def _send(self, request_id: int, push: Push) -> None:
        # Pushes without keys are collected into one message, once the stream has shown that it understands batches.
        if self._takes_batches and type(push) is Push and len(push.data) <= BATCHED_DATA_BYTES_MAX:
            batch = self._batch
            if batch is None or not batch.takes(request_id):
                batch = self._batch = self._connection.begin_batch(self._header, request_id)
            self._connection.add_to_batch(batch, push.data)
            return
        error = self._connection.put_frame(self._header, push.payload(request_id))
        if error is not None:
            self._unsendable(push)
            self._fail(request_id, self._doubted(request_id, error))

    def _unsendable(self, push: Push) -> None:
        """Reacts to a push that is too large to be sent."""

    def _doubted(self, request_id: int, error: ClientError) -> ClientError:
        """Returns the error of a push that cannot be sent or stored any more: PushUnknown if it was sent before. The
        node may have stored that copy: its rules, or the framing of the connection, may have been different then."""
        is_doubtful = request_id < self._sent_again_below and not error.in_doubt
        return PushUnknown(f"it was sent over an earlier connection before this: {error}") if is_doubtful else error

    def _fail(self, request_id: int, error: ClientError | None) -> None:
        self.pushes[request_id].finish(error)
        self._drop_finished((request_id,))

    def _drop_finished(self, request_ids: Iterable[int]) -> None:
        """Removes these finished pushes. The failed ones are added to `failed`."""
        for request_id in request_ids:
            push = self.pushes.pop(request_id)
            if push.error is not None and self.failed is not None:
                self.failed.append(push)
                # The list is searched only when it has doubled, so that many failures do not cost a search each.
                if len(self.failed) >= self._look_through_at:
                    self.failed[:] = [each for each in self.failed if not each.taken]
                    self._look_through_at = 2 * len(self.failed) + FAILED_KEPT

    def _report_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.finish()
        # A publisher that has ended drops its queue with the last answer.
        if self._on_empty is not None and not self.pushes:
            callback, self._on_empty = self._on_empty, None
            callback()


@mypyc_attr(allow_interpreted_subclasses=True)
class SequencedPushQueue(PushQueue):
    """The push queue of an idempotent publisher: each message is stored only once, even if it is sent several times.
    Every push in it is a KeyedPush with a sequence number (`sequence_machine`)."""

    __slots__ = ("_doubtful_checks", "_machine")

    def __init__(
        self,
        connection: ClientConnection,
        address: Address,
        partition: int,
        failed: list[Push] | None,
        machine: SequenceMachine,
    ) -> None:
        super().__init__(connection, address, partition, failed)
        self._machine = machine
        self._doubtful_checks = 0

    def is_stalled(self) -> bool:
        """Does what the base class does. Also fails all pushes if some of them have been in doubt for too long."""
        reason = self._machine.reason
        self._doubtful_checks = 0 if reason is None else self._doubtful_checks + 1
        if reason is not None and self._doubtful_checks > DOUBTFUL_CHECKS_MAX:
            self.fail_all(PushUnknown(f"{reason}; sent again for minutes, and the node cannot tell"))
        return super().is_stalled()

    def fail_all(self, error: ClientError) -> None:
        self._machine.abandon()
        super().fail_all(error)

    def _take_error(self, error: ClientError) -> None:
        self._machine.abandon()
        super()._take_error(error)

    def _admit(self, request_id: int, push: KeyedPush) -> bool:
        admitted = self._machine.admit(request_id, push)
        # The machine has refused the push, so no answer will come for it.
        if push.done:
            self._drop_finished((request_id,))
        return admitted

    def _sendable(self) -> list[tuple[int, Push]]:
        found: list[tuple[int, Push]] = []
        # A push without a number has not been sent yet: `_released` numbers it when its turn comes.
        for request_id, push in self.pushes.items():
            if isinstance(push, KeyedPush) and push.epoch is not None:
                self._machine.sent_again(push)
                found.append((request_id, push))
        self.sent_again += len(found)
        return found + self._released()

    def _released(self) -> list[tuple[int, Push]]:
        released: list[tuple[int, Push]] = []
        for request_id, push in self._machine.release():
            if push.done:
                self._drop_finished((request_id,))
            else:
                released.append((request_id, push))
        return released

    def _take_keyed(self, push: KeyedPush, confirm: RichConfirm) -> None:
        # This push was never sent, so the confirm is not its own.
        if push.epoch is None:
            return
        self._finished(confirm.request_id, self._machine.answered(push, confirm, self._unanswered()))

    def _take_failure(self, push: Push, failure: PushFailure) -> None:
        if isinstance(push, KeyedPush) and push.epoch is not None:
            self._finished(failure.request_id, self._machine.failed(push, failure, self._unanswered()))

    def _unanswered(self) -> Iterable[KeyedPush]:
        return (each for each in self.pushes.values() if isinstance(each, KeyedPush))

    def _finished(self, request_id: int, finished: Sequence[KeyedPush]) -> None:
        """Removes the pushes that an answer has finished: none, only the answered push, or later ones too."""
        # The usual answer finishes its own push. Only a failure finishes later pushes, and is worth a search.
        if len(finished) == 1:
            self._drop_finished((request_id,))
        elif finished:
            self._drop_finished([each_id for each_id, each in self.pushes.items() if each.done])

    def _unsendable(self, push: Push) -> None:
        assert isinstance(push, KeyedPush)
        self._machine.retract(push)


def distribute(
    messages: Sequence[Message], queues: Mapping[Address, PushQueue], take_other: Callable[[Message], None]
) -> None:
    """Passes each message to the push queue at its address, or to `take_other`, and then settles these queues."""
    # Often many confirms in sequence are for one queue, and these messages share one route object. So one look-up is
    # enough.
    answered: dict[PushQueue, None] = {}
    route: Route | None = None
    queue: PushQueue | None = None
    for message in messages:
        onward_route = message.onward_route
        if onward_route is not route:
            route = onward_route
            queue = queues.get(onward_route[0])
            if queue is not None:
                answered[queue] = None
        if queue is not None:
            queue.take(message.payload)
        else:
            take_other(message)
    # This is done after all answers of this read, so that each publisher is woken once and sees all its room.
    for queue in answered:
        queue.settle()
