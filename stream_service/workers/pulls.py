"""PullQueue: answers the pulls of one stream in order. A reading thread reads the pages of several pulls together.

`workers.pull_machine` decides which pulls are next and when they may be answered. `workers.pull_pages` encodes the
answers. This module does the rest: it submits reads, sends answers, sets timers, and counts the memory that each
connection's pulls take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from ockam.actors.message import Message, Origin, reply_to
from ockam.actors.worker import Worker
from ockam.protocol import error_payload
from ockam.quotas.memory import Room
from stream_service.cutting import CutPull
from stream_service.extensions import FromIndex, MarkedPull, RichPull
from stream_service.mirroring import MIRROR_MESSAGES_MAX, MirrorPull
from stream_service.operations import Page, ReadPages
from stream_service.protocol import PullRequest
from stream_service.workers.pull_machine import (
    CLOSE,
    CLOSED,
    HOLD,
    RELEASE,
    TURN_CAME,
    TURN_YIELDED,
    PullMachine,
)
from stream_service.workers.pull_pages import Pull, PullPages
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.tail_machine import Tail

if TYPE_CHECKING:
    from stream_service.workers.stream_services import StreamServices

ROOM_WAIT_S = 5.0
"""After this time, a large answer needs no more room than beside the other large answers. Then connections that do not
take their answers are closed for it, as for any other answer."""
BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""The number of unsent bytes above which a consumer is slow. A slow consumer gets no further answers until it has taken
some of these bytes."""
PULL_MEMORY_BYTES = 1_500
"""The memory that a waiting pull takes, in bytes, in addition to the addresses of its return route."""


class PullQueue:
    """Answers the pulls of one stream, on behalf of the stream's worker.

    A read ends when it has the data of one full page, so that the answers to a thousand pulls are never in memory
    together. Pages in the tail (the newest messages of the stream, in memory) are not read from the disk.

    A message larger than `pull_bytes_max` is read only when there is room for it in the memory for all peers
    (`ockam.quotas.memory.Room`). Until then, the pulls of its consumer are blocked.

    A rich pull (`node/stream_pull/1`) that finds no message may wait for one, as a long poll. A pull is blocked while
    its consumer has not taken earlier answers. Blocked pulls and long polls may wait long, so their memory is counted
    for their connection (`Origin.holdings`).

    Invariant: the memory of a pull is counted exactly while the pull is blocked or a long poll. A connection is watched
    exactly while pulls from it are blocked. `_rooms` has the consumers whose next answer needs room. Timers cannot be
    cancelled, so every timer except the one for `_timer_at_s` does nothing.
    """

    def __init__(
        self,
        worker: Worker,
        bounds: StreamBounds,
        tail: Tail,
        services: StreamServices,
        on_room: Callable[[], None],
    ) -> None:
        """on_room: called when answers were sent and `is_full` is False, so that the worker can resume its mailbox."""
        self._worker = worker
        self._bounds = bounds
        self._tail = tail
        self._services = services
        self._on_room = on_room
        self._machine: PullMachine[Pull] = PullMachine(self._must_wait)
        self._timer_at_s = math.inf
        self._rooms: dict[Origin, Room] = {}
        self._used: list[Room] = []

    def started(self) -> None:
        """Completes the initialization. Called when the worker has its address."""
        self._pages = PullPages(self._worker.context.address, self._bounds, self._tail, self._services)

    @property
    def is_full(self) -> bool:
        """Whether so many pulls wait that the worker should pause its mailbox."""
        return self._machine.is_full

    def add(self, message: Message, request: PullRequest) -> None:
        """Adds a pull to the queue. `answer` answers the pull later."""
        limit = min(request.limit, self._services.limits.pull_messages_max)
        self._machine.add(Pull(message, request, Page(FromIndex(request.index), limit, rich=False), 0.0))

    def add_rich(self, message: Message, request: RichPull | CutPull) -> None:
        """Adds a rich pull (`node/stream_pull/1` or `/2`) to the queue. `answer` answers the pull later."""
        limits = self._services.limits
        limit = min(request.limit, limits.rich_pull_messages_max)
        wait_s = min(request.wait_ms / 1000, limits.pull_wait_s_max)
        # A consumer of an earlier incarnation of the stream hears at once that the stream was made again.
        if isinstance(request, MarkedPull) and request.created_us not in (0, self._bounds.created_us):
            limit = 0
        deadline_s = trio.current_time() + wait_s if wait_s and limit else 0.0
        self._machine.add(Pull(message, request, Page(request.start, limit, rich=True), deadline_s))

    def add_mirror(self, message: Message, request: MirrorPull) -> None:
        """Adds the pull of a mirror (`node/stream_mirror/1`) to the queue. `answer` answers the pull later."""
        wait_s = min(request.wait_ms / 1000, self._services.limits.pull_wait_s_max)
        page = Page(FromIndex(request.start), MIRROR_MESSAGES_MAX, rich=True)
        page.size_bytes = request.size_bytes
        self._machine.add(Pull(message, request, page, trio.current_time() + wait_s if wait_s else 0.0))

    def wake(self) -> None:
        """Ends all long polls (pulls that wait for a message), because the stream has new messages.

        `answer` answers these pulls later.
        """
        for pull in self._machine.wake():
            _unpark(pull)

    def hold(self) -> None:
        """Stops answering pulls until `answer` is called, because earlier pushes are not on disk yet.

        The answers of a read that is under way are still sent.
        """
        self._machine.note(HOLD)

    def answer(self) -> None:
        """Answers all pulls that were added so far, and ends `hold`. Called when all earlier pushes are stored or
        refused."""
        self._machine.note(RELEASE)
        self._answer()

    def refuse(self, reason: str) -> None:
        """Answers all waiting pulls with `error`, because the stream has been deleted."""
        address = self._worker.context.address
        waiting, blocked, long_polls = self._clear()
        refused = [*waiting, *long_polls, *blocked]
        self._worker.context.send_run([reply_to(pull.message, address, error_payload(reason)) for pull in refused])

    def hand_over(self) -> list[Message]:
        """Ends all pulls, because another node serves the stream from now on. Answers the long polls, without a
        message. Returns the requests of the other pulls, in order."""
        self._machine.note(CLOSE)
        self._tail.close()
        read = self._machine.take_batch()
        waiting, blocked, long_polls = self._clear()
        self._worker.context.send_run([self._pages.answer(pull) for pull in long_polls])
        return [pull.message for pull in (*read, *waiting, *blocked)]

    def close(self) -> None:
        """Drops all pulls and the messages that are kept in memory, because the worker has stopped."""
        self._machine.note(CLOSE)
        self._tail.close()
        self._clear()

    def _answer(self) -> None:
        """Answers the waiting pulls: at once if their pages are in memory, otherwise when their pages have been
        read."""
        while self._machine.can_take:
            pulls = self._take()
            known, is_full_page = self._find_known(pulls)
            if known:
                self._end_rooms(pulls[:known])
                # Waiting for a read would delay these answers, so the rest of the batch goes into the next batch.
                self._finish(self._machine.finish(known))
                if is_full_page:
                    # Answering from memory could continue without end, so the other workers of the node run first.
                    self._machine.note(TURN_YIELDED)
                    self._worker.context.call_later(0.0, self._turn_came)
            elif pulls:
                self._read(pulls)

    def _take(self) -> Sequence[Pull]:
        """Takes the next batch of pulls, and updates the memory counts of blocked pulls.

        A pull is blocked while its consumer has not taken earlier answers.
        """
        pulls, blocked, unblocked = self._machine.take()
        for pull in unblocked:
            self._count(pull, -1)
            if not self._machine.has_blocked(pull.consumer):
                pull.consumer.holdings.unwatch((self, pull.consumer))
        if blocked:
            # All connections are watched before the first pull is counted. Counting may exceed the memory limit, which
            # ends the connections that use the most memory. If such a connection were not watched, its pulls would
            # never be dropped.
            self._count_all([pull for pull in blocked if self._watch(pull.consumer)])
        return pulls

    def _find_known(self, pulls: Sequence[Pull]) -> tuple[int, bool]:
        """Finds out how many of the first pulls need no read from the disk, because their pages are in memory.

        The search goes on up to the first pull whose page is not in memory. It ends early when the found pages hold
        `pull_bytes_max` bytes. Returns the number of pages found, and whether the search ended early.
        """
        find, found_bytes, bytes_max = self._pages.find, 0, self._services.limits.pull_bytes_max
        for known, pull in enumerate(pulls):
            if known and found_bytes >= bytes_max:
                return known, True
            found = find(pull)
            if found is None:
                return known, False
            for record in found:
                found_bytes += len(record[1])
        return len(pulls), False

    def _read(self, pulls: Sequence[Pull]) -> None:
        """Submits a read of the pages of a batch to the reading threads."""
        self._machine.begin_read()
        unused = set(self._rooms)
        for pull in pulls:
            self._pages.bound(pull)
            # A room is for one answer.
            pull.page.has_room = pull.consumer in unused
            unused.discard(pull.consumer)
        pages, bytes_max = [pull.page for pull in pulls], self._services.limits.pull_bytes_max
        answered = self._worker.context.guard(partial(self._answered, pulls))
        self._services.storage.submit_read(ReadPages(self._bounds.stream_id, pages, bytes_max, on_done=answered))

    def _answered(self, pulls: Sequence[Pull], read: ReadPages) -> None:
        """Called when a read has ended: sends the pages that were read. The pulls of the other pages wait again."""
        count = read.read
        if read.error is not None:
            count = len(read.pages)
            for page in read.pages:
                page.found = read.error
        self._end_rooms(pulls[:count])
        self._finish(self._machine.end_read(count))
        if read.needs_room and count < len(pulls) and self._machine.state is not CLOSED:
            self._wait_room(pulls[count])
        self.go_on()

    def _wait_room(self, pull: Pull) -> None:
        """Blocks the consumer's pulls until there is room in memory for the message that this pull begins with."""
        consumer, call_later = pull.consumer, self._worker.context.call_later
        came = partial(call_later, 0.0, partial(self._room_came, consumer))
        room = consumer.holdings.reserve(pull.page.first_bytes_max, BACKLOG_BYTES_MAX, came)
        self._rooms[consumer] = room
        if not room.has_come:
            call_later(ROOM_WAIT_S, room.insist)

    def _room_came(self, consumer: Origin) -> None:
        self._machine.unblock(consumer)
        self.go_on()

    def _end_rooms(self, answered: Iterable[Pull]) -> None:
        """Gives back the rooms of the consumers of these pulls, whose answers are sent now."""
        if not self._rooms:
            return
        for pull in answered:
            room = self._rooms.pop(pull.consumer, None)
            if room is not None:
                # The answer counts as unread only when it has reached its connection.
                self._used.append(room)
                self._worker.context.call_later(0.0, self._end_used)

    def _end_used(self) -> None:
        used, self._used = self._used, []
        for room in used:
            room.end()

    def _forget_room(self, consumer: Origin) -> None:
        room = self._rooms.pop(consumer, None)
        if room is not None:
            room.end()

    def _turn_came(self) -> None:
        self._machine.note(TURN_CAME)
        self.go_on()

    def go_on(self) -> None:
        """Answers the pulls that were added so far, unless earlier pushes are not on disk yet."""
        self._answer()
        # If too many pulls waited, the worker has paused its mailbox and must resume it.
        if not self._machine.is_full:
            self._on_room()

    def _finish(self, finished: tuple[Sequence[Pull], Sequence[Pull]]) -> None:
        """Answers the pulls of a batch. Pulls that found no message and may wait become long polls instead.

        finished: the pulls of the batch that can be answered, and the pulls that are blocked again.
        """
        pulls, blocked = finished
        if blocked:
            self._count_all(blocked)
        answers: list[Message] = []
        for pull in pulls:
            if pull.page.found or not pull.deadline_s or not self._park(pull, answers):
                answers.append(self._pages.answer(pull))
        self._worker.context.send_run(answers)

    # Long polls

    def _park(self, pull: Pull, answers: list[Message]) -> bool:
        """Turns a pull into a long poll, which waits for new messages. Returns False if the pull must be answered now.

        If the consumer's identity has too many long polls, adds an error to `answers` instead, and returns True.
        """
        usage = pull.consumer.usage
        refusal = usage.take("pulls_parked_max", pull.consumer.peer)
        if refusal is not None:
            # An empty page would make the consumer ask again at once.
            answers.append(reply_to(pull.message, self._worker.context.address, error_payload(refusal)))
            return True
        if not self._machine.park(pull, trio.current_time()):
            usage.give_back("pulls_parked_max")
            return False
        # The start of the pull is fixed now: messages that come later belong to its page.
        pull.page.start = FromIndex(pull.page.index)
        self._ensure_timer()
        # This is the last step: counting may exceed the memory limit and so end long polls, even this one.
        pull.consumer.holdings.park(pull, _size_in_memory(pull), partial(self._give_up, pull))
        return True

    def _ensure_timer(self) -> None:
        deadline_s = self._machine.next_deadline_s
        if deadline_s < self._timer_at_s:
            self._timer_at_s = deadline_s
            self._worker.context.call_later(deadline_s - trio.current_time(), partial(self._end_late, deadline_s))

    def _end_late(self, timer_at_s: float) -> None:
        """Called by a timer: answers the long polls (pulls that wait for a message) whose deadline has passed."""
        # A timer cannot be cancelled. An outdated timer does nothing, because another timer is set for an earlier time.
        if timer_at_s != self._timer_at_s:
            return
        self._timer_at_s = math.inf
        late = self._machine.end_late(trio.current_time())
        self._ensure_timer()
        for pull in late:
            _unpark(pull)
        self._worker.context.send_run([self._pages.answer(pull) for pull in late])

    def _give_up(self, pull: Pull, answers: bool) -> None:
        """Ends a long poll (a pull that waits for a message) early, to free its memory or because its connection has
        ended.

        answers: whether to answer the pull.
        """
        if self._machine.unpark(pull):
            _unpark(pull)
            if answers:
                self._worker.context.send_run([self._pages.answer(pull)])

    # Slow consumers

    def _must_wait(self, consumer: Origin) -> bool:
        """Whether a consumer gets no answer now: it has not taken earlier ones, or waits for room in memory."""
        room = self._rooms.get(consumer) if self._rooms else None
        return consumer.is_behind(BACKLOG_BYTES_MAX) or (room is not None and not room.has_come)

    def _watch(self, consumer: Origin) -> bool:
        """Watches the connection of a slow consumer, so that `_told` is called when the consumer has taken answers.

        If the connection has ended, drops the pulls of the consumer and returns False, otherwise True.
        """
        if consumer.holdings.has_ended:
            self._machine.drop_blocked(consumer)
            self._forget_room(consumer)
            return False
        consumer.holdings.watch((self, consumer), partial(self._told, consumer))
        return True

    def _told(self, consumer: Origin, is_gone: bool) -> None:
        """Called when a slow consumer has taken some of its answers, or when its connection has ended (`is_gone`)."""
        if is_gone:
            consumer.holdings.unwatch((self, consumer))
            for pull in self._machine.drop_blocked(consumer):
                self._count(pull, -1)
            self._forget_room(consumer)
        elif self._machine.unblock(consumer):
            # The connection calls this in the middle of a send, so the pulls are answered afterwards.
            self._worker.context.call_later(0.0, self.go_on)

    def _count_all(self, pulls: Iterable[Pull]) -> None:
        """Counts the memory of newly blocked pulls, which wait until their consumer has taken earlier answers.

        Call this method last, because it may end connections and so drop their pulls.
        """
        for pull in pulls:
            self._count(pull, 1)

    def _count(self, pull: Pull, sign: int) -> None:
        pull.consumer.holdings.note_waiting(sign * _size_in_memory(pull))

    def _clear(self) -> tuple[list[Pull], list[Pull], list[Pull]]:
        """Removes and returns all waiting pulls, all blocked pulls and all long polls. Their memory is no longer
        counted."""
        self._end_used()
        for consumer in list(self._rooms):
            self._forget_room(consumer)
        waiting, blocked, long_polls = self._machine.clear()
        for pull in long_polls:
            _unpark(pull)
        for pull in blocked:
            pull.consumer.holdings.unwatch((self, pull.consumer))
            self._count(pull, -1)
        return waiting, blocked, long_polls


def _size_in_memory(pull: Pull) -> int:
    return PULL_MEMORY_BYTES + sum(len(hop.value) for hop in pull.message.return_route)


def _unpark(pull: Pull) -> None:
    """Stops counting a long poll that has ended."""
    pull.consumer.holdings.unpark(pull)
    pull.consumer.usage.give_back("pulls_parked_max")
