"""Reads the state of a chain again after a write of which nobody knows whether it is stored."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from block_node.persist.chain_log import ChainLog, StoredChain
from block_node.persist.operations import ReadChain
from stream_storage.contract import Session, StreamRecord
from stream_storage.errors import CommitUnsettled, ConnectionLost, StorageClosed
from stream_storage.runner import Runner

logger = structlog.get_logger(__name__)

Learn = Callable[[StoredChain, StreamRecord], None]


class ReadAgain(ReadChain):
    """Reads the state of a chain and its stream, after all writes that were submitted before."""

    __slots__ = ("stream",)

    def __init__(self, log: ChainLog, on_done: Callable[[ReadAgain], None]) -> None:
        super().__init__(log, on_done)
        self.stream: StreamRecord | None = None

    def apply(self, session: Session) -> None:
        super().apply(session)
        self.stream = None if self.state is None else self.log.stream(session)


def read_again(storage: Runner, log: ChainLog, learn: Learn) -> None:
    """Reads the state of a chain as soon as the storage knows what it has stored, and passes it to `learn`."""

    def read(operation: ReadAgain) -> None:
        if isinstance(operation.error, CommitUnsettled | ConnectionLost):
            read_again(storage, log, learn)
        elif operation.error is not None:
            # Until the next start, the write counts as one that has stored nothing, and no blocks are deleted.
            logger.error("chain_not_read_again", reason=str(operation.error))
        elif operation.state is not None and operation.stream is not None:
            learn(operation.state, operation.stream)

    try:
        # A read would not wait for the write that is in doubt.
        storage.submit_write(ReadAgain(log, read))
    except StorageClosed:
        # The next start reads the state.
        return
