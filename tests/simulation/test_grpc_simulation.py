"""Goal: a block node with its gRPC door keeps its promises to consensus nodes. Every block becomes durable once and in
order, nothing is said to be durable before, a consensus node that behaves is never driven away or banned, the end of
each stream is read, and no block stalls for longer than its deadline, whatever one that dies and one that lies do, and
plugins, disks and deaths of the node.

Method: four consensus nodes as the reference has them (`ConsensusMachine`) and whole block nodes in virtual time, with
all of the product but the sockets between them, a seed each. A failure prints the line that replays it. That the
simulation is not blind is shown by the mistakes planted at the end: one of the first seeds must notice each, and by the
promise that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from block_node.events import PersistedNotification, VerificationNotification
from block_node.grpc.calls.publish import BehindTold, PublishCall
from block_node.grpc.http2.call_machine import CallMachine
from block_node.grpc.http2.connection import ServerConnection
from block_node.grpc.http2.status import GrpcStatus
from block_node.persist.plugin import Persistence
from block_node.protocol import StreamEnded
from block_node.publish.block_machine import Blocks
from block_node.publish.publish_machine import PublishMachine
from tests.simulation import seeds
from tests.simulation.grpc_world import GrpcOutcome, run_grpc_seed
from tests.simulation.noticing import assert_caught

SEEDS = range(25)
MANY_SEEDS = range(3_000)
PLANTED_SEEDS = range(60)

Plant = Callable[[pytest.MonkeyPatch], None]


def run_or_tell(seed: int, directory: Path) -> GrpcOutcome:
    return seeds.run_or_tell(run_grpc_seed, seed, directory, "test_every_grpc_seed")


WANTED = (
    ("checked", 1_500),
    ("deaths", 20),
    ("crashes", 8),
    ("refused_operations", 5),
    ("streams", 300),
    ("ends_read", 30),
    ("lies", 80),
    ("died", 25),
    ("resends", 20),
    ("blocks_expired", 1),
    ("blocks_refused", 1),
    ("backfilled", 30),
)
"""At least so much must happen in each hundred of the seeds, or they would show little."""
RARE = (("unsent", 1),)
"""As WANTED, of what happens in two of a hundred seeds: too few to ask for it of SEEDS."""


@pytest.mark.slow
def test_every_grpc_seed_keeps_every_promise(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, SEEDS, ground, WANTED)


@pytest.mark.soak
def test_every_one_of_many_grpc_seeds_keeps_every_promise(ground: Path) -> None:
    seeds.run_seeds(run_or_tell, MANY_SEEDS, ground, (*WANTED, *RARE))


@pytest.mark.parametrize("seed", [3, pytest.param(101, marks=pytest.mark.soak)])
def test_a_grpc_seed_replays_to_the_same_outcome(ground: Path, seed: int) -> None:
    first, second = (run_or_tell(seed, ground / name) for name in ("first", "second"))
    assert first == second


def plant_an_end_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """hiero-block-node 2828: the connection is closed behind the end of the stream."""
    finish = ServerConnection.finish

    def finish_and_close(
        self: ServerConnection, machine: CallMachine, status: GrpcStatus, text: str, *, at_once: bool
    ) -> None:
        served = self._served.get(machine.stream_id)
        finish(self, machine, status, text, at_once=at_once)
        if served is not None and isinstance(served.handler, PublishCall):
            self.close("done")

    monkeypatch.setattr(ServerConnection, "finish", finish_and_close)


def plant_an_end_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_finish(self: PublishCall, ended: StreamEnded) -> None:
        self._call.finish(GrpcStatus.OK, ended.reason)

    monkeypatch.setattr(PublishCall, "_send_end", only_finish)


def plant_a_behind_that_is_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BehindTold, "may_tell", lambda self, party, now_s: True)


def plant_an_acknowledgement_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = Persistence._verified

    def verified_and_told(self: Persistence, result: VerificationNotification) -> None:
        if result.success:
            self.facility.publish(PersistedNotification(result.block_number, True, result.source))
        verified(self, result)

    monkeypatch.setattr(Persistence, "_verified", verified_and_told)


def plant_a_block_that_is_not_taken_from_a_silent_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    """hiero-block-node 1841: the winner of a block goes silent, and every acknowledgement stops."""
    monkeypatch.setattr(Blocks, "late", lambda self, now_s: iter(()))
    monkeypatch.setattr(PublishMachine, "_end_stalled", lambda self, finished: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "saying"),
    [
        pytest.param(plant_an_end_that_is_not_read, "did not read", id="end-not-read"),
        pytest.param(plant_an_end_without_a_word, "was sent no EndOfStream", id="end-without-a-word"),
        pytest.param(plant_a_behind_that_is_said_twice, "the node is behind too often", id="behind-twice"),
        pytest.param(plant_an_acknowledgement_before_the_sync, "is not stored", id="before-the-sync"),
        pytest.param(plant_a_block_that_is_not_taken_from_a_silent_publisher, "stalls for", id="silent-publisher"),
    ],
)
def test_a_planted_mistake_of_the_door_is_caught(
    ground: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, saying: str
) -> None:
    plant(monkeypatch)
    assert_caught(run_grpc_seed, PLANTED_SEEDS, ground, saying)
