"""Compares the log with lists, under random appends, reads, truncations, deletions, rollbacks and reopenings."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stream_storage.contract import Append, Record, Session, StreamRecord
from stream_storage.errors import IndexConflict, PartFailed, UnknownStreamId
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.stream_storage.storage_samples import EVERYTHING, MEMORY_DIRECTORY, Source, fresh_database
from tests.support.examples import examples
from tests.support.postgres import PostgresServer
from tests.support.storage.memory import MemoryDatabase

blobs = st.one_of(st.binary(max_size=12), st.builds(lambda size: b"\0" * size, st.sampled_from([100, 5_000])))
attributes = st.one_of(st.none(), st.binary(max_size=4))
messages = st.lists(st.tuples(blobs, attributes, attributes), max_size=12)
many_messages = st.builds(lambda count: [(b"%d" % n, None, None) for n in range(count)], st.integers(20, 1200))


class _Model:
    """The messages that one stream should hold."""

    def __init__(self, name: str, partition: int) -> None:
        self.key = (name, partition)
        self.first_index = 0
        self.records: list[Record] = []

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.records)

    def record(self, stream_id: int) -> StreamRecord:
        size_bytes = sum(len(record[1]) for record in self.records)
        return StreamRecord(stream_id, *self.key, self.first_index, self.next_index, size_bytes, 7)

    def page(self, index: int, limit: int, bytes_max: int, first_bytes_max: int | None) -> list[Record]:
        page: list[Record] = []
        for record in [record for record in self.records if record[0] >= index][:limit]:
            if page and sum(len(earlier[1]) for earlier in page) + len(record[1]) > bytes_max:
                break
            if not page and first_bytes_max is not None and len(record[1]) > first_bytes_max:
                break
            page.append(record)
        return page


class LogMachine(RuleBasedStateMachine):
    """The random steps. A subclass makes the database under test in `make`."""

    source: Source
    session: Session

    def make(self) -> Source:
        raise NotImplementedError

    def reopened(self) -> Source:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.streams: dict[int, _Model] = {}
        self.deleted: set[int] = set()
        self.source = self.make()
        self.session = self.source.session()

    def teardown(self) -> None:
        if isinstance(self.source, Database):
            report = verify(self.session)
            assert report.problems == ()
            assert report.messages == sum(len(model.records) for model in self.streams.values())
        self.session.close()
        self.source.close()

    def chosen(self, data: st.DataObject) -> tuple[int, _Model]:
        stream_id = data.draw(st.sampled_from(sorted(self.streams)), "stream")
        return stream_id, self.streams[stream_id]

    @rule(name=st.sampled_from("ab"), partition=st.integers(0, 2))
    def ensure(self, name: str, partition: int) -> None:
        self.session.begin()
        record = self.session.log.ensure_stream(name, partition, 7)
        self.session.commit()
        model = self.streams.setdefault(record.stream_id, _Model(name, partition))
        assert record.stream_id not in self.deleted
        assert record == model.record(record.stream_id)

    @precondition(lambda self: self.streams)
    @rule(
        data=st.data(),
        runs=st.lists(st.one_of(messages, messages, many_messages), max_size=3),
        keep=st.booleans(),
        deferred=st.booleans(),
    )
    def append(self, data: st.DataObject, runs: list[list[tuple[Any, ...]]], keep: bool, deferred: bool) -> None:
        appends: list[Append] = []
        ends = {stream_id: model.next_index for stream_id, model in self.streams.items()}
        added: list[tuple[int, Record]] = []
        for time_us, run in enumerate(runs):
            stream_id, _ = self.chosen(data)
            columns = tuple(list(column) for column in zip(*run, strict=True)) or ([], None, None)
            plain = not any(row[1:] != (None, None) for row in run)
            appends.append(Append(stream_id, ends[stream_id], time_us, *(columns[:1] if plain else columns)))
            for body, key, headers in run:
                added.append((stream_id, (ends[stream_id], body, time_us, key, headers)))
                ends[stream_id] += 1
        self.session.begin(deferred=deferred)
        # One by one, the database gets lone messages too.
        for append in appends if deferred else ():
            self.session.log.append([append])
        if not deferred:
            self.session.log.append(appends)
        if not keep:
            self.session.rollback()
            return
        self.session.commit()
        for stream_id, record in added:
            self.streams[stream_id].records.append(record)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), off=st.integers(-3, 3).filter(bool))
    def append_elsewhere(self, data: st.DataObject, off: int) -> None:
        stream_id, model = self.chosen(data)
        self.session.begin()
        with pytest.raises(IndexConflict) as caught:
            self.session.log.append([Append(stream_id, model.next_index + off, 0, [b"x"])])
        assert caught.value.expected == model.next_index
        self.session.rollback()

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), off=st.integers(-3, 3).filter(bool), count=st.integers(1, 3), groups=st.integers(0, 1))
    def append_elsewhere_with_others(self, data: st.DataObject, off: int, count: int, groups: int) -> None:
        """A wrong append of a deferred transaction takes the right ones before it along, whenever it is told."""
        stream_id, model = self.chosen(data)
        self.session.begin(deferred=True)
        for _ in range(groups):
            self.session.log.append([Append(stream_id, model.next_index, 0, [])])
        with pytest.raises((IndexConflict, PartFailed)):
            self._append_and_commit(Append(stream_id, model.next_index + off, 0, [b"x"] * count))
        self.session.rollback()

    def _append_and_commit(self, append: Append) -> None:
        self.session.log.append([append])
        self.session.commit()

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), back=st.integers(-2, 30), keep=st.booleans())
    def truncate(self, data: st.DataObject, back: int, keep: bool) -> None:
        stream_id, model = self.chosen(data)
        index = max(0, model.next_index - back)
        kept = [record for record in model.records if record[0] >= index]
        self.session.begin()
        assert self.session.log.truncate_before(stream_id, index) == len(model.records) - len(kept)
        if not keep:
            self.session.rollback()
            return
        self.session.commit()
        model.first_index = model.next_index - len(kept)
        model.records = kept

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        stream_id, _ = self.chosen(data)
        self.session.begin()
        self.session.log.delete_stream(stream_id)
        self.session.commit()
        del self.streams[stream_id]
        self.deleted.add(stream_id)

    @precondition(lambda self: self.streams)
    @rule(
        data=st.data(),
        back=st.integers(-2, 1300),
        limit=st.one_of(st.integers(0, 20), st.sampled_from([1000, EVERYTHING])),
        bytes_max=st.one_of(st.integers(0, 60), st.sampled_from([5_000, 20_000, EVERYTHING])),
        first_bytes_max=st.one_of(st.none(), st.integers(0, 120)),
    )
    def read(self, data: st.DataObject, back: int, limit: int, bytes_max: int, first_bytes_max: int | None) -> None:
        stream_id, model = self.chosen(data)
        index = max(0, model.next_index - back)
        page = self.session.log.read(stream_id, index, limit, bytes_max, first_bytes_max=first_bytes_max)
        assert page == model.page(index, limit, bytes_max, first_bytes_max)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), back=st.integers(-2, 1300), bytes_max=st.integers(0, 120))
    def find_fitting(self, data: st.DataObject, back: int, bytes_max: int) -> None:
        stream_id, model = self.chosen(data)
        index = max(0, model.next_index - back)
        fitting = [record[0] for record in model.records if record[0] >= index and len(record[1]) <= bytes_max]
        assert self.session.log.find_fitting(stream_id, index, bytes_max) == (fitting[0] if fitting else None)

    @rule()
    def reopen(self) -> None:
        self.session.close()
        self.source = self.reopened()
        self.session = self.source.session()

    @invariant()
    def streams_are_as_expected(self) -> None:
        expected = [model.record(stream_id) for stream_id, model in self.streams.items()]
        listed = self.session.log.list_streams()
        assert listed == sorted(expected, key=lambda record: (record.name, record.partition))
        for stream_id in self.deleted:
            with pytest.raises(UnknownStreamId):
                self.session.log.read(stream_id, 0, 1, 1)


class MemoryMachine(LogMachine):
    def make(self) -> Source:
        return MemoryDatabase()

    def reopened(self) -> Source:
        return self.source


class SqliteMachine(LogMachine):
    def make(self) -> Source:
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY_DIRECTORY)
        return Database.open(Path(self.directory.name))

    def reopened(self) -> Source:
        self.source.close()
        return Database.open(Path(self.directory.name))

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class PostgresMachine(LogMachine):
    server: PostgresServer

    def make(self) -> Source:
        self.stack = ExitStack()
        return self.stack.enter_context(fresh_database(self.server))

    def reopened(self) -> Source:
        return self.source

    def teardown(self) -> None:
        super().teardown()
        self.stack.close()


_settings = settings(
    deadline=None,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(_settings, max_examples=examples(40))
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(_settings, max_examples=examples(25))


def test_postgres(postgres_server: PostgresServer) -> None:
    """The same steps. A database takes a while to make, so there are fewer examples."""

    class Machine(PostgresMachine):
        server = postgres_server

    run_state_machine_as_test(Machine, settings=settings(_settings, max_examples=15))
