"""The runner without threads: virtual time, crashes, sources in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from stream_storage.contract import Append, Operation
from stream_storage.errors import DiskFailed, StorageClosed
from tests.stream_storage.storage_samples import Call, Source, make_stream, open_sources, stored_data
from tests.support.storage.inline_runner import InlineRunner


@pytest.fixture(params=["memory", "sqlite"])
def small_source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    with open_sources(request.param, tmp_path / "data") as opened:
        yield opened


async def one_second() -> None:
    await trio.sleep(1)


class Told:
    """Notes which operation was completed at which second."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.started_s = trio.current_time()
        self.times: list[tuple[float, int]] = []

    def append(self, index: int) -> Append:
        return Append(self.stream_id, index, 5, [b"%d" % index], on_done=self.note)

    def note(self, operation: Append) -> None:
        assert operation.error is None
        self.times.append((trio.current_time() - self.started_s, operation.first_index))


async def test_a_batch_takes_its_time_and_what_comes_meanwhile_is_the_next(
    small_source: Source, autojump_clock: trio.testing.MockClock
) -> None:
    told = Told(make_stream(small_source))
    async with trio.open_nursery() as nursery:
        runner = InlineRunner(small_source, nursery, one_second)
        runner.submit_write(told.append(0))
        runner.submit_write(told.append(1))
        await trio.sleep(0.5)
        runner.submit_write(told.append(2))
        await trio.sleep(1)
        runner.submit_write(told.append(3))
        await runner.aclose()
    assert told.times == [(2.0, 0), (2.0, 1), (4.0, 2), (4.0, 3)]
    assert runner.statistics().commits == 2


async def test_a_read_sees_the_state_of_its_own_moment(
    small_source: Source, autojump_clock: trio.testing.MockClock
) -> None:
    told = Told(make_stream(small_source))
    async with trio.open_nursery() as nursery:
        runner = InlineRunner(small_source, nursery, one_second)
        runner.submit_write(told.append(0))
        await trio.sleep(0.5)
        reads = [Call(lambda session: session.log.get_stream(told.stream_id).next_index, ignore) for _ in range(2)]
        runner.submit_read(reads[0])
        runner.submit_read(reads[1])
        assert runner.statistics().reads_waiting == 2
        await runner.aclose()
    assert [read.result for read in reads] == [1, 1]


def ignore(operation: Operation) -> None:
    """The `on_done` of operations that nobody waits for."""


@pytest.mark.parametrize(
    ("crash_s", "stored", "confirmed"),
    [(0.5, [], []), (1.5, [b"0", b"1"], []), (3.5, [b"0", b"1", b"2"], [0, 1])],
)
async def test_a_crash_keeps_what_is_committed_and_tells_nobody(
    small_source: Source,
    autojump_clock: trio.testing.MockClock,
    crash_s: float,
    stored: list[bytes],
    confirmed: list[int],
) -> None:
    """The first batch is committed after 1 s and completed after 2 s, the second after 3 s and 4 s."""
    told = Told(make_stream(small_source))
    async with trio.open_nursery() as nursery:
        runner = InlineRunner(small_source, nursery, one_second)
        runner.submit_write(told.append(0))
        runner.submit_write(told.append(1))
        runner.submit_read(Call(lambda session: None, ignore))
        await trio.sleep(0.2)
        runner.submit_write(told.append(2))
        await trio.sleep(crash_s - 0.2)
        runner.crash()
        with pytest.raises(StorageClosed):
            runner.submit_write(told.append(3))
        await runner.wait_idle()
        await runner.aclose()
    assert stored_data(small_source, told.stream_id) == stored
    assert [index for _, index in told.times] == confirmed
    async with trio.open_nursery() as nursery:
        successor = InlineRunner(small_source, nursery)
        successor.submit_write(told.append(len(stored)))
        await successor.aclose()
    assert len(stored_data(small_source, told.stream_id)) == len(stored) + 1


async def test_a_crash_from_within_a_callback_tells_nobody_after_it(small_source: Source) -> None:
    told = Told(make_stream(small_source))
    async with trio.open_nursery() as nursery:
        runner = InlineRunner(small_source, nursery)
        runner.submit_write(Append(told.stream_id, 0, 5, [b"0"], on_done=lambda operation: runner.crash()))
        runner.submit_write(told.append(1))
        await runner.wait_idle()
    assert told.times == []
    assert stored_data(small_source, told.stream_id) == [b"0", b"1"]


async def test_cancelling_the_nursery_is_a_crash(small_source: Source, autojump_clock: trio.testing.MockClock) -> None:
    told = Told(make_stream(small_source))
    async with trio.open_nursery() as nursery:
        runner = InlineRunner(small_source, nursery, one_second)
        runner.submit_write(told.append(0))
        runner.submit_read(Call(lambda session: None, ignore))
        await trio.sleep(0.5)
        nursery.cancel_scope.cancel()
    await runner.wait_idle()
    await runner.aclose()
    assert stored_data(small_source, told.stream_id) == []


async def test_a_fatal_error_stops_writing(small_source: Source) -> None:
    def fail(session: object) -> None:
        raise DiskFailed("the disk is gone")

    done: list[Operation] = []
    stream_id = make_stream(small_source)
    async with trio.open_nursery() as nursery:
        runner = InlineRunner(small_source, nursery)
        runner.submit_write(Call(fail, done.append))
        await runner.wait_idle()
        runner.submit_write(Append(stream_id, 0, 5, [b"x"], on_done=done.append))
        await runner.aclose()
    assert [type(operation.error) for operation in done] == [DiskFailed, StorageClosed]
    assert "disk is gone" in str(runner.statistics().failure)
