"""Goal: many gets and saves in one operation do what they would do one after the other, on every kind of database.

Method: random requests of few keys, against a dict that takes each alone; then the table itself is read, row by row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import bindparam

from index_service.accesses import Access, IndexRequests, PositionMark
from index_service.lease_machine import StoredLease
from index_service.lease_storage import Key, WriteLeases
from index_service.storage import REPLACE, lower_positions, saved_indexes, sealed_row
from stream_storage.commit import commit_batch
from stream_storage.contract import Session, ignore_done
from stream_storage.errors import DatabaseCorrupt
from stream_storage.seal import position_seal
from stream_storage.statement import compiled
from tests.stream_storage.storage_samples import Source, fresh_database, open_sources, reading

KEYS: list[Key] = [(client, "stream", partition) for client in ("a", "b\0é") for partition in range(3)]
FENCES = {0: 4, 1: 7}
"""The newest fence of the partitions that were leased."""
_ROWS = compiled(saved_indexes.select())
_BREAK = compiled(saved_indexes.update().values(seal=bindparam("wrong")), "wrong")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    if request.param == "postgres":
        with fresh_database(request.getfixturevalue("postgres_server")) as database:
            yield database
        return
    with open_sources(request.param, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def session(source: Source) -> Iterator[Session]:
    session = source.session()
    yield session
    session.close()


class Table:
    """What the table of positions must have: of each key the index, when it was saved, the incarnation of the stream,
    and the generation."""

    def __init__(self) -> None:
        self.rows: dict[Key, list[int]] = {}

    def do(self, requests: Sequence[Access], now_us: int) -> tuple[list[int | None], set[int], set[int]]:
        """Does the requests one by one. Returns their indexes, and the places of those that are refused, because of
        their fence and because of their generation."""
        indexes: list[int | None] = []
        fenced, reset = set(), set()
        for place, (key, index, answered, fence, mark) in enumerate(requests):
            row = self.rows.get(key)
            if fence is not None and fence != FENCES.get(key[2]):
                fenced.add(place)
            elif mark is not None and (row is None or row[3] != mark.generation):
                reset.add(place)
            elif index is not None:
                if mark is not None and row is not None and mark.created_us:
                    if row[2] not in (0, mark.created_us) or (row[2] == 0 and row[1] < mark.created_us):
                        row[:] = [0, now_us, mark.created_us, max(now_us, row[3] + 1)]
                    elif not row[2]:
                        row[1:3] = now_us, mark.created_us
                if row is None:
                    self.rows[key] = [index, now_us, 0, now_us]
                elif index > row[0]:
                    row[:2] = index, now_us
            if index is None:
                self.rows.setdefault(key, [0, now_us, 0, now_us])
            shown = index is None or answered
            indexes.append(self.rows.get(key, [0])[0] if shown else None)
        return indexes, fenced, reset


def draw(chance: random.Random, table: Table) -> Access:
    key = chance.choice(KEYS)
    kind = chance.randrange(6)
    index = chance.choice([0, 1, 2, 3, 50, 2**63 - 1]) if chance.random() < 0.1 else chance.randrange(40)
    if kind == 0:
        return Access(key, None)
    if kind == 1:
        return Access(key, index)
    if kind >= 4:
        known = table.rows.get(key, [0, 0, 0, 1])[3]
        mark = PositionMark(chance.choice([0, 3, 3, 100]), chance.choice([known, known, known, 3]))
        return Access(key, index, True, chance.choice([None, None, 4]), mark)
    return Access(key, index, True, chance.choice([4, 7]) if kind == 3 else None)


@pytest.mark.parametrize("seed", range(5))
def test_many_requests_are_as_one_after_the_other(source: Source, session: Session, seed: int) -> None:
    chance, table = random.Random(seed), Table()
    leases = [
        WriteLeases(key[0], key[1], [StoredLease(key[2], FENCES[key[2]], "m")], 1, ignore_done)
        for key in KEYS
        if key[2] in FENCES
    ]
    assert commit_batch(session, leases) is None
    for now_us in range(1, 12):
        requests = [draw(chance, table) for _ in range(chance.choice([1, 2, 9, 60]))]
        done = IndexRequests(requests, now_us, ignore_done)
        assert commit_batch(session, [done]) is None
        assert done.error is None
        assert (done.indexes, done.fenced, done.reset) == table.do(requests, now_us)
    with reading(source) as reader:
        rows = sorted(reader.execute(_ROWS).fetchall())
    assert rows == [(*key, *row, position_seal(*key, *row)) for key, row in sorted(table.rows.items())]


def test_a_thousand_saves_in_one_operation(source: Source, session: Session) -> None:
    """Goal: also more rows than a statement takes at once. Method: twice, so that half of the rows are there before."""
    for wanted in (range(7_000), range(3_500, 10_500)):
        saves = [Access(("client", f"s{number}", number), number, number % 2 == 0) for number in wanted]
        done = IndexRequests(saves, 5, ignore_done)
        assert commit_batch(session, [done]) is None
        assert done.error is None
        assert done.indexes == [None if number % 2 else number for number in wanted]
    with reading(source) as reader:
        assert sorted(row[3] for row in reader.execute(_ROWS)) == list(range(10_500))


def test_a_damaged_position_is_refused_until_it_is_overwritten(session: Session) -> None:
    key = KEYS[0]
    assert commit_batch(session, [IndexRequests([Access(key, 5)], 1, ignore_done)]) is None
    session.begin()
    session.execute(_BREAK, (1,))
    session.commit()
    for index in (None, 4):
        refused = IndexRequests([Access(key, index, True)], 2, ignore_done)
        commit_batch(session, [refused])
        assert isinstance(refused.error, DatabaseCorrupt)
    higher = IndexRequests([Access(key, 6, True)], 3, ignore_done)
    assert commit_batch(session, [higher]) is None
    assert (higher.error, higher.indexes) == (None, [6])


@pytest.mark.parametrize("renews_all", [False, True])
def test_positions_of_one_partition_are_lowered_with_new_generations_and_no_others(
    session: Session, renews_all: bool
) -> None:
    """A damaged row is not lowered: its true index may be lower, and a new seal would hide the damage."""
    damaged: Key = ("damaged", "stream", 0)
    before: dict[Key, tuple[int, int, int, int]] = {
        ("a", "stream", 0): (50, 5, 3, 6),
        ("b\0é", "stream", 0): (2**63 - 1, 5, 0, 900),
        ("c", "stream", 0): (10, 5, 3, 6),
        ("d", "stream", 0): (50, 500, 3, 6),
        ("a", "stream", 1): (50, 5, 3, 6),
        ("a", "other", 0): (50, 5, 3, 6),
    }
    session.begin()
    session.execute(REPLACE, sealed_row(damaged, 50, 5, 3, 6))
    session.execute(_BREAK, (1,))
    session.execute_many(REPLACE, [sealed_row(key, *row) for key, row in before.items()])
    lower_positions(session, "stream", 0, 10, 100, renews_all=renews_all)
    session.commit()
    found = {(row[0], row[1], row[2]): row[3:] for row in session.execute(_ROWS).fetchall()}
    assert tuple(found.pop(damaged)) == (50, 5, 3, 6, 1)
    # The higher generation of a clock that was ahead counts, too, and so does a save by such a clock.
    after = before | {("a", "stream", 0): (10, 5, 3, 100), ("b\0é", "stream", 0): (10, 5, 0, 901)}
    after |= {("d", "stream", 0): (10, 500, 3, 500), ("c", "stream", 0): (10, 5, 3, 100 if renews_all else 6)}
    assert {key: tuple(row) for key, row in found.items()} == {
        key: (*row, position_seal(*key, *row)) for key, row in after.items()
    }
    # The fixture looks for damage at its end.
    session.begin()
    session.execute(REPLACE, sealed_row(damaged, 50, 5, 3, 6))
    session.commit()
