"""Reads the state of a chain again after a write that may or may not be stored."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from block_node.persist.chain_log import ChainLog, StoredChain
from block_node.persist.operations import read_chain
from stream_storage.contract import Do, Session, StreamRecord
from stream_storage.errors import CommitUnsettled, DatabaseLost, StorageClosed
from stream_storage.runner import Runner

logger = structlog.get_logger(__name__)

Learn = Callable[[StoredChain, StreamRecord], None]


def read_again(storage: Runner, log: ChainLog, learn: Learn) -> None:
    """Reads the state of a chain as soon as the storage knows what it has stored, and passes it to `learn`."""

    def work(session: Session) -> tuple[StoredChain, StreamRecord | None] | None:
        state = read_chain(session, log)
        return None if state is None else (state, log.stream(session))

    def read(operation: Do[tuple[StoredChain, StreamRecord | None] | None]) -> None:
        if isinstance(operation.error, CommitUnsettled | DatabaseLost):
            read_again(storage, log, learn)
        elif operation.error is not None:
            # Until the next start, the write counts as one that has stored nothing, and no blocks are deleted.
            logger.error("chain_not_read_again", reason=str(operation.error))
        elif operation.result is not None and operation.result[1] is not None:
            learn(operation.result[0], operation.result[1])

    try:
        # A read would not wait for the write that is in doubt.
        storage.submit_write(Do(work, read))
    except StorageClosed:
        # The next start reads the state.
        return
