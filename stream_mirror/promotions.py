"""Promotions: begins the promotions of streams, and tells an operator what has become of them.

`stream_mirror.promotion` says how one stream is promoted.
"""

from __future__ import annotations

import msgspec
import structlog

from index_service.lease_groups import LeaseGroups
from storage.errors import StorageError
from stream_mirror.errors import MirrorError
from stream_mirror.promotion import Following, Promotion
from stream_mirror.protocol import MirrorState
from stream_mirror.tasks import MirrorTasks

IDS_MAX = 64
"""The largest number of operators who wait for one promotion, and of promotions whose end is remembered."""

logger = structlog.get_logger(__name__)


class Begun(msgspec.Struct):
    """A planned promotion that was begun.

    before: the mirrors, as they were before it.
    ids: the ids of the requests that wait for it.
    has_ended, failure: whether it has ended, and why it has failed.
    """

    before: list[MirrorState]
    ids: set[int]
    has_ended: bool = False
    failure: MirrorError | StorageError | None = None


class Promotions:
    """The promotions of the streams of one node.

    A planned promotion takes as long as the copying of what is missing. So an operator begins it by a request with an
    id, and asks again with the same id until it has ended. What came of it is told to this id alone: a later request
    has another id, and begins another promotion.
    """

    def __init__(self, tasks: MirrorTasks, groups: LeaseGroups) -> None:
        self._tasks = tasks
        self._groups = groups
        self._begun: dict[str, Begun] = {}

    async def plan(self, name: str, promotion_id: int) -> tuple[bool, list[MirrorState]]:
        """Begins a planned promotion, or tells how far it is. Raises MirrorError, StorageError.

        Returns whether the stream is promoted: then with the states before the promotion, and otherwise with the
        present ones.
        """
        states = self._tasks.states(name)
        begun = self._begun.get(name)
        if begun is not None and promotion_id in begun.ids:
            if begun.failure is not None:
                raise begun.failure
            if not begun.has_ended:
                return False, states
            # The answer is what is so now, and not what was so when the promotion ended.
            if self.following(name):
                raise MirrorError(f"{name!r} was promoted, and has become a mirror again since")
            return True, begun.before
        if begun is not None and not begun.has_ended:
            # Another operator has begun the same.
            if len(begun.ids) >= IDS_MAX:
                raise MirrorError(f"{IDS_MAX} requests wait for the promotion of {name!r} already")
            begun.ids.add(promotion_id)
            return False, states
        promotion = self._promotion(name)
        own_address = self._tasks.get_own_address()
        logger.info("promotion_begun", stream=name, source=states[0].source)
        begun = self._remember(name, Begun(states, {promotion_id}))
        self._tasks.begin(("promotion", name), lambda: self._run(name, begun, promotion, own_address))
        return False, states

    async def force(self, name: str) -> list[MirrorState]:
        """Promotes a stream without its source. Returns the states before the promotion. Raises MirrorError,
        StorageError."""
        states = self._tasks.states(name)
        promotion = self._promotion(name)
        # A planned promotion that is under way waits for the source.
        self._tasks.end(("promotion", name))
        await promotion.finish()
        begun = self._begun.get(name)
        if begun is not None:
            begun.has_ended = True
        return states

    async def remove(self, name: str) -> None:
        """Makes the partitions that follow primaries, and fences nobody. Raises MirrorError, StorageError."""
        if self.following(name):
            promotion = self._promotion(name)
            self._tasks.end(("promotion", name))
            await promotion.finish(fences=False)
            self._begun.pop(name, None)

    def following(self, name: str) -> list[Following]:
        """Returns the partitions of a stream that follow a source."""
        return [
            Following(self._tasks.stream(identity), row, self._tasks.figures[identity])
            for identity, row in self._tasks.rows(name).items()
            if row.follows
        ]

    def _promotion(self, name: str) -> Promotion:
        """Returns a promotion of all partitions of a stream that follow. Raises MirrorError if none does."""
        following = self.following(name)
        if not following:
            raise MirrorError(f"{name!r} is no mirror on this node")
        keeper = self._tasks.keepers[name]
        return Promotion(name, following, keeper, self._groups, self._tasks.new_id, self._tasks.note_role)

    def _remember(self, name: str, begun: Begun) -> Begun:
        self._begun.pop(name, None)
        self._begun[name] = begun
        ended = [each for each, of in self._begun.items() if of.has_ended]
        for each in ended[: max(0, len(self._begun) - IDS_MAX)]:
            del self._begun[each]
        return begun

    async def _run(self, name: str, begun: Begun, promotion: Promotion, own_address: str) -> None:
        try:
            await promotion.run(own_address)
        except (MirrorError, StorageError) as error:
            begun.failure = error
            logger.error("promotion_failed", stream=name, reason=str(error))
        begun.has_ended = True
