"""PullQueue: answers the pulls of one stream in order: it submits reads, sends answers, sets timers and counts memory.

`workers.pull_machine` decides which pulls are next, and `workers.pull_pages` encodes their answers.
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
from stream_service.extensions import FromIndex, MarkedPull, PackedPull, RichPull
from stream_service.mirroring import MIRROR_MESSAGES_MAX, MirrorPull
from stream_service.operations import PullPage, ReadPages
from stream_service.protocol import PullRequest
from stream_service.workers.pull_machine import (
    CLOSE,
    CLOSED,
    TURN_CAME,
    TURN_YIELDED,
    PullMachine,
)
from stream_service.workers.pull_pages import Pull, PullPages, SharedPart
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.tail_machine import Tail

if TYPE_CHECKING:
    from stream_service.workers.stream_services import StreamServices
    from stream_storage.history import History

ROOM_WAIT_S = 5.0
"""How long a large answer waits for room in memory, in seconds. Then connections that do not take their answers are
closed to make room."""
BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""With more unsent bytes than this, a consumer is slow: it gets no further answers until it has taken some."""
PULL_MEMORY_BYTES = 1_500
"""The memory that a waiting pull takes, in bytes, in addition to the addresses of its return route."""


class PullQueue:
    """Answers the pulls of one stream, on behalf of the stream's worker.

    One read gets the pages of several pulls, but ends when it has as much as a full page, so that answers to a thousand
    pulls are never in memory together. A message larger than `pull_bytes_max` waits for room in memory
    (`ockam.quotas.memory.Room`).

    A pull is blocked while its consumer has not taken earlier answers. A rich pull that finds no message may wait for
    one, as a long poll. The memory of both is counted for their connection (`Origin.holdings`).

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
        self._services = services
        self._on_room = on_room
        self._machine: PullMachine[Pull] = PullMachine(self._must_wait)
        self._timer_at_s = math.inf
        self._rooms: dict[Origin, Room] = {}
        self._used: list[Room] = []
        self._pages = PullPages(worker.context.address, bounds, tail, services)
        self._has_news = False

    @property
    def is_idle(self) -> bool:
        return self._machine.is_idle and not self._rooms and not self._used

    @property
    def is_full(self) -> bool:
        return self._machine.is_full

    def add(self, message: Message, request: PullRequest) -> None:
        limit = min(request.limit, self._services.limits.pull_messages_max)
        self._machine.add(Pull(message, request, PullPage(FromIndex(request.index), limit, rich=False), 0.0))

    def add_rich(self, message: Message, request: RichPull) -> None:
        limits = self._services.limits
        limit = min(request.limit, limits.rich_pull_messages_max)
        wait_s = min(request.wait_ms / 1000, limits.pull_wait_s_max)
        # A consumer of an earlier incarnation of the stream hears at once that the stream was made again.
        if isinstance(request, MarkedPull) and request.created_us not in (0, self._bounds.created_us):
            limit = 0
        page = PullPage(request.start, limit, rich=True)
        if isinstance(request, PackedPull):
            page.size_bytes = limits.pull_bytes_max
        self._machine.add(Pull(message, request, page, wait_s if limit else 0.0))

    def add_mirror(self, message: Message, request: MirrorPull, *, has_parted: bool) -> None:
        # A mirror that has parted gets no messages, and hears of it at once.
        limit = 0 if has_parted else MIRROR_MESSAGES_MAX
        wait_s = min(request.wait_ms / 1000, self._services.limits.pull_wait_s_max)
        page = PullPage(FromIndex(request.start), limit, rich=True)
        page.size_bytes = request.size_bytes
        self._machine.add(Pull(message, request, page, wait_s if limit else 0.0))

    def wake(self) -> None:
        """Notes new messages, and ends the long polls whose page does not come in parts. `answer` answers all pulls."""
        self._has_news = True
        for pull in self._machine.wake():
            _unpark(pull)

    def hold(self) -> None:
        """Answers no pulls, except those being read, until `answer` is called: earlier pushes are not stored yet."""
        self._machine.is_held = True

    def answer(self) -> None:
        """Answers the pulls that were added so far. Called when all earlier pushes are stored or refused."""
        self._machine.is_held = False
        self._answer()

    def refuse(self, reason: str) -> None:
        """Answers all waiting pulls with `error`, because the stream has been deleted."""
        address = self._worker.context.address
        waiting, blocked, long_polls = self._clear()
        refused = [*waiting, *long_polls, *blocked]
        self._worker.context.send_run([reply_to(pull.message, address, error_payload(reason)) for pull in refused])

    def hand_over(self) -> list[Message]:
        """Answers the long polls with empty pages, and returns the requests of the other pulls, in order."""
        # The end of a read that is under way answers nothing any more.
        self._machine.note(CLOSE)
        read = self._machine.take_batch()
        waiting, blocked, long_polls = self._clear()
        self._worker.context.send_run([self._pages.answer(pull) for pull in long_polls])
        return [pull.rest() for pull in (*read, *waiting, *blocked)]

    def close(self) -> None:
        self._machine.note(CLOSE)
        self._clear()

    def _answer(self) -> None:
        if self._has_news:
            self._has_news = False
            self._send_parts()
        while self._machine.can_take:
            pulls = self._take()
            known, is_full_page = self._find_known(pulls)
            if known:
                # 1. The first pages are in memory: they are sent at once.
                self._end_rooms(pulls[:known])
                # Waiting for a read would delay these answers, so the rest of the batch goes into the next batch.
                self._finish(self._machine.finish(known))
                if is_full_page:
                    # Answering from memory could continue without end, so the other workers of the node run first.
                    self._machine.note(TURN_YIELDED)
                    self._worker.context.call_later(0.0, self._turn_came)
            elif pulls:
                # 2. The first page is not in memory. This state ends the loop until the read has ended.
                self._read(pulls)

    def _send_parts(self) -> None:
        """Sends new messages to the long polls that go on. A part is encoded once for all of them that have the same
        index and request id. A pull with room for less is answered in its turn like any other."""
        room_bytes = self._services.limits.pull_bytes_max
        parts: dict[tuple[int, int], SharedPart | None] = {}
        answers: list[Message] = []
        ended: list[Pull] = []
        for pull in self._machine.long_polls:
            which = pull.page.index, pull.request.request_id
            # A read can find messages before the end of their append is known here.
            if pull.page.index >= self._bounds.next_index:
                continue
            if which not in parts:
                parts[which] = self._pages.find_part(*which)
            part = parts[which]
            # The copies of a large part must not fill the memory, and a slow consumer gets shorter pages. A pull that
            # does not go on can become a long poll after `wake`, when a read ends.
            is_shared = pull.goes_on and room_bytes > 0 and not pull.consumer.backlog_bytes()
            answer = self._pages.answer_part(pull, part) if part is not None and is_shared else None
            if answer is not None:
                answers.append(answer)
                room_bytes -= len(answer.payload)
            if answer is None or not pull.goes_on:
                ended.append(pull)
        # Counting memory can end connections and their pulls, so nothing is counted in the loop.
        for pull in ended:
            self._machine.unpark(pull)
            _unpark(pull)
            if pull.page.index < self._bounds.next_index:
                self._machine.add(pull)
        self._worker.context.send_run(answers)

    def _take(self) -> Sequence[Pull]:
        pulls, blocked, unblocked = self._machine.take()
        # 1. These pulls are answered now, so their memory is not counted. Without blocked pulls, no watch is needed.
        for pull in unblocked:
            pull.consumer.holdings.note_waiting(-_size_in_memory(pull))
            if not self._machine.has_blocked(pull.consumer):
                pull.consumer.holdings.unwatch((self, pull.consumer))
        if blocked:
            # 2. All connections are watched before a pull is counted. Counting may exceed the memory limit, which
            # ends the connections that use the most memory. If such a connection were not watched, its pulls would
            # never be dropped.
            self._count_all([pull for pull in blocked if self._watch(pull.consumer)])
        return pulls

    def _find_known(self, pulls: Sequence[Pull]) -> tuple[int, bool]:
        """Returns how many of the first pulls have their pages in memory, and whether these fill a whole page."""
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
        self._machine.begin_read()
        unused = set(self._rooms)
        for pull in pulls:
            self._pages.bound(pull)
            # A room is for one answer.
            pull.page.has_room = pull.consumer in unused
            unused.discard(pull.consumer)
        pages, bytes_max = [pull.page for pull in pulls], self._services.limits.pull_bytes_max
        answered = self._worker.context.guard(partial(self._answered, pulls, self._bounds.history))
        self._services.storage.submit_read(ReadPages(self._bounds.stream_id, pages, bytes_max, on_done=answered))

    def _answered(self, pulls: Sequence[Pull], history: History, read: ReadPages) -> None:
        count = read.read
        if self._bounds.history != history:
            # These messages are of the earlier history. A mirror would store them under the present one: it gets an
            # empty page, and asks again.
            for pull in pulls[:count]:
                if isinstance(pull.request, MirrorPull):
                    pull.page.found, pull.deadline_s = [], 0.0
        # 1. An error answers the whole batch.
        if read.error is not None:
            count = len(read.pages)
            for page in read.pages:
                page.found = read.error
        # 2. The pages that were read are sent. The pulls for the other pages wait again.
        self._end_rooms(pulls[:count])
        self._finish(self._machine.end_read(count))
        # 3. The read ended before a large message, for which its consumer needs room.
        if read.needs_room and count < len(pulls) and self._machine.state is not CLOSED:
            self._wait_room(pulls[count])
        self.go_on()

    def _wait_room(self, pull: Pull) -> None:
        """Blocks the consumer's pulls until there is room in memory for the message that this pull begins with."""
        consumer, call_later = pull.consumer, self._worker.context.call_later
        came = partial(call_later, 0.0, partial(self._room_came, consumer))
        room = consumer.holdings.reserve(pull.page.first_bytes_max, BACKLOG_BYTES_MAX, came)
        self._rooms[consumer] = room
        # After a time, the room is made by closing connections that do not take their answers.
        if not room.has_come:
            call_later(ROOM_WAIT_S, room.insist)

    def _room_came(self, consumer: Origin) -> None:
        self._machine.unblock(consumer)
        self.go_on()

    def _end_rooms(self, answered: Iterable[Pull]) -> None:
        if not self._rooms:
            return
        for pull in answered:
            room = self._rooms.pop(pull.consumer, None)
            if room is not None:
                # Until the answer has reached its connection, only the room counts its bytes. So the room ends a moment
                # later.
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
        self._answer()
        # If too many pulls waited, the worker has paused its mailbox and must resume it.
        if not self._machine.is_full:
            self._on_room()

    def _finish(self, finished: tuple[Sequence[Pull], Sequence[Pull]]) -> None:
        """Answers the pulls of the first list, or makes long polls of them. The second list is blocked again."""
        pulls, blocked = finished
        if blocked:
            self._count_all(blocked)
        answers: list[Message] = []
        for pull in pulls:
            # A page without a message may become a long poll instead of an answer.
            if pull.page.found or not pull.deadline_s or not self._park(pull, answers):
                answers.append(self._pages.answer(pull))
                if pull.goes_on:
                    # The rest of its page waits like a new pull, and so is answered behind this part.
                    pull.page.found = []
                    self._machine.add(pull)
        self._worker.context.send_run(answers)

    # Long polls

    def _park(self, pull: Pull, answers: list[Message]) -> bool:
        """Makes a pull a long poll, or refuses it in `answers`. Returns False if the pull must be answered now."""
        # Its connection has ended while earlier pushes were stored or pages were read: nobody waits for an answer.
        if pull.consumer.holdings.has_ended:
            return True
        usage = pull.consumer.usage
        refusal = usage.take("pulls_parked_max", pull.consumer.peer)
        if refusal is not None:
            # An empty page would make the consumer ask again at once.
            answers.append(reply_to(pull.message, self._worker.context.address, error_payload(refusal)))
            return True
        # The deadline has passed, or too many pulls of this stream wait.
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
        """Ends a long poll early, to free its memory, or because its connection has ended (`answers` is False)."""
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
        """Has `_told` called when a slow consumer has taken answers. Returns False if its connection has ended."""
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
                pull.consumer.holdings.note_waiting(-_size_in_memory(pull))
            self._forget_room(consumer)
        elif self._machine.unblock(consumer):
            # The connection calls this in the middle of a send, so the pulls are answered afterwards.
            self._worker.context.call_later(0.0, self.go_on)

    def _count_all(self, pulls: Iterable[Pull]) -> None:
        """Counts the memory of blocked pulls. Called last, because it may end connections and so drop their pulls."""
        for pull in pulls:
            pull.consumer.holdings.note_waiting(_size_in_memory(pull))

    def _clear(self) -> tuple[list[Pull], list[Pull], list[Pull]]:
        """Removes and returns all waiting pulls, all blocked pulls and all long polls."""
        self._end_used()
        for consumer in list(self._rooms):
            self._forget_room(consumer)
        waiting, blocked, long_polls = self._machine.clear()
        for pull in long_polls:
            _unpark(pull)
        for pull in blocked:
            pull.consumer.holdings.unwatch((self, pull.consumer))
            pull.consumer.holdings.note_waiting(-_size_in_memory(pull))
        return waiting, blocked, long_polls


def _size_in_memory(pull: Pull) -> int:
    return PULL_MEMORY_BYTES + sum(len(hop.value) for hop in pull.message.return_route)


def _unpark(pull: Pull) -> None:
    pull.consumer.holdings.unpark(pull)
    pull.consumer.usage.give_back("pulls_parked_max")
