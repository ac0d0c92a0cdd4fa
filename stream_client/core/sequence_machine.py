"""The numbers under which one publisher's messages are stored once, however often they are sent. Pure.

A node takes a publisher's first number as it comes, the next one only after it, and answers a number it has stored
with DUPLICATE (`stream_service.extensions.RichStatus`). So a number must never be used for two messages, and nobody
but the first message may come to the node first. And a message that was sent again has a copy in an old connection,
which the node may still read; so of such a one nobody can say that it has not been stored. It is in doubt, as is one
whose sync failed. The node knows which of those it has once it is well again, and so they wait, with all that is behind
them, and are sent again, until it takes or knows them:

    answer to a push            the push                          its epoch
    OK, DUPLICATE               done, stored at that index        is open: any number may be on its way
    UNKNOWN, or NOT_STORED of   waits; it is sent again           as it was
      one that was sent again
    NOT_STORED behind a doubt   waits; it is sent again           as it was
    NOT_STORED else, REFUSED,   failed                            failed: no number of it is given out any more
      ERROR (an older node)
    OUT_OF_ORDER, epoch failed  failed, as one before it did      failed
    OUT_OF_ORDER, the oldest    failed: the numbers have a gap    failed
    OUT_OF_ORDER, others        waits for those before it; it is  as it was
                                sent again with them

An epoch is one publisher id and its numbers; until it is open, one push of it is on its way and the others are held. A
new one, with a new id, begins after a failure, unless the caller chose the id: then every later push fails too, unsent,
since only the caller knows what was to come next. A push that is known not to be storable before it is sent fails
without having had a number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from stream_client.core.requests import KeyedPush
from stream_client.errors import ClientError, PushNotStored, PushUnknown, RequestRefused
from stream_service.extensions import Outcome, PushFailure, RichConfirm, RichStatus

NO_REASON = "the node answered ERROR, which says neither why nor whether it is stored; see the node's log"
SENT_BEFORE = "it was sent again after a lost connection, and then not saved; what was sent before may have been stored"


class Epoch:
    """A publisher id and the next of its numbers.

    open: a number of it has been answered, so that the node knows where it begins. failed: a number is missing.
    """

    __slots__ = ("failed", "next_number", "open", "publisher_id")

    def __init__(self, publisher_id: bytes, next_number: int) -> None:
        self.publisher_id = publisher_id
        self.next_number = next_number
        self.open = False
        self.failed = False


class SequenceMachine:
    """Gives out numbers, holds back what must not be sent yet, and judges answers.

    new_id: makes the ids of later epochs; None keeps the one given, for good.
    reason: why the last push that is in doubt is so; None where none is.
    Invariant: while the epoch is not open, at most one push of it is on its way, and `_held` has those behind it.
    `_doubts` counts the pushes without an answer that are in doubt.
    """

    def __init__(self, publisher_id: bytes, first_number: int, new_id: Callable[[], bytes] | None) -> None:
        self._new_id = new_id
        self._epoch = Epoch(publisher_id, first_number)
        self._opening: KeyedPush | None = None
        self._held: deque[tuple[int, KeyedPush]] = deque()
        self._skipped = 0
        self._doubts = 0
        self._reason = ""

    @property
    def reason(self) -> str | None:
        return self._reason if self._doubts else None

    @property
    def held(self) -> int:
        """How many pushes wait for the epoch to be open."""
        return len(self._held)

    def admit(self, request_id: int, push: KeyedPush) -> bool:
        """Whether this push is to be sent now, with the number that it has got; else it is held, or has failed."""
        if self._held or (self._opening is not None and not self._epoch.open):
            self._held.append((request_id, push))
            return False
        return self._number(push)

    def release(self) -> list[tuple[int, KeyedPush]]:
        """The held pushes that are to be sent, or have failed, now; in order."""
        released = []
        while self._held and (self._opening is None or self._epoch.open):
            released.append(self._held.popleft())
            self._number(released[-1][1])
        return released

    def abandon(self) -> None:
        """All pushes without an answer have been failed by somebody else; they may or may not be stored."""
        self._held.clear()
        self._opening = None
        self._skipped = self._doubts = 0
        self._epoch.failed = True

    def sent_again(self, push: KeyedPush) -> None:
        """The push is on its way once more, so that an answer which it has had no longer counts."""
        push.sent_again = True
        self._forgive(push)

    def retract(self, push: KeyedPush) -> None:
        """The push could not be sent: its number is free where it was the last one given out, and never used.

        It is not where the caller chose the id, and so counts the numbers itself.
        """
        epoch = push.epoch
        assert epoch is not None, "a push that was never admitted was to be sent"
        if push.number + 1 == epoch.next_number and not push.sent_again and self._new_id is not None:
            epoch.next_number = push.number
        else:
            epoch.failed = True
        self._settle(push)

    def answered(self, push: KeyedPush, confirm: RichConfirm, unanswered: Iterable[KeyedPush]) -> list[KeyedPush]:
        """Judge the answer to a push; returns every push that is finished by it.

        unanswered: all pushes without an answer, oldest first, this one too.
        """
        epoch = push.epoch
        assert epoch is not None, "a push that was never admitted has been answered"
        if confirm.status in (RichStatus.OK, RichStatus.DUPLICATE):
            push.index = confirm.index
            epoch.open = True
            self._settle(push)
            push.finish()
            return [push]
        if confirm.status is RichStatus.ERROR:
            return self._fail(epoch, push, PushUnknown(NO_REASON), unanswered)
        if confirm.status is RichStatus.REFUSED:
            return self._fail(epoch, push, refused_by_node(), unanswered)
        if epoch.failed:
            return self._fail(epoch, push, _behind_a_failure(push), unanswered)
        if next(each for each in unanswered if each.epoch is epoch) is push:
            reason = f"number {push.number} of this publisher does not follow: the node expects {confirm.expected}"
            return self._fail(epoch, push, PushNotStored(reason), unanswered)
        self._skipped += not push.skipped
        push.skipped = True
        return []

    def failed(self, push: KeyedPush, failure: PushFailure, unanswered: Iterable[KeyedPush]) -> list[KeyedPush]:
        """Judge a `node/push_failed/1`, as `answered` does a confirm. A push that goes on waiting is not returned."""
        epoch = push.epoch
        assert epoch is not None, "a push that was never admitted has been answered"
        if failure.outcome is Outcome.REFUSED:
            return self._fail(epoch, push, refused_by_node(failure.reason), unanswered)
        if failure.outcome is Outcome.UNKNOWN or push.sent_again:
            self._forgive(push)
            self._doubts += not push.in_doubt
            push.in_doubt, self._reason = True, failure.reason
            return []
        if self._doubts:
            # Were it failed, those behind it would come to the node before those in doubt.
            return []
        return self._fail(epoch, push, PushNotStored(failure.reason), unanswered)

    def _fail(
        self, epoch: Epoch, push: KeyedPush, error: ClientError, unanswered: Iterable[KeyedPush]
    ) -> list[KeyedPush]:
        """Finish this push, and those behind it that the node has refused already."""
        epoch.failed = True
        self._settle(push)
        push.finish(error)
        finished = [push]
        if self._skipped:
            finished += [each for each in unanswered if each.epoch is epoch and each.skipped]
            for each in finished[1:]:
                self._settle(each)
                each.finish(_behind_a_failure(each))
        return finished

    def _settle(self, push: KeyedPush) -> None:
        self._forgive(push)
        self._doubts -= push.in_doubt
        push.in_doubt = False
        if push is self._opening:
            self._opening = None

    def _forgive(self, push: KeyedPush) -> None:
        self._skipped -= push.skipped
        push.skipped = False

    def _number(self, push: KeyedPush) -> bool:
        """Give the push its number, or fail it where there are no more."""
        if self._epoch.failed:
            if self._new_id is None:
                push.finish(_behind_a_failure(push))
                return False
            self._epoch = Epoch(self._new_id(), 0)
        epoch = self._epoch
        refusal = push.refusal()
        if refusal is not None:
            epoch.failed = self._new_id is None
            push.finish(refusal)
            return False
        push.epoch, push.number = epoch, epoch.next_number
        epoch.next_number += 1
        if not epoch.open:
            self._opening = push
        return True


def not_saved(failure: PushFailure, sent_again: bool) -> ClientError:
    """What a failure means for a message without a number. sent_again: a copy may still lie in an old connection."""
    if failure.outcome is Outcome.REFUSED:
        return refused_by_node(failure.reason)
    if failure.outcome is Outcome.UNKNOWN:
        return PushUnknown(failure.reason)
    return PushUnknown(f"{SENT_BEFORE}: {failure.reason}") if sent_again else PushNotStored(failure.reason)


def refused_by_node(reason: str = "it is larger than a stream keeps") -> RequestRefused:
    """What the node's REFUSED means for a message."""
    return RequestRefused(f"the node refuses the message, which has not been stored: {reason}")


def _behind_a_failure(push: KeyedPush) -> ClientError:
    if push.sent_again:
        return PushUnknown(SENT_BEFORE)
    return PushNotStored("a message before it was not saved, so the node has not stored this one either")
