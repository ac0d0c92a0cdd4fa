"""Goal: a run takes everything new, once, and says what is lost. Method: plans as values, properties of the cuts."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")

from spark_export.exporter.daemon import next_start
from spark_export.exporter.planning import (
    FIRST_STEP_ROWS,
    TASK_BYTES_MAX,
    TASK_ROWS_MAX,
    TASK_ROWS_MIN,
    TIME_SHARE,
    Pace,
    cut_at,
    plan_ranges,
    plan_tasks,
    take_step,
)
from spark_export.exporter.verify import Interval, covered, total
from spark_export.source.plan import StreamEnds
from spark_export.tables.errors import RangeIncomplete
from spark_export.tables.model import Incarnation, IndexRange, LeftOutStream, TablePosition, TableState, join

KNOWN = Incarnation("orders", 0, 0, 1)


def end(first: int = 0, following: int = 10, *, made_us: int = 1, partition: int = 0, size: int = 1000) -> StreamEnds:
    return StreamEnds("orders", partition, first, following, size, made_us)


def plan_whole(
    ends: StreamEnds, exported: int | None, accept_lost: bool = False
) -> tuple[list[IndexRange], list[LeftOutStream]]:
    """exported: how far the first incarnation is in the table."""
    positions = {} if exported is None else {KNOWN: TablePosition(exported)}
    return plan_ranges([ends], TableState(1, 1, positions), accept_lost=accept_lost)


def plan(ends: StreamEnds, exported: int | None, accept_lost: bool = False) -> list[IndexRange]:
    ranges, left_out = plan_whole(ends, exported, accept_lost)
    assert left_out == []
    return ranges


def reason(ends: StreamEnds, exported: int | None, accept_lost: bool = False) -> str:
    """Why the stream is left out."""
    ranges, (left_out,) = plan_whole(ends, exported, accept_lost)
    assert ranges == []
    assert left_out.stream == ends.stream
    return left_out.reason


def test_a_new_partition_begins_at_its_earliest_message() -> None:
    assert plan(end(3, 13), None) == [IndexRange(KNOWN, 3, 13, 1000)]


def test_a_known_partition_goes_on_where_it_was() -> None:
    assert plan(end(0, 10), 6) == [IndexRange(KNOWN, 6, 10, 400)]


def test_nothing_new_is_no_range() -> None:
    assert plan(end(4, 10), 10) == []
    assert plan(end(10, 10), None) == []


def test_what_retention_took_fails_and_is_skipped_only_when_asked() -> None:
    said = reason(end(6, 10, size=400), 4)
    assert re.search(r"retention deleted 2 messages \(4 to 5\).*--accept-lost", said)
    assert plan(end(6, 10, size=400), 4, accept_lost=True) == [IndexRange(KNOWN, 6, 10, 400, lost=2)]


def test_a_loss_is_told_even_where_nothing_is_left() -> None:
    assert plan(end(9, 9, size=0), 4, accept_lost=True) == [IndexRange(KNOWN, 9, 9, 0, lost=5)]


def test_a_stream_made_anew_is_another_era() -> None:
    """Its indexes begin again, so its rows must not be taken for those exported before."""
    assert "made anew" in reason(end(0, 10, made_us=2), 4)
    anew = Incarnation("orders", 0, 1, 2)
    assert plan(end(0, 10, made_us=2), 4, accept_lost=True) == [IndexRange(anew, 0, 10, 1000)]
    # The clock of the node may have gone back since.
    state = TableState(1, 1, {KNOWN: TablePosition(4), Incarnation("orders", 0, 1, 0): TablePosition(9)})
    assert plan_ranges([end(0, 10, made_us=0)], state, accept_lost=False)[0][0].begin == 9


def test_a_node_put_back_to_an_earlier_state_is_noticed() -> None:
    assert "put back" in reason(end(0, 3), 4, accept_lost=True)
    ranges, (left_out,) = plan_ranges(
        [end(0, 9)], TableState(1), accept_lost=True, put_back={"orders": "it was put back"}
    )
    assert (ranges, left_out.reason) == ([], "it was put back")


def test_a_stream_with_a_loss_is_left_out_whole_and_the_others_are_not() -> None:
    """Also its partitions without a loss, before and after the one with it."""
    ends = [end(partition=number) for number in range(3)] + [StreamEnds("other", 0, 0, 5, 50, 1)]
    state = TableState(1, 1, {Incarnation("orders", 1, 0, 7): TablePosition(2)})
    ranges, left_out = plan_ranges(ends, state, accept_lost=False)
    assert [each.of.place for each in ranges] == [("other", 0)]
    assert [each.stream for each in left_out] == ["orders"]


def test_what_tasks_return_is_one_range_of_each_partition_or_is_refused() -> None:
    """Goal: a task whose result is missing or doubled is found before the commit."""
    whole = IndexRange(KNOWN, 6, 30, 240, lost=2, last_us=9)
    parts = [whole.cut(6, 10), whole.cut(10, 20), whole.cut(20, 30)]
    assert [each.lost for each in parts] == [2, 0, 0]
    assert join(reversed(parts)) == [whole]
    for wrong in ([parts[0], parts[2]], [*parts, parts[1]]):
        with pytest.raises(RangeIncomplete):
            join(wrong)


ranges = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 3 * 10**6), st.booleans()
    ),
    unique_by=lambda each: each[:2],
    max_size=12,
).map(
    lambda found: [
        IndexRange(Incarnation(s, p, 0, 1), a, a + n, n * (1000 if big else 10)) for s, p, a, n, big in found
    ]
)


@given(ranges, st.integers(1, 16))
def test_tasks_cover_each_index_once_and_are_bounded(planned: list[IndexRange], parallelism: int) -> None:
    tasks = plan_tasks(planned, parallelism)
    there: dict[Incarnation, list[Interval]] = defaultdict(list)
    for task in tasks:
        assert task
        assert sum(piece.rows for piece in task) <= TASK_ROWS_MAX
        for piece in task:
            there[piece.of].append((piece.begin, piece.end))
    assert {each.of for each in join(piece for task in tasks for piece in task)} == {each.of for each in planned}
    for each in planned:
        assert (covered(there[each.of]), covered(there[each.of], 2)) == (covered([(each.begin, each.end)]), [])
        if each.rows and each.size_bytes / each.rows * TASK_ROWS_MIN > TASK_BYTES_MAX:
            assert len(there[each.of]) > 1


@given(ranges, st.integers(1, 10**6), st.integers(1, 10**9))
def test_a_step_is_bounded_and_gives_each_partition_its_share(
    planned: list[IndexRange], rows_max: int, most: int
) -> None:
    step = take_step(planned, rows_max, most)
    filled = [each for each in planned if each.rows]
    assert [(each.of, each.begin) for each in step] == [(each.of, each.begin) for each in planned]
    assert all(min(1, whole.rows) <= part.rows <= whole.rows for part, whole in zip(step, planned, strict=True))
    assert sum(each.rows for each in step) <= max(rows_max, len(filled))
    first_bytes = sum(each.size_bytes / each.rows for each in filled)
    assert sum(each.size_bytes for each in step) <= max(most, first_bytes) + 1
    for part, whole in zip(step, planned, strict=True):
        for other, all_of in zip(step, planned, strict=True):
            if whole.rows and all_of.rows:
                # In proportion, but for the first row of each and the rounding.
                assert part.rows - 2 <= whole.rows * (other.rows + 1) / all_of.rows + 1


@given(ranges, st.integers(1, 10**6))
def test_steps_come_to_the_end(planned: list[IndexRange], rows_max: int) -> None:
    """Goal: the steps of an export together have each index once. Method: at most as many steps as the bound allows."""
    left, taken = planned, 0
    wanted = sum(each.rows for each in planned)
    steps_max = wanted // max(1, rows_max - 12) + 13
    for _ in range(min(steps_max, 50)):
        step = take_step(left, rows_max, 10**15)
        taken += sum(each.rows for each in step)
        left = [replace(each, begin=part.end) for each, part in zip(left, step, strict=True)]
        left = [each for each in left if each.rows]
    assert taken + sum(each.rows for each in left) == wanted
    assert left == [] or steps_max > 50 or rows_max < 14


def test_an_export_ends_where_the_node_was_at_its_beginning() -> None:
    parts = [Incarnation("orders", number, 0, 1) for number in range(5)]
    planned = [IndexRange(of, 4, 10, 600) for of in parts[:4]]
    planned.append(IndexRange(parts[4], 9, 9, 0, lost=2))
    cut = cut_at(planned, {parts[0]: 10, parts[1]: 6, parts[2]: 3, parts[4]: 7})
    assert cut == [planned[0], IndexRange(parts[1], 4, 6, 200), planned[4]]


def test_steps_without_a_limit_of_time_have_the_given_size() -> None:
    pace = Pace(7, None, 100.0)
    pace.took(7, 1000.0)
    assert pace.next_rows(1e9, 100) == 7


def test_steps_shrink_with_the_time_that_remains_and_end_with_it() -> None:
    pace = Pace(10**7, 60.0, 100.0)
    assert pace.next_rows(100.0, 10**9) == FIRST_STEP_ROWS
    pace.took(FIRST_STEP_ROWS, 1.0)
    assert pace.next_rows(101.0, 10**9) == 59 * FIRST_STEP_ROWS * TIME_SHARE
    assert pace.next_rows(159.9, 10**9) is None, "a step of so few rows is not worth its start"
    assert (pace.next_rows(159.85, 5_000) or 0) >= 5_000, "the rest is not left for so little"
    assert pace.next_rows(160.0, 5_000) is None
    assert Pace(10, 60.0, 100.0).next_rows(100.0, 10**9) == 10


def test_small_partitions_share_a_task() -> None:
    planned = [IndexRange(Incarnation("orders", partition, 0, 1), 0, 100, 1000) for partition in range(500)]
    assert len(plan_tasks(planned, 8)) == 1


def test_one_large_partition_is_shared_by_all_cores() -> None:
    assert len(plan_tasks([IndexRange(KNOWN, 0, 800_000, 8_000_000)], 4)) == 4


def test_nobody_is_alone_at_the_end() -> None:
    """Goal: where all do not fit into one round of tasks, the last round has work for everybody too."""
    assert len(plan_tasks([IndexRange(KNOWN, 0, 2 * TASK_ROWS_MAX + 2, 0)], 2)) == 4


sets = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda each: (each[0], sum(each))), max_size=8)


@given(sets, sets)
def test_intervals_are_sets_of_indexes(one: list[Interval], other: list[Interval]) -> None:
    def members(intervals: list[Interval]) -> list[int]:
        return [index for start, stop in intervals for index in range(start, stop)]

    wanted, there = covered(one), covered(other)
    assert members(covered(wanted, without=there)) == sorted(set(members(one)) - set(members(other)))
    assert members(covered(there, without=wanted)) == sorted(set(members(other)) - set(members(one)))
    twice = {index for index in members(other) if members(other).count(index) > 1}
    assert members(covered(other, 2)) == sorted(twice)
    assert total(wanted) == len(set(members(one)))
    assert covered(wanted, without=wanted) == []


@pytest.mark.parametrize(
    ("now_s", "delay_s", "skipped"),
    [(100.0, 60.0, 0), (130.0, 30.0, 0), (160.0, 0.0, 0), (161.0, 59.0, 1), (290.0, 50.0, 3)],
)
def test_starts_stay_on_their_grid(now_s: float, delay_s: float, skipped: int) -> None:
    assert next_start(100.0, now_s, 60.0, 0.0) == (delay_s, skipped)
    assert next_start(100.0, now_s, 60.0, 1.0)[0] == pytest.approx(delay_s + 6.0)
