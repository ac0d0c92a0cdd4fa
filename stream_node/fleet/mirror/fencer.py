"""Fencer: makes the former source of a primary a mirror, as soon as it reaches it.
Without that, a primary that comes back would go on taking pushes, beside the mirror that has taken its place."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import structlog
import trio

from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.asking import Asker, asking, change_role
from stream_node.fleet.mirror.errors import MirrorError, Parted, SourceLost
from stream_node.fleet.mirror.figures import Figures
from stream_node.fleet.mirror.local_stream import LocalStream
from stream_node.fleet.mirror.protocol import MirrorCondition
from stream_service.follower_rows import FollowerRow
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import BeMirror, Role
from stream_service.role_operations import EndFence
from stream_storage.errors import StorageClosed, StorageError

RETRY_S = 0.5

logger = structlog.get_logger(__name__)


class Fencer:
    """Makes the former source of one primary a mirror of it. row: the former source. follower: the same, as a
    mirror, after `run`."""

    def __init__(
        self,
        stream: LocalStream,
        row: MirrorRow,
        figures: Figures,
        new_id: Callable[[], str],
        own_address: Callable[[], str],
    ) -> None:
        self._stream = stream
        self._row = row
        self.figures = figures
        self._new_id = new_id
        self._own_address = own_address
        self.follower: FollowerRow | None = None

    async def run(self) -> None:
        """Tries until the former source is a mirror, or until it is cancelled."""
        while True:
            try:
                with asking(self._stream.directory.node, self._row.source, self._new_id) as asker:
                    await self._fence(asker)
                ended = await self._stream.change(
                    lambda stream_id, done: EndFence(stream_id, self.figures.now_us(), done)
                )
                self.follower = ended.follower
                return
            except StorageClosed:
                # The node is stopping.
                return
            except (SourceLost, StorageError) as error:
                self.figures.set(MirrorCondition.FENCING, str(error))
            except (MirrorError, ProtocolError) as error:
                # The source answers, so it may take pushes. An operator has to do something about it.
                self.figures.set(MirrorCondition.UNFENCED, str(error))
            await trio.sleep(RETRY_S)

    async def _fence(self, asker: Asker) -> None:
        name, partition = self._stream.identity
        now = await change_role(asker, self._row.source_name, partition, None, force=False)
        own_address, history = self._own_address(), await self._stream.get_history()
        if now.role is Role.MIRROR and (now.source, now.stream_name) == (own_address, name):
            # A planned promotion has made it a mirror, without leave to move messages aside. If the promotion was
            # forced then, the former source can have messages that this node lacks.
            ends = [after.first_index for entry, after in pairwise(history) if entry.entry_id == now.entry_id]
            if not ends or now.next_index <= ends[0]:
                return
        elif now.entry_id not in {entry.entry_id for entry in history}:
            # Both have gone on since: an operator decides which one is right.
            raise Parted(
                f"{self._row.source_name!r} at {self._row.source} was promoted or restored since; "
                "make one of both a mirror by `mirror add --force`"
            )
        await change_role(asker, self._row.source_name, partition, BeMirror(own_address, name), force=True)
        logger.warning("source_fenced", stream=name, partition=partition, source=self._row.source)
