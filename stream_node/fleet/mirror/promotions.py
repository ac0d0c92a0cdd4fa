"""Promotions: begins the promotions of streams, resumes those of an earlier run of the node, and reports their results.
`stream_node.fleet.mirror.promotion` says how one stream is promoted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import structlog
import trio

from index_service.lease_groups import LeaseGroups
from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.asking import MirrorError, SourceGoesOn, SourceLost
from stream_node.fleet.mirror.mirror import Mirror
from stream_node.fleet.mirror.promotion import WAY_WITHOUT_FENCE, Promotion
from stream_node.fleet.mirror.protocol import MirrorState
from stream_node.fleet.mirror.tasks import MirrorTasks
from stream_service.role_machine import FOLLOWING, UNDER_PROMOTION, StreamRole
from stream_service.stored import StoredStream
from stream_storage.errors import StorageClosed, StorageError

IDS_MAX = 64
"""The largest number of operators who wait for one promotion, and of promotions whose end is remembered."""
RETRY_S = 0.5
"""The pause before another try of a step that must succeed in the end."""

logger = structlog.get_logger(__name__)


class Begun(msgspec.Struct):
    """A planned promotion that was begun.

    before: the mirrors as they were before it. ids: the ids of the requests that wait for it. is_resumed: whether an
    earlier run of the node has begun it. is_noted: whether all partitions are stored as being promoted. takes: whether
    a partition of this node may be a primary, so that it cannot be undone. is_known: whether its result can be
    reported. failure: why it failed; then the source gets its role back, which may end after `is_known`. has_ended:
    whether nothing is left to be done.
    """

    before: list[MirrorState]
    ids: set[int]
    is_resumed: bool = False
    is_noted: bool = False
    takes: bool = False
    is_known: bool = False
    failure: MirrorError | StorageError | ProtocolError | None = None
    has_ended: bool = False


class Promotions:
    """The promotions of the streams of one node.
    A planned promotion lasts until the missing messages are copied. So an operator begins it by a request with an
    id, and asks again with the same id until it has ended. Its result is reported to this id alone: a later request has
    another id, and begins another promotion."""

    def __init__(self, tasks: MirrorTasks, groups: LeaseGroups) -> None:
        self._tasks = tasks
        self._groups = groups
        self._begun: dict[str, Begun] = {}

    async def plan(self, name: str, promotion_id: int) -> tuple[bool, list[MirrorState]]:
        """Begins a planned promotion, or reports its progress. Raises MirrorError, StorageError, ProtocolError.
        Returns whether the stream is promoted, with the states before the promotion; otherwise with the present
        ones."""
        states = self._tasks.states(name)
        begun = self._begun.get(name)
        # Another request about a promotion that runs, or one about a promotion whose result this id may still read.
        if begun is not None and (promotion_id in begun.ids or not begun.has_ended):
            if begun.is_known:
                if begun.failure is not None:
                    raise begun.failure
                # The answer is about the present, and not about the moment at which the promotion ended.
                if self.mirrors(name):
                    raise MirrorError(f"{name!r} was promoted, and has become a mirror again since")
                return True, begun.before
            # Another operator may have begun the same promotion.
            if promotion_id not in begun.ids and len(begun.ids) >= IDS_MAX:
                raise MirrorError(f"{IDS_MAX} requests wait for the promotion of {name!r} already")
            begun.ids.add(promotion_id)
            return False, states
        self._promotion(name)
        self._tasks.get_own_address()
        logger.info("promotion_begun", stream=name, source=states[0].source)
        self._begin(name, Begun(states, {promotion_id}))
        return False, states

    def resume(self, name: str, stored: Sequence[StoredStream]) -> None:
        """Resumes a promotion that an earlier run of the node has begun. stored: the partitions of the stream."""
        logger.info("promotion_resumed", stream=name)
        begun = Begun(self._tasks.states(name), set(), is_resumed=True, takes=has_taken(stored))
        if self.mirrors(name, {StreamRole.RESTORING}):
            begun.failure, begun.is_known = MirrorError(f"an earlier promotion of {name!r} has failed"), True
        self._begin(name, begun)

    async def check_source_ends(self, name: str) -> None:
        """Raises SourceGoesOn if the source would go on taking pushes and cannot be fenced; MirrorError if there is no
        mirror."""
        reason = await self._promotion(name).find_why_source_goes_on(self._tasks.get_own_address)
        if reason is not None:
            raise SourceGoesOn(
                f"the source of {name!r} answers, and this node cannot make it a mirror: {reason}. So it would "
                f"take pushes beside this stream. {WAY_WITHOUT_FENCE}"
            )

    async def force(self, name: str) -> list[MirrorState]:
        """Promotes a stream without its source. Returns its earlier states. Raises MirrorError, StorageError."""
        promotion = self._promotion(name)
        # A planned promotion that is under way waits for the source.
        self._tasks.end(("promotion", name))
        before = await promotion.finish()
        begun = self._begun.get(name)
        if begun is not None:
            if not begun.has_ended and begun.failure is None:
                # Operators who wait for the planned promotion must not read that nothing is lost.
                begun.failure = MirrorError(
                    f"{name!r} takes pushes here now, but another request has promoted it by force meanwhile: messages "
                    "of its source may be missing, see `mirror status`"
                )
            begun.has_ended = begun.is_known = True
        return before

    async def remove(self, name: str) -> None:
        """Makes primaries of the partitions that follow, and fences nobody. Raises MirrorError, StorageError."""
        if self.mirrors(name):
            promotion = self._promotion(name)
            self._tasks.end(("promotion", name))
            await promotion.finish(fences=False)
            self._begun.pop(name, None)

    def is_under_way(self, name: str) -> bool:
        return bool(self.mirrors(name, UNDER_PROMOTION))

    def mirrors(self, name: str, roles: Collection[StreamRole] = FOLLOWING) -> list[Mirror]:
        return [mirror for mirror in self._tasks.mirrors(name) if mirror.has_role(roles)]

    def _promotion(self, name: str, roles: Collection[StreamRole] = FOLLOWING) -> Promotion:
        """Returns a promotion of the partitions of a stream with one of `roles`. Raises MirrorError without any."""
        mirrors = self.mirrors(name, roles)
        if not mirrors:
            raise MirrorError(f"{name!r} is no mirror on this node")
        return Promotion(name, mirrors, self._tasks, self._groups)

    def _begin(self, name: str, begun: Begun) -> None:
        self._begun.pop(name, None)
        self._begun[name] = begun
        # Promotions that have ended are remembered for late questions, up to IDS_MAX of all.
        ended = [each for each, of in self._begun.items() if of.has_ended]
        for each in ended[: max(0, len(self._begun) - IDS_MAX)]:
            del self._begun[each]
        self._tasks.begin(("promotion", name), lambda: self._run(name, begun))

    async def _run(self, name: str, begun: Begun) -> None:
        """Promotes a stream, or gives the role back to its source.
        The promotion, or the return, is repeated until it is done: otherwise no node might take pushes."""
        while True:
            reason = ""
            try:
                if begun.failure is None:
                    await self._promote(name, begun)
                if begun.failure is not None:
                    await self._give_back(name)
                begun.is_known = begun.has_ended = True
                return
            except StorageClosed:
                # The node is stopping. It goes on after its next start.
                return
            except (MirrorError, StorageError, ProtocolError) as error:
                reason = str(error)
            # An operator need not wait until the source is a primary again, which may take long.
            if begun.failure is not None and not begun.is_known:
                begun.failure = MirrorError(
                    f"{begun.failure}; the source may still be a mirror of this node, which goes on trying to make it "
                    f"a primary again: {reason}"
                )
                begun.is_known = True
            for each in self.mirrors(name):
                each.promotion_reason = reason
            await trio.sleep(RETRY_S)

    async def _promote(self, name: str, begun: Begun) -> None:
        """Does what is left of a promotion. Sets its failure, or raises the error if it has to be repeated."""
        if begun.takes and not self.mirrors(name, {StreamRole.PROMOTING}):
            # The last step has raised an error, but its change was stored.
            return
        if not self.mirrors(name):
            # A request has made all partitions primaries while the source could not be reached.
            begun.failure = MirrorError(f"another request has ended the promotion of {name!r}")
            return
        own_address = self._tasks.get_own_address()
        promotion = self._promotion(name)
        try:
            if not begun.is_noted:
                await promotion.begin(own_address, looks=not begun.is_resumed)
                begun.is_noted = True
            if not self.mirrors(name, {StreamRole.PROMOTING}) and self.mirrors(name):
                raise MirrorError(f"another request has ended the promotion of {name!r}")
            # A part of them may be primaries already.
            promotion = self._promotion(name, {StreamRole.PROMOTING})
            await promotion.run(own_address)
        except StorageClosed:
            raise
        except (MirrorError, StorageError, ProtocolError) as error:
            # The source may be a mirror already, or some partitions here primaries: then the promotion is repeated.
            begun.takes = begun.takes or promotion.takes
            if begun.takes or (begun.is_resumed and isinstance(error, SourceLost)):
                raise
            logger.error("promotion_failed", stream=name, reason=str(error))
            begun.failure = error

    async def _give_back(self, name: str) -> None:
        if self.is_under_way(name):
            await self._promotion(name, UNDER_PROMOTION).give_back(self._tasks.get_own_address())


def has_taken(stored: Sequence[StoredStream]) -> bool:
    """Whether a partition of a stream that is being promoted is a primary already.
    Such a primary fences the source of the other partitions, or has that source as its mirror."""
    rows = [each.mirror for each in stored if each.mirror is not None]
    sources = {(row.source, row.source_name) for row in rows if row.follows}
    fenced = {(row.source, row.source_name) for row in rows if not row.follows}
    primaries = [each for each in stored if each.mirror is None or not each.mirror.follows]
    mirrors = {(row.address, row.stream_name) for each in primaries for row in each.followers}
    return bool(sources & (fenced | mirrors))
