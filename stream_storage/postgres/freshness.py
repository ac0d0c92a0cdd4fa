"""Keeps a read-only session away from servers that lack confirmed writes.

Two kinds of servers lack them. A standby copies with a delay. A former primary that was started again alone takes reads
and says that it takes writes, but no node writes to it any more. The row of the writer
(`stream_storage.postgres.ownership`) shows both: it has the epoch of the writer and the number of its last transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from stream_storage.errors import DatabaseLost
from stream_storage.postgres.ownership import Ownership
from stream_storage.postgres.server import pause

STANDBY_BEHIND_S = 2.0
"""For how long a transaction that reads waits until the standby has all confirmed messages."""

logger = structlog.get_logger(__name__)

_BEGIN = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Freshness:
    """Begins the transactions of one session that reads.

    Invariant: a server that says that it takes writes is compared with the writer once for each epoch of the writer,
        and a standby at each transaction. The writer takes a new epoch with each connection, so a server that the
        writer has left is noticed at the next transaction, and the usual transaction takes no further trip."""

    def __init__(self, writer: Ownership) -> None:
        self._writer = writer
        self._epoch = 0
        self._told_epoch = 0

    def renew(self) -> None:
        """Makes the next transaction compare the server, since the connection is a new one."""
        self._epoch = 0

    def begin(self, run: Callable[[bytes], Any], *, is_on_standby: bool) -> None:
        """Begins a transaction that sees all confirmed writes. Raises DatabaseLost if another server must be
        found."""
        writer = self._writer
        if is_on_standby and writer.connected:
            # A server takes writes again, and every standby is behind that server. The pause is needed: if that server
            # refuses this session, the next connection leads to the standby again.
            pause()
            raise DatabaseLost("a server takes writes again")
        # Read before the transaction begins: what is confirmed later need not be seen.
        epoch, confirmed = writer.epoch, writer.confirmed
        end_s = time.monotonic() + STANDBY_BEHIND_S
        while True:
            run(_BEGIN)
            if not is_on_standby and self._epoch == epoch:
                return
            result = run(writer.state_query)
            if result.ntuples == 1:
                stored_epoch, stored = (int(result.get_value(0, column)) for column in (0, 1))
                if stored_epoch >= epoch and stored >= confirmed:
                    self._epoch = epoch
                    return
            run(b"ROLLBACK")
            if not is_on_standby:
                self._report_left(epoch)
                pause()
                raise DatabaseLost("the server takes writes, but the node writes to another one, which has more")
            if time.monotonic() > end_s:
                raise DatabaseLost("the standby does not have all confirmed messages")
            pause()

    def _report_left(self, epoch: int) -> None:
        # The session can come to a former primary often, so it is logged once for each epoch of the writer.
        if self._told_epoch != epoch:
            self._told_epoch = epoch
            logger.warning(
                "database_old_primary_left", reason="it lacks confirmed messages; end it, or make it a standby"
            )
