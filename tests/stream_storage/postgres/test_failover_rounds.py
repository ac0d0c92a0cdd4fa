"""Goal: over many rounds of every failure of a primary, nothing confirmed is lost and nothing is stored twice.

Method: as in test_failover.py, with failures in turn, at random moments of a writer that commits lone messages and
groups. Each round ends with the promotion of the standby, whose whole contents psql reads. The variable FAILOVER_ROUNDS
sets the number of rounds; with -s, the tests print how long the writer waited after the promotions, and how doubts were
settled.

With a standby that nobody waits for, the same check must find every loss.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_storage.errors import ConfirmedLost
from tests.stream_storage.postgres.failover import Pair, Writer

ROUNDS = int(os.environ.get("FAILOVER_ROUNDS", "16"))
PART_ROUNDS = 8
"""The rounds of one test, so that a soak with a bound in time ends between two tests."""
ASYNCHRONOUS_ROUNDS = 8
SEED = int(os.environ.get("STREAM_NODE_SEED", "19"))


class Round(NamedTuple):
    """What a round has seen: the time from the promotion to the next confirm, and what became of doubts."""

    kind: str
    pause_s: float
    stored: int
    not_stored: int


@pytest.fixture(scope="module")
def rounds() -> Iterator[list[Round]]:
    """The rounds of all tests, whose figures are printed at the end."""
    done: list[Round] = []
    yield done
    for kind in (*KINDS, ""):
        found = [each for each in done if kind in ("", each.kind)]
        if found:
            pauses_s = [each.pause_s for each in found]
            stored, not_stored = sum(each.stored for each in found), sum(each.not_stored for each in found)
            print(
                f"\n{kind or 'all'}: {len(found)} rounds; from the promotion to the next confirm p50 "
                f"{median(pauses_s):.2f} s, most {max(pauses_s):.2f} s; doubts: {stored} stored, {not_stored} not",
                end="",
            )
    print()


def kill(pair: Pair, chance: random.Random) -> None:
    pair.primary.kill()


def freeze(pair: Pair, chance: random.Random) -> None:
    pair.primary.freeze()


def cancel(pair: Pair, chance: random.Random) -> None:
    """A COMMIT that waits for the standby is cancelled, and says OK. The primary dies before the standby is back, at
    times only when the writer waits for the standby again."""
    back = _without_standby(pair, chance)
    waiting = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    assert pair.primary.ask(waiting) == "1"
    if chance.random() < 0.5:
        pair.wait_for_standby()
    pair.primary.kill()
    back()


def alone(pair: Pair, chance: random.Random) -> None:
    """The primary comes back without its standby, and shows a transaction that nobody else has."""
    back = _without_standby(pair, chance)
    pair.primary.kill()
    pair.primary.start()
    if chance.random() < 0.7:
        pair.wait_for_standby()
    pair.primary.kill()
    back()


KINDS: dict[str, Callable[[Pair, random.Random], None]] = {
    each.__name__: each for each in (kill, freeze, cancel, alone)
}


def _without_standby(pair: Pair, chance: random.Random) -> Callable[[], None]:
    """Stops the standby, and returns when a commit waits for it. Returns the function that brings the standby back."""
    assert pair.standby is not None
    if chance.random() < 0.5:
        pair.standby.freeze()
        back = pair.standby.thaw
    else:
        pair.standby.kill()
        back = pair.standby.start
    pair.wait_for_standby()
    return back


@pytest.mark.soak
@pytest.mark.parametrize("part", range(-(-ROUNDS // PART_ROUNDS)))
def test_many_failures_with_promotion(part: int, rounds: list[Round]) -> None:
    for number in range(part * PART_ROUNDS, min(ROUNDS, (part + 1) * PART_ROUNDS)):
        chance = random.Random(f"{SEED} {number}")
        kind, fail = list(KINDS.items())[number % len(KINDS)]
        with Pair() as pair, capture_logs() as logs:
            writer = Writer(pair.url, call_s=1.0, seed=number)
            writer.start()
            writer.wait_commits(chance.randrange(5, 80))
            fail(pair, chance)
            assert pair.standby is not None
            pair.standby.promote()
            promoted_s = time.monotonic()
            writer.wait_commits(1)
            pause_s = time.monotonic() - promoted_s
            if fail is freeze:
                # The old primary goes on, and has nobody who writes to it.
                pair.primary.thaw()
            writer.wait_commits(20)
            writer.end()
            assert writer.failure is None, f"round {number}, {kind}"
            assert writer.is_whole(pair.standby), f"round {number}, {kind}"
        settled = [entry["stored"] for entry in logs if entry["event"] == "lost_commit_settled"]
        rounds.append(Round(kind, pause_s, settled.count(True), settled.count(False)))


@pytest.mark.soak
def test_many_failures_without_a_synchronous_standby_lose_messages_and_say_so() -> None:
    """Goal: the check of contents can fail, and a node notices each loss itself. Method: every other standby is stopped
    while the primary confirms, and then promoted; the others are only promoted after the kill."""
    losses = 0
    for number in range(ASYNCHRONOUS_ROUNDS):
        chance = random.Random(f"{SEED} {number} asynchronous")
        with Pair(names="") as pair:
            writer = Writer(pair.url, call_s=1.0, seed=number)
            writer.start()
            writer.wait_commits(chance.randrange(5, 80))
            assert pair.standby is not None
            is_behind = number % 2 == 0
            if is_behind:
                pair.wait_copied()
                pair.standby.kill()
                writer.wait_commits(chance.randrange(1, 10))
            pair.primary.kill()
            if is_behind:
                pair.standby.start()
            pair.standby.promote()
            if is_behind:
                writer.wait_failed()
            else:
                _wait_settled(writer)
            writer.end()
            is_lost = isinstance(writer.failure, ConfirmedLost)
            assert is_lost or writer.failure is None
            assert is_lost == (not writer.is_whole(pair.standby)), f"round {number}"
            assert is_lost or not is_behind
            losses += is_lost
    print(f"\nasynchronous standby: {losses} of {ASYNCHRONOUS_ROUNDS} rounds lost confirmed messages, and said so")
    assert losses >= ASYNCHRONOUS_ROUNDS // 2


def _wait_settled(writer: Writer) -> None:
    """Returns when the writer has committed again, or has ended."""
    before = len(writer.commits)
    deadline_s = time.monotonic() + 60.0
    while writer.is_alive() and len(writer.commits) == before:
        assert time.monotonic() < deadline_s, "no commit"
        time.sleep(0.01)
