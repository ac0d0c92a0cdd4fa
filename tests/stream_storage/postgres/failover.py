"""A primary with a standby, and a writer that goes on through every failure of the primary."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from typing import Self

from stream_storage.commit import commit_batch
from stream_storage.contract import Append
from stream_storage.postgres.database import PostgresDatabase
from tests.support.postgres import PostgresServer

STREAMS = 5
"""The streams of one commit."""
STANDBY = "ANY 1 (*)"
PATIENCE_S = 60.0


class Pair:
    """A primary and a standby that copies it. A context manager.

    names: the setting synchronous_standby_names of a primary. With "", a confirm waits for no standby.
    """

    def __init__(self, names: str = STANDBY) -> None:
        self.primary = PostgresServer()
        self.standby: PostgresServer | None = None
        self._names = names
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.primary)
        self.standby = self._stack.enter_context(PostgresServer(copy_of=self.primary))
        # Set now, so that the standby waits for nobody when it is promoted.
        self.primary.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{self._names}'")
        self.primary.ask("SELECT pg_reload_conf()")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def wait_copied(self) -> None:
        """Returns when the standby has all that the primary has now."""
        assert self.standby is not None, "there is a standby"
        end = self.primary.ask("SELECT pg_current_wal_lsn()")
        deadline_s = time.monotonic() + PATIENCE_S
        while self.standby.ask(f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn") != "t":
            assert time.monotonic() < deadline_s, "the standby is behind"
            time.sleep(0.05)

    def wait_for_standby(self) -> None:
        """Returns when a commit on the primary waits for the standby."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.primary.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "0":
            assert time.monotonic() < deadline_s, "no commit waits"
            time.sleep(0.01)

    @property
    def url(self) -> str:
        assert self.standby is not None, "there is a standby"
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://someone@{hosts}/postgres"


class Writer(threading.Thread):
    """Appends to several streams all the time, in transactions of all sizes, and notes which messages were confirmed.

    confirmed: for each stream, its confirmed messages in their order. No two messages are the same.
    commits: when each transaction was confirmed. failure: the error after which the writer has ended, or None.
    """

    def __init__(self, url: str, *, call_s: float = 2.0, seed: int = 0) -> None:
        super().__init__(name="writer")
        self.database = PostgresDatabase.open(url, wait_s=PATIENCE_S, call_s=call_s)
        self.session = self.database.session()
        self.confirmed: dict[int, list[bytes]] = {}
        self.commits: list[float] = []
        self.failure: object = None
        self._chance = random.Random(seed)
        self._ended = threading.Event()
        self.session.begin()
        for number in range(STREAMS):
            self.confirmed[self.session.log.ensure_stream(f"s{number}", 0, 1).stream_id] = []
        self.session.commit()

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            appends = self._draw(number)
            self.failure = commit_batch(self.session, appends) or next(
                filter(None, (each.error for each in appends)), None
            )
            if self.failure is not None:
                return
            for append in appends:
                self.confirmed[append.stream_id] += append.data
            self.commits.append(time.monotonic())

    def _draw(self, number: int) -> list[Append]:
        """The appends of one transaction: a lone message, a group for one stream, or messages for all streams."""
        streams, rows = self._chance.choice([(1, 1), (1, 1), (1, 90), (STREAMS, 3)])
        return [
            Append(
                stream_id,
                len(self.confirmed[stream_id]),
                7,
                [b"%d %d %d" % (stream_id, number, row) for row in range(rows)],
            )
            for stream_id in self._chance.sample(list(self.confirmed), streams)
        ]

    def wait_commits(self, count: int) -> None:
        """Returns after so many further commits."""
        wanted = len(self.commits) + count
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.commits) < wanted:
            assert self.is_alive(), self.failure
            assert time.monotonic() < deadline_s, "no commit"
            time.sleep(0.002)

    def wait_failed(self) -> None:
        """Returns when the writer has ended because of an error."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the writer goes on"

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.session.close()
        self.database.close()

    def is_whole(self, server: PostgresServer) -> bool:
        """Whether the server has exactly the confirmed messages, and the ends of the streams that belong to them. psql
        reads all streams in one statement."""
        rows = server.ask("SELECT stream_id, idx, convert_from(data, 'UTF8') FROM messages ORDER BY 1, 2").splitlines()
        ends = server.ask("SELECT id, next_index, size_bytes FROM streams ORDER BY id").splitlines()
        wanted = [
            f"{stream_id}|{index}|{data.decode()}"
            for stream_id, known in sorted(self.confirmed.items())
            for index, data in enumerate(known)
        ]
        wanted_ends = [
            f"{stream_id}|{len(known)}|{sum(map(len, known))}" for stream_id, known in sorted(self.confirmed.items())
        ]
        return rows == wanted and ends == wanted_ends
