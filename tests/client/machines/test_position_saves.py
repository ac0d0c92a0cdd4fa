"""Goal: an outage leaves no questions about positions behind, and none is lost.

Method: a core and the node's end of it, byte by byte; consumers ask again and again while the node is away.
"""

from __future__ import annotations

import pytest

from index_service.extensions import LOAD_POSITIONS, MARKED_SAVE, LoadedPosition, LoadRequest, LoadResponse
from index_service.protocol import INDEX_PARTITIONED, SavePartitionIndex
from ockam.actors.message import Message
from stream_client.positions import KnownPosition, SavedIndexes
from tests.client.machines.far_end import FarEnd
from tests.client.machines.virtual import Clock, VirtualShell

POSITION = LoadedPosition(index=3, saved_us=0, created_us=0, generation=5)


def consumer_of(partitions: int, resets: list[int]) -> SavedIndexes:
    """The positions that consumers have loaded from a node that is away. resets: the partitions that were set since."""
    shell = VirtualShell(Clock(), lambda message: ())
    saves = SavedIndexes(shell.client(answer_timeout_s=None), "c")
    for partition in range(partitions):
        saves._marks["s", partition] = KnownPosition(POSITION.index, POSITION, resets.append)
    shell.core.disconnected()
    return saves


def asked(far: FarEnd) -> list[tuple[Message, LoadRequest]]:
    found = [each for each in far.sent() if LOAD_POSITIONS.is_in(each.payload)]
    return [(each, LOAD_POSITIONS.decode_request(each.payload)) for each in found]


def test_an_outage_leaves_one_check_of_positions() -> None:
    """Claim: however long the node was away, one question is sent, and nothing else of the earlier ones is kept."""
    saves = consumer_of(2, [])
    core = saves._session.core
    counts = []
    for _ in range(100):
        saves.check_nowait("s", [0, 1])
        counts.append((len(core.calls), len(core.service_route._needs_extensions)))
    assert counts[-1] == counts[0]
    ((_, request),) = asked(FarEnd(core))
    assert request.partitions == [0, 1]


def test_consumers_of_one_stream_do_not_take_back_each_others_checks() -> None:
    """Claim: each learns of a position that somebody has set. Method: two consumers share the positions of a name, and
    each asks for its own partition before the other one is answered."""
    resets: list[int] = []
    saves = consumer_of(2, resets)
    for partition in (0, 1, 0, 1):
        saves.check_nowait("s", [partition])
    far = FarEnd(saves._session.core)
    for message, request in asked(far):
        answer = LoadResponse(request.request_id, [LoadedPosition(0, 0, 0, generation=6)])
        far.answer(message, LOAD_POSITIONS.encode_response(answer))
    assert resets == [0, 1]


def test_saves_go_on_at_an_older_node() -> None:
    """Claim: a position is saved also if the next connection leads to a node that does not know marks. Method: such a
    node refuses the first save, and gets it as it knows it, and all later ones."""
    saves = consumer_of(1, [])
    far = FarEnd(saves._session.core)
    far.sent()
    saves.save_nowait("s", {0: 7})
    (marked,) = [each for each in far.sent() if MARKED_SAVE.is_in(each.payload)]
    far.refuse(marked, f"{MARKED_SAVE.name} is not served here")
    saves.save_nowait("s", {0: 8})
    plain = [INDEX_PARTITIONED.decode_request(each.payload) for each in far.sent()]
    assert plain == [SavePartitionIndex("c", "s", 0, 7), SavePartitionIndex("c", "s", 0, 8)]


@pytest.mark.parametrize(
    ("saved_us", "generation", "expected"), [(7, 7, True), (7, 8, True), (8, 7, False), (8, 0, True)]
)
def test_what_a_consumer_saved_is_not_taken_for_what_somebody_set(
    saved_us: int, generation: int, expected: bool
) -> None:
    """Claim: a position is that of a save only if it was saved after its generation was given, which is known."""
    assert KnownPosition(3, LoadedPosition(3, saved_us, 0, generation)).may_be_set is expected
    assert KnownPosition(3).may_be_set
