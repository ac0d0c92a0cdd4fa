"""Goal: a run takes everything new, once, and says what is lost. Method: plans as values, properties of the cuts."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_export.exporter.errors import DataLost
from spark_export.exporter.intervals import Interval, compare, merge, subtract, total
from spark_export.exporter.model import Exported, PartitionEnd, Range
from spark_export.exporter.plan import TASK_BYTES_MAX, TASK_ROWS_MAX, TASK_ROWS_MIN, plan_ranges, plan_tasks
from spark_export.exporter.schedule import next_start


def end(first: int = 0, following: int = 10, *, made_us: int = 1, partition: int = 0, size: int = 1000) -> PartitionEnd:
    return PartitionEnd("orders", partition, made_us, first, following, size)


def plan(ends: PartitionEnd, exported: Exported | None, accept_lost: bool = False) -> list[Range]:
    known = {} if exported is None else {("orders", 0): exported}
    positions = {place: each.end_index for place, each in known.items()}
    return plan_ranges([ends], known, positions, accept_lost=accept_lost)


def test_a_new_partition_begins_at_its_earliest_message() -> None:
    assert plan(end(3, 13), None) == [Range("orders", 0, 0, 1, 3, 13, 1000)]


def test_a_known_partition_goes_on_where_it_was() -> None:
    assert plan(end(0, 10), Exported(0, 1, 6)) == [Range("orders", 0, 0, 1, 6, 10, 400)]


def test_nothing_new_is_no_range() -> None:
    assert plan(end(4, 10), Exported(0, 1, 10)) == []
    assert plan(end(10, 10), None) == []


def test_what_retention_took_fails_and_is_skipped_only_when_asked() -> None:
    with pytest.raises(DataLost, match=r"retention deleted 2 messages \(4 to 5\).*--accept-lost"):
        plan(end(6, 10, size=400), Exported(0, 1, 4))
    assert plan(end(6, 10, size=400), Exported(0, 1, 4), accept_lost=True) == [
        Range("orders", 0, 0, 1, 6, 10, 400, lost=2)
    ]


def test_a_loss_is_told_even_where_nothing_is_left() -> None:
    assert plan(end(9, 9, size=0), Exported(0, 1, 4), accept_lost=True) == [Range("orders", 0, 0, 1, 9, 9, 0, lost=5)]


def test_a_stream_made_anew_is_another_era() -> None:
    """Its indexes begin again, so its rows must not be taken for those exported before."""
    with pytest.raises(DataLost, match="made anew"):
        plan(end(0, 10, made_us=2), Exported(0, 1, 4))
    assert plan(end(0, 10, made_us=2), Exported(0, 1, 4), accept_lost=True) == [Range("orders", 0, 1, 2, 0, 10, 1000)]


def test_a_node_put_back_to_an_earlier_state_is_noticed() -> None:
    with pytest.raises(DataLost, match="put back"):
        plan(end(0, 3), Exported(0, 1, 4), accept_lost=True)


@pytest.mark.parametrize("kept", [{}, {("orders", 0): 3}])
def test_a_node_put_back_and_grown_since_is_noticed_by_the_position_it_keeps(kept: dict[tuple[str, int], int]) -> None:
    with pytest.raises(DataLost, match=r"was exported up to 4, and the node keeps [03] as the export's position"):
        plan_ranges([end(0, 9)], {("orders", 0): Exported(0, 1, 4)}, kept, accept_lost=True)


ranges = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 3 * 10**6), st.booleans()
    ),
    unique_by=lambda each: each[:2],
    max_size=12,
).map(lambda found: [Range(s, p, 0, 1, a, a + n, n * (1000 if big else 10)) for s, p, a, n, big in found])


@given(ranges, st.integers(1, 16))
def test_tasks_cover_each_index_once_and_are_bounded(planned: list[Range], parallelism: int) -> None:
    tasks = plan_tasks(planned, parallelism)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    there: dict[tuple[str, int], list[Interval]] = defaultdict(list)
    for task in tasks:
        assert 0 < sum(piece.rows for piece in task.pieces) <= TASK_ROWS_MAX
        for piece in task.pieces:
            there[piece.stream, piece.partition].append((piece.start_index, piece.end_index))
    for each in planned:
        wanted = [(each.start_index, each.end_index)]
        assert compare(wanted, there[each.stream, each.partition]) == ([], [], [])
        if each.rows and each.size_bytes / each.rows * TASK_ROWS_MIN > TASK_BYTES_MAX:
            assert len(there[each.stream, each.partition]) > 1


def test_small_partitions_share_a_task() -> None:
    planned = [Range("orders", partition, 0, 1, 0, 100, 1000) for partition in range(500)]
    assert len(plan_tasks(planned, 8)) == 1


def test_one_large_partition_is_shared_by_all_cores() -> None:
    assert len(plan_tasks([Range("orders", 0, 0, 1, 0, 800_000, 8_000_000)], 4)) == 4


def test_nobody_is_alone_at_the_end() -> None:
    """Goal: where all do not fit into one round of tasks, the last round has work for everybody too."""
    assert len(plan_tasks([Range("orders", 0, 0, 1, 0, 2 * TASK_ROWS_MAX + 2, 0)], 2)) == 4


sets = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda each: (each[0], sum(each))), max_size=8)


@given(sets, sets)
def test_intervals_are_sets_of_indexes(one: list[Interval], other: list[Interval]) -> None:
    def members(intervals: list[Interval]) -> list[int]:
        return [index for start, stop in intervals for index in range(start, stop)]

    wanted = merge(one)[0]
    found = compare(wanted, other)
    assert set(members(found.missing)) == set(members(one)) - set(members(other))
    assert set(members(found.unexpected)) == set(members(other)) - set(members(one))
    twice = {index for index in members(other) if members(other).count(index) > 1}
    assert set(members(found.repeated)) == twice
    assert total(wanted) == len(set(members(one)))
    assert subtract(wanted, wanted) == []


@pytest.mark.parametrize(
    ("now_s", "delay_s", "skipped"),
    [(100.0, 60.0, 0), (130.0, 30.0, 0), (160.0, 0.0, 0), (161.0, 59.0, 1), (290.0, 50.0, 3)],
)
def test_starts_stay_on_their_grid(now_s: float, delay_s: float, skipped: int) -> None:
    assert next_start(100.0, now_s, 60.0, 0.0) == (delay_s, skipped)
    assert next_start(100.0, now_s, 60.0, 1.0).delay_s == pytest.approx(delay_s + 6.0)
