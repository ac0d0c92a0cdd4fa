"""psycopg with a table that grows: binary COPY for batches, a prepared INSERT for single messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import psycopg

from bench.peer_clients.load import Clock, Done, Load, Pace

FILL_WINDOW = 1_000
TABLE = "CREATE TABLE IF NOT EXISTS {0} (index bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL)"


class PostgresWork:
    def __init__(self, port: int) -> None:
        address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        self._connection: Any = psycopg.connect(address, autocommit=True)

    def push(self, load: Load) -> Done:
        """Each window is a COPY, which is a transaction. The times of single pushes are not known."""
        if load.window == 1:
            return self.latency(load)._replace(times_us=[])
        data = os.urandom(load.size_bytes)
        self._create(load)
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            count = min(load.window, load.messages - sent)
            self._copy(load.stream, (data for _ in range(count)))
            sent += count
        return clock.done(sent)

    def fill(self, load: Load) -> Done:
        return self.push(load._replace(window=FILL_WINDOW))

    def latency(self, load: Load) -> Done:
        data = os.urandom(load.size_bytes)
        self._create(load)
        clock, sent = Clock(load), 0
        while clock.goes_on(sent):
            began_ns = time.perf_counter_ns()
            self._insert(load.stream, data)
            clock.add(began_ns)
            sent += 1
        return clock.done(sent)

    def pull(self, load: Load) -> Done:
        """Pages of `window` messages, from the first to the last."""
        query = f"SELECT index, data FROM {load.stream} WHERE index > %b ORDER BY index LIMIT %b"
        cursor = self._connection.cursor(binary=True)
        clock, received, last = Clock(load), 0, 0
        while clock.goes_on(received):
            began_ns = time.perf_counter_ns()
            page = cursor.execute(query, (last, load.window), prepare=True).fetchall()
            clock.add(began_ns)
            received += len(page)
            last = page[-1][0]
        return clock.done(received)

    def at_rate(self, load: Load) -> Done:
        """All messages that are due are one COPY; a single message is an INSERT."""
        data = os.urandom(load.size_bytes)
        self._create(load)
        clock, pace = Clock(load), Pace(load)
        while not pace.is_over:
            numbers = pace.due()
            if not numbers:
                time.sleep(pace.sleep_s())
                continue
            if len(numbers) == 1:
                self._insert(load.stream, data)
            else:
                self._copy(load.stream, (data for _ in numbers))
            for number in numbers:
                if number % load.timed_every == 0:
                    clock.add(pace.due_ns(number))
        return clock.done(pace.given)

    def _create(self, load: Load) -> None:
        self._connection.execute(TABLE.format(load.stream))

    def _insert(self, table: str, data: bytes) -> None:
        query = f"INSERT INTO {table} (data) VALUES (%b) RETURNING index"
        self._connection.execute(query, (data,), prepare=True, binary=True).fetchone()

    def _copy(self, table: str, rows: Iterable[bytes]) -> None:
        with self._connection.cursor().copy(f"COPY {table} (data) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["bytea"])
            for data in rows:
                copy.write_row((data,))
