"""Goal: lag counts what a consumer has not read, also in partitions that it has never touched, and nothing that it was
not made for.

Method: positions and partitions as tables; the count of lists, by which commands and pages go, and that of the
database, by which the metrics go, are compared with the numbers in the cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from index_service.extensions import MarkedPosition
from index_service.storage import REPLACE, sealed_row
from stream_node.care.unread import count_unread
from stream_node.doors.metrics.snapshot import read_session
from stream_service.extensions import StreamInfo
from stream_storage.contract import Append, Engine, Session
from tests.support.databases import open_database

pytestmark = pytest.mark.usefixtures("each_database")

PARTITIONS = {"three": [(10, 4), (10, 5), (10, 6)], "grown": [(10, 4), (10, 5), (30, 6), (40, 7)], "remade": [(50, 8)]}
"""When each partition was created, and how many messages it has."""
POSITIONS = {
    # Partition, index, when the position was made, and the creation time that it names.
    ("one", "three"): [(1, 2, 20, 10)],
    ("all", "three"): [(0, 4, 20, 10), (1, 0, 20, 0), (2, 1, 20, 10)],
    ("all", "grown"): [(0, 1, 20, 10), (1, 5, 20, 10)],
    ("one", "grown"): [(1, 1, 20, 10)],
    ("late", "grown"): [(0, 0, 60, 10), (1, 0, 60, 10)],
    ("former", "remade"): [(0, 7, 20, 10)],
}
UNREAD = {
    ("one", "three"): 3,
    ("all", "three"): 0 + 5 + 5,
    ("all", "grown"): 3 + 0 + 6 + 7,
    ("one", "grown"): 4,
    # It began when the later partitions were there, and was not made for them.
    ("late", "grown"): 4 + 5,
    ("former", "remade"): 8,
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    database = open_database(tmp_path / "data")
    yield database
    database.close()


def fill(session: Session) -> None:
    session.begin()
    for name, partitions in PARTITIONS.items():
        for partition, (created_us, messages) in enumerate(partitions):
            record = session.log.ensure_stream(name, partition, created_us)
            session.log.append([Append(record.stream_id, 0, created_us, [b"x"] * messages)])
    for (client_id, name), rows in POSITIONS.items():
        for partition, index, made_us, created_us in rows:
            session.execute(REPLACE, sealed_row((client_id, name, partition), index, 99, created_us, made_us))
    session.commit()


def test_what_is_unread_is_counted_alike_in_lists_and_in_the_database(database: Engine) -> None:
    session = database.session()
    fill(session)
    read = read_session(session, 100)
    session.close()
    assert {(each.client_id, each.stream): each.lag for each in read.consumers} == UNREAD
    infos = [
        StreamInfo(name, partition, 0, messages, messages, created_us, None, None, None)
        for name, partitions in PARTITIONS.items()
        for partition, (created_us, messages) in enumerate(partitions)
    ]
    positions = [
        MarkedPosition(client_id, name, partition, index, 99, None, created_us, made_us)
        for (client_id, name), rows in POSITIONS.items()
        for partition, index, made_us, created_us in rows
    ]
    assert {key: sum(lags.values()) for key, lags in count_unread(positions, infos).items()} == UNREAD
