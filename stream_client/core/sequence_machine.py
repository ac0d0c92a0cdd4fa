"""SequenceMachine: numbers the pushes of an idempotent publisher, so that a node stores each message once. Does no I/O.

Each push has a publisher id and a sequence number. A node accepts any number as the first one of a publisher id, and
after that only the next number. It answers a number that it has already stored with DUPLICATE
(`stream_service.extensions.RichStatus`). So two messages must never have the same number, and the first message must
reach the node before all others.

A push is in doubt if it is unknown whether its message is stored. This has two causes. The node has answered that it
does not know, for example after a failed fsync. Or the node could not store the push, but had been sent another copy
before, which it can still read from an old connection. A push in doubt is sent again until the node accepts its number
or answers DUPLICATE. Until then, all later pushes wait too.

An epoch is a publisher id with its numbers. The epoch is open when the node has accepted one of its numbers. Until
then, only one push of the epoch is sent and the others wait. After a failure, a new epoch with a new id begins. If the
caller chose the id, there is no new epoch: every later push fails unsent, since only the caller knows which number is
next. A push that no node would accept fails before it gets a number.

    answer to a push            the push                          its epoch
    OK, DUPLICATE               done, stored at that index        open: many pushes can be sent
    UNKNOWN                     in doubt; it is sent again        unchanged
    NOT_STORED, sent again      in doubt; it is sent again        unchanged
    NOT_STORED, another push    waits; it is sent again           unchanged
      is in doubt
    NOT_STORED otherwise,       failed                            failed: it gives out no more numbers
      REFUSED, ERROR
    OUT_OF_ORDER, epoch failed  failed, as an earlier push did    failed
    OUT_OF_ORDER, oldest push   failed: the numbers have a gap    failed
    OUT_OF_ORDER, other pushes  waits for the earlier pushes; it  unchanged
                                is sent again with them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ockam.identity.gate import is_denied
from stream_client.core.pushes import Epoch, KeyedPush
from stream_client.errors import (
    AccessDenied,
    ClientError,
    PushNotStored,
    PushOutOfOrder,
    PushUnknown,
    RequestRefused,
)
from stream_service.extensions import INDEX_KNOWN, Outcome, PushFailure, RichConfirm, RichStatus

NO_REASON = "the node answered ERROR, which says neither why nor whether it is stored; see the node's log"
SENT_BEFORE = "it was sent again after a lost connection, and then not saved; what was sent before may have been stored"


class SequenceMachine:
    """Numbers the pushes of an idempotent publisher, delays pushes that must wait, and decides what each answer means.

    new_id: a function that returns the ids of later epochs; None: only the given id is used.
    reason: why the latest push in doubt is in doubt; None if no push is in doubt.

    Invariant: while the epoch is not open, at most one of its pushes is sent, and `_held` has the later pushes.
    `_doubts` counts the unanswered pushes that are in doubt.
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
        """The number of pushes that wait until the node has accepted the first one (until the epoch is open)."""
        return len(self._held)

    def admit(self, request_id: int, push: KeyedPush) -> bool:
        """Numbers a new push, and returns whether to send it now. If false, the push must wait or has failed."""
        # The node takes any number as the first one. A push that overtook the first one would become the first.
        if self._held or (self._opening is not None and not self._epoch.open):
            self._held.append((request_id, push))
            return False
        return self._number(push)

    def release(self) -> list[tuple[int, KeyedPush]]:
        """Numbers the waiting pushes that can be sent now, and returns them in order. Some of them may have failed."""
        released = []
        # While the epoch is not open, only its first push is sent, and the others wait on.
        while self._held and (self._opening is None or self._epoch.open):
            released.append(self._held.popleft())
            self._number(released[-1][1])
        return released

    def abandon(self) -> None:
        # Each unanswered push is perhaps stored, so the publisher id of the epoch is not used any more.
        self._held.clear()
        self._opening = None
        self._skipped = self._doubts = 0
        self._epoch.failed = True

    def sent_again(self, push: KeyedPush) -> None:
        """Records that the push was sent again. An earlier OUT_OF_ORDER answer to it no longer counts."""
        push.sent_again = True
        self._forgive(push)

    def retract(self, push: KeyedPush) -> None:
        epoch = push.epoch
        assert epoch is not None, "a push that was never admitted was to be sent"
        # The next push gets the number if no later number is in use, the number was never sent, and this machine has
        # chosen the publisher id. Otherwise the numbers have a gap, after which the node accepts none.
        if push.number + 1 == epoch.next_number and not push.sent_again and self._new_id is not None:
            epoch.next_number = push.number
        else:
            epoch.failed = True
        self._settle(push)

    def answered(self, push: KeyedPush, confirm: RichConfirm, unanswered: Iterable[KeyedPush]) -> list[KeyedPush]:
        """Returns every push that a confirm finishes. `unanswered`: all unanswered pushes, oldest first."""
        epoch = push.epoch
        assert epoch is not None, "a push that was never admitted has been answered"
        # The message is stored, now or earlier. So the node knows the first number, and the waiting pushes can follow.
        if confirm.status in (RichStatus.OK, RichStatus.DUPLICATE):
            push.is_duplicate = confirm.status is RichStatus.DUPLICATE
            # The index 0 of a duplicate can also say that the node does not remember the index of the message.
            is_known = confirm.index or confirm.expected == INDEX_KNOWN or not push.is_duplicate
            push.index = confirm.index if is_known else -1
            epoch.open = True
            self._settle(push)
            push.finish()
            return [push]
        # The message may be stored, or no later number can follow it. Either way the epoch ends here.
        if confirm.status is RichStatus.ERROR:
            return self._fail(epoch, push, PushUnknown(NO_REASON), unanswered)
        if confirm.status is RichStatus.REFUSED:
            return self._fail(epoch, push, refused_by_node(push.sent_again), unanswered)
        # Only OUT_OF_ORDER is left. After the failure of an earlier push, it says nothing new.
        if epoch.failed:
            return self._fail(epoch, push, _behind_a_failure(push), unanswered)
        # Nothing is before the oldest push, so the gap is not in our pushes: the caller's first number was wrong, or
        # the node has lost messages.
        if next(each for each in unanswered if each.epoch is epoch) is push:
            return self._fail(epoch, push, PushOutOfOrder(push.number, confirm.expected), unanswered)
        # An earlier push is still unanswered. Both are sent again together, and this one then has its turn.
        self._skipped += not push.skipped
        push.skipped = True
        return []

    def failed(self, push: KeyedPush, failure: PushFailure, unanswered: Iterable[KeyedPush]) -> list[KeyedPush]:
        """Returns every push that a `node/push_failed/1` for this push finishes: none if it is to be sent again."""
        epoch = push.epoch
        assert epoch is not None, "a push that was never admitted has been answered"
        # The node would refuse every later copy, too.
        if failure.outcome is Outcome.REFUSED:
            return self._fail(epoch, push, refused_by_node(push.sent_again, failure.reason), unanswered)
        # An older copy may still arrive over an old connection. Only the node's answer to the same number decides.
        if failure.outcome is Outcome.UNKNOWN or push.sent_again:
            self._forgive(push)
            self._doubts += not push.in_doubt
            push.in_doubt, self._reason = True, failure.reason
            return []
        if self._doubts:
            # If this push failed now, later pushes would reach the node before the pushes in doubt.
            return []
        return self._fail(epoch, push, PushNotStored(failure.reason), unanswered)

    def _fail(
        self, epoch: Epoch, push: KeyedPush, error: ClientError, unanswered: Iterable[KeyedPush]
    ) -> list[KeyedPush]:
        """Fails this push, and all pushes of its epoch that the node has refused as out of order. Returns all these."""
        epoch.failed = True
        self._settle(push)
        push.finish(error)
        finished = [push]
        # The pushes that were refused as out of order waited for this push, and now wait in vain.
        if self._skipped:
            finished += [each for each in unanswered if each.epoch is epoch and each.skipped]
            for each in finished[1:]:
                self._settle(each)
                each.finish(_behind_a_failure(each))
        return finished

    def _settle(self, push: KeyedPush) -> None:
        self._forgive(push)
        self._doubts -= push.in_doubt
        if push is self._opening:
            self._opening = None

    def _forgive(self, push: KeyedPush) -> None:
        self._skipped -= push.skipped
        push.skipped = False

    def _number(self, push: KeyedPush) -> bool:
        """Gives the push its sequence number. Returns False if the push has failed and got no number."""
        # With an id of the caller's own, only the caller knows which number is next, so every later push fails.
        if self._epoch.failed:
            if self._new_id is None:
                push.finish(_behind_a_failure(push))
                return False
            self._epoch = Epoch(self._new_id(), 0)
        epoch = self._epoch
        # A message that no node would accept must not use a number: the node would wait for it for ever.
        refusal = push.refusal()
        if refusal is not None:
            epoch.failed = self._new_id is None
            push.finish(refusal)
            return False
        push.epoch, push.number = epoch, epoch.next_number
        epoch.next_number += 1
        # This push opens the epoch. All later pushes wait until it is answered.
        if not epoch.open:
            self._opening = push
        return True


def not_saved(failure: PushFailure, sent_again: bool) -> ClientError:
    """Returns the error for a push without a sequence number that the node could not store. `sent_again`: whether an
    older copy can still arrive over an old connection, and the message is perhaps stored after all."""
    if failure.outcome is Outcome.REFUSED:
        return refused_by_node(sent_again, failure.reason)
    if failure.outcome is Outcome.UNKNOWN:
        return PushUnknown(failure.reason)
    return PushUnknown(f"{SENT_BEFORE}: {failure.reason}") if sent_again else PushNotStored(failure.reason)


def refused_by_node(sent_again: bool, reason: str = "it is larger than a stream keeps") -> ClientError:
    # The node may have had other rules when it received the first copy.
    if sent_again:
        return PushUnknown(f"{SENT_BEFORE}: {reason}")
    if is_denied(reason):
        return AccessDenied(reason)
    return RequestRefused(f"the node refuses the message, which has not been stored: {reason}")


def _behind_a_failure(push: KeyedPush) -> ClientError:
    if push.sent_again:
        return PushUnknown(SENT_BEFORE)
    return PushNotStored("a message before it was not saved, so the node has not stored this one either")
