"""Goal: over many rounds under pushes, a planned promotion loses nothing, and a forced one gives no index two meanings
unnoticed.

Method: the nodes change places in each round; publishers note every confirm, and what was confirmed is looked for in
what pulls get from both nodes. The variable MIRROR_ROUNDS sets the number of rounds of each kind; with -s, the tests
print what was lost, and how long it took from the request of a promotion to the first confirm of the new primary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import trio

from stream_node.fleet.mirror.protocol import MirrorAction, MirrorCondition
from stream_node.node.process import NodeProcess
from stream_service.mirroring import MIRROR, MirrorPull, decode_mirror_page
from tests.stream_node.fleet.mirror.mirrors import add, contents, follows_to, is_in, request, wait_for
from tests.stream_node.fleet.mirror.publishing import Publishing, S, data_by_index, seconds_to_confirm
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import stream_peer

ROUNDS = int(os.environ.get("MIRROR_ROUNDS", "4"))
pytestmark = pytest.mark.timeout(max(240, 15 * ROUNDS))
CONFIRMS = 300
"""The confirms in a round before the promotion begins, at least."""


class Round(NamedTuple):
    """What a round has seen: confirmed messages, those that the new primary lacks and the old one keeps aside, and the
    time from the request of the promotion to the first confirm of the new primary."""

    kind: str
    confirmed: int
    aside: int
    pause_s: float


@pytest.fixture(scope="module")
def rounds() -> Iterator[list[Round]]:
    """The rounds of all tests, whose figures are printed at the end."""
    done: list[Round] = []
    yield done
    for kind in ("planned", "forced"):
        found = [each for each in done if each.kind == kind]
        if found:
            pauses_s = [each.pause_s for each in found]
            print(
                f"\n{kind}: {len(found)} rounds; {sum(each.confirmed for each in found):,} messages confirmed, 0 lost, "
                f"{sum(each.aside for each in found):,} aside in {sum(each.aside > 0 for each in found)} rounds; "
                f"from the request to the next confirm p50 {median(pauses_s):.2f} s, most {max(pauses_s):.2f} s",
                end="",
            )
    print()


async def last_entry(address: str) -> int:
    """The index at which the newest entry of the history begins: where the last promotion was."""
    async with stream_peer(address) as peer:
        payload = (await peer.ask(S, MIRROR.encode_request(MirrorPull(1, 0, 1, 0, 0)))).payload
    return decode_mirror_page(payload).history[-1].first_index


async def test_planned_promotions_under_pushes_lose_nothing(tmp_path: Path, rounds: list[Round]) -> None:
    settings = {"error_delay_s": 0.0}
    confirmed: dict[int, bytes] = {}
    async with served(tmp_path / "a", **settings) as a, served(tmp_path / "b", **settings) as b:
        primary, mirror = a.address, b.address
        async with stream_peer(primary) as peer:
            await peer.create("s")
        await add(mirror, "s", primary)
        for round_ in range(ROUNDS):
            publishing = Publishing(f"round {round_}")
            async with stream_peer(primary) as peer, trio.open_nursery() as nursery:
                nursery.start_soon(publishing.run, peer)
                await publishing.wait(CONFIRMS)
                begun_s = time.monotonic()
                await request(mirror, MirrorAction.PROMOTE, "s")
                pause_s, index, data = await seconds_to_confirm(mirror, begun_s)
                await publishing.wait_refused()
                nursery.cancel_scope.cancel()
            now = {**publishing.confirmed, index: data}
            assert not confirmed.keys() & now.keys(), "no index has two meanings"
            assert index not in publishing.confirmed
            confirmed |= now
            rounds.append(Round("planned", len(now), 0, pause_s))
            primary, mirror = mirror, primary
            # The old primary follows: it has no message that the new one lacks.
            (found,) = await wait_for(mirror, is_in(MirrorCondition.FOLLOWING))
            assert found.aside_messages == 0
            stored = await data_by_index(primary, start=min(now))
            assert {index: stored[index] for index in now} == now
        first_index, end, messages = await contents(primary, "s")
        await wait_for(mirror, follows_to(end))
        assert await contents(mirror, "s") == (first_index, end, messages)
        stored = {message.index: message.data for message in messages}
        assert {index: stored[index] for index in confirmed} == confirmed
        assert len(confirmed) > CONFIRMS * ROUNDS


@pytest.mark.slow
async def test_forced_promotions_under_pushes_give_no_index_two_meanings_unnoticed(
    tmp_path: Path, rounds: list[Round]
) -> None:
    """In each round the primary is killed under pushes, its mirror is promoted by force, and the old one returns."""
    with NodeProcess(tmp_path / "a") as a, NodeProcess(tmp_path / "b") as b:
        primary, mirror = a, b
        async with stream_peer(primary.address) as peer:
            await peer.create("s")
        await add(mirror.address, "s", primary.address)
        confirmed: dict[int, bytes] = {}
        aside_names = {""}
        for round_ in range(ROUNDS):
            await wait_for(mirror.address, is_in(MirrorCondition.FOLLOWING))
            publishing = Publishing(f"round {round_}")
            with suppress(BaseExceptionGroup):
                async with stream_peer(primary.address) as peer, trio.open_nursery() as nursery:
                    nursery.start_soon(publishing.run, peer)
                    await publishing.wait(CONFIRMS)
                    primary.kill()
                    await trio.sleep(PATIENCE_S)
            begun_s, start = time.monotonic(), min(publishing.confirmed)
            (before,) = (await request(mirror.address, MirrorAction.PROMOTE, "s", force=True)).mirrors
            pause_s, index, data = await seconds_to_confirm(mirror.address, begun_s)
            async with stream_peer(mirror.address) as peer:
                later = Publishing(f"round {round_}, new")
                await later.run(peer, 100)
            later.confirmed[index] = data
            primary.start()
            await wait_for(primary.address, is_in(MirrorCondition.FOLLOWING))
            end = (await contents(mirror.address, "s", 0, start))[1]
            (found,) = await wait_for(primary.address, follows_to(end))
            taken_at = await last_entry(mirror.address)
            assert before.next_index == taken_at
            start = min(start, taken_at)
            stored = await data_by_index(mirror.address, start=start)
            assert await data_by_index(primary.address, start=start) == stored
            # The name of an earlier round is still told if nothing was moved in this one.
            is_new = found.aside_name not in aside_names
            aside_names.add(found.aside_name)
            aside = await data_by_index(primary.address, found.aside_name) if is_new else {}
            # What is told is what is there: all that the old primary had beyond the end of the new one, and no more.
            assert sorted(aside) == list(range(taken_at, taken_at + len(aside)))
            assert not is_new or found.aside_messages == len(aside) > 0
            confirmed_us, lost = publishing.confirmed_us, 0
            for index, data in publishing.confirmed.items():
                # The lost ones are exactly those beyond the end of the mirror, and they are aside.
                assert (stored.get(index) == data) == (index < taken_at)
                assert index < taken_at or aside[index] == data
                # What it said: so many messages that it knew of, and those after the time when it last heard.
                is_told = index < before.next_index + before.lag or confirmed_us[index] >= before.heard_us
                assert index < taken_at or is_told
                lost += index >= taken_at
            confirmed |= {index: data for index, data in publishing.confirmed.items() if index < taken_at}
            confirmed |= later.confirmed
            rounds.append(Round("forced", len(publishing.confirmed) + len(later.confirmed), lost, pause_s))
            primary, mirror = mirror, primary
        stored = await data_by_index(primary.address)
        assert {index: stored[index] for index in confirmed} == confirmed
