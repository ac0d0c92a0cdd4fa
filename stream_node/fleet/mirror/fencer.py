"""Makes the former source of a primary a mirror, as soon as it reaches it.
Without that, a primary that comes back would go on taking pushes, beside the mirror that has taken its place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import structlog
import trio

from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.asking import RemoteNode
from stream_node.fleet.mirror.errors import MirrorError, Parted, SourceLost
from stream_node.fleet.mirror.mirror import Mirror
from stream_node.fleet.mirror.protocol import MirrorCondition
from stream_service.follower_rows import FollowerRow
from stream_service.mirroring import BeMirror, Role
from stream_service.role_operations import end_fence
from stream_storage.errors import StorageClosed, StorageError

RETRY_S = 0.5

logger = structlog.get_logger(__name__)


async def fence(mirror: Mirror, own_address: Callable[[], str]) -> FollowerRow | None:
    """Makes the former source of a primary a mirror of it: tries until it is one, or until the task is cancelled.
    Returns the former source as a mirror; None if the node stops, or has the role no more."""
    while True:
        try:
            with mirror.asking() as remote:
                await _fence(mirror, remote, own_address)
            return (await mirror.stream.change(partial(end_fence, fenced_us=mirror.now_us()))).result
        except StorageClosed:
            # The node is stopping.
            return None
        except (SourceLost, StorageError) as error:
            mirror.report(MirrorCondition.FENCING, str(error))
        except (MirrorError, ProtocolError) as error:
            # The source answers, so it may take pushes. An operator has to do something about it.
            mirror.report(MirrorCondition.UNFENCED, str(error))
        await trio.sleep(RETRY_S)


async def _fence(mirror: Mirror, remote: RemoteNode, own_address: Callable[[], str]) -> None:
    (name, partition), row = mirror.stream.identity, mirror.row
    now = await mirror.change_source(remote)
    address, history = own_address(), await mirror.stream.get_history()
    if now.role is Role.MIRROR and (now.source, now.stream_name) == (address, name):
        # A planned promotion has made it a mirror, without leave to move messages aside. If the promotion was forced
        # then, the former source can have messages that this node lacks.
        ends = [after.first_index for entry, after in pairwise(history) if entry.entry_id == now.entry_id]
        if not ends or now.next_index <= ends[0]:
            return
    elif now.entry_id not in {entry.entry_id for entry in history}:
        # Both have gone on since: an operator decides which one is right.
        raise Parted(
            f"{row.source_name!r} at {row.source} was promoted or restored since; "
            "make one of both a mirror by `mirror add --force`"
        )
    await mirror.change_source(remote, BeMirror(address, name), force=True)
    logger.warning("source_fenced", stream=name, partition=partition, source=row.source)
