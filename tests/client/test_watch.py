"""Goal: who waits for a stream hears of it from a slow node, too. Method: a clock and a session by hand, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from stream_client.partitions import UNANSWERED_S, PartitionWatch
from stream_client.session import ClientSession
from stream_service.extensions import ListResponse


class Slow:
    """A session whose node takes some seconds for each list. asked: the times of the questions."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.asked: list[float] = []
        self.answer: Callable[[ListResponse], None] | None = None
        self.shell = SimpleNamespace(now_s=lambda: self.time_s)

    def ask_nowait(self, *question: Any) -> Callable[[], None]:
        self.asked.append(self.time_s)
        self.answer = question[-1]

        def forget() -> None:
            self.answer = None

        return forget


def test_an_open_question_is_left_to_a_slow_node() -> None:
    slow = Slow()
    watch = PartitionWatch(cast(ClientSession, slow), "topic", 0, lambda _: None)
    for tenth in range(300):
        slow.time_s = tenth / 10
        watch.poll()
    assert slow.asked == [1.0]
    assert slow.answer is not None
    slow.answer(ListResponse(0, [], False))
    # An answer without the stream is followed by the next question; one that never comes is asked again.
    for _ in range(2):
        slow.time_s += UNANSWERED_S
        watch.poll()
    assert len(slow.asked) == 3
