"""FixedMember: one of the processes of one machine that share the shards for good, each with a database of its own.
The supervisor starts a dead one again, so no member takes shards of another one, and no member beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from stream_node.fleet.cluster.member import ShardServices, serve_shards
from stream_node.fleet.cluster.router import Router
from stream_node.fleet.cluster.statistics import MemberStatistics, peer_statistics
from stream_node.fleet.cluster.view import SHARDS, ClusterView, Shard, StoredMember, choose_owner
from stream_storage.errors import StorageBusy, StorageError

LOOK_S = 0.5

logger = structlog.get_logger(__name__)


def fixed_view(members: Sequence[StoredMember]) -> ClusterView:
    """Returns the view in which each member owns its share of the shards."""
    by_name = {member.name: member for member in members}
    return ClusterView(by_name, tuple(Shard(choose_owner(shard, by_name) or "", 1) for shard in range(SHARDS)))


class FixedMember:
    """The membership of one process, with the calls of `stream_node.fleet.cluster.member.ClusterMember`."""

    def __init__(self, router: Router, services: ShardServices, view: ClusterView) -> None:
        """view: from `fixed_view`, with this member."""
        self.router = router
        self._services = services
        self._view = view
        self._wake = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves the shards of this member, and connects to the others again and again. Raises StorageError.
        `task_status` is started when this member serves its shards."""
        await self._open()
        task_status.started()
        while True:
            self.router.update(self._view)
            with trio.move_on_after(LOOK_S):
                await self._wake.wait()
                # A connection has ended. What follows from that is done by the next update.
            self._wake = trio.Event()

    def refresh(self) -> None:
        self._wake.set()

    def read(self, on_read: Callable[[], None], *, soon: bool) -> None:
        """Calls `on_read` at once: nothing ever changes."""
        on_read()

    def lives(self, name: str) -> bool:
        return name in self._view.members

    def set_leaving(self, name: str, leaves: bool, on_done: Callable[[StorageError | None], None]) -> None:
        """Refuses: the shards of workers do not move."""
        on_done(StorageBusy("the shards of the workers of one machine do not move"))

    def statistics(self) -> MemberStatistics:
        return MemberStatistics(
            name=self.router.name,
            shards=len(self.router.served),
            members=len(self._view.members),
            taken=len(self.router.served),
            given=0,
            fenced=0,
            beats_failed=0,
            router=self.router.statistics(),
            peers=peer_statistics(self._view, ((member, True, 0.0) for member in self._view.members.values())),
            owners=self._view.shards,
            is_fixed=True,
        )

    async def _open(self) -> None:
        own = self._view.owned_by(self.router.name)
        self.router.update(self._view)
        # Nobody else ever has these shards, so no earlier route has to be cleared.
        await serve_shards(self.router, self._services, own)
        logger.info("worker_serves", worker=self.router.name, shards=len(own))
