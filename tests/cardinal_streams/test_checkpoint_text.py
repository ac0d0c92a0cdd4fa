"""Checkpoints as text: they come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.consume.checkpoints import format_checkpoint, parse_checkpoint
from cardinal_streams.errors import CheckpointError
from cardinal_streams.limits import U64_MAX, WEIGHT_MAX
from cardinal_streams.machines.events import Checkpoint, OpenReorg, Start

HASHES = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(0, U64_MAX)
WEIGHTS = st.integers(0, WEIGHT_MAX)
SOURCES = st.builds("{}:{}".format, st.text("abc:-_", min_size=1, max_size=5), st.integers(0, 99))
POSITIONS = st.dictionaries(SOURCES, NUMBERS, max_size=4)
OPEN_REORGS = st.builds(OpenReorg, HASHES, NUMBERS, NUMBERS, st.booleans(), WEIGHTS)
CHECKPOINTS = st.builds(
    Checkpoint,
    start=st.none() | st.builds(Start, HASHES, NUMBERS, WEIGHTS),
    position=POSITIONS,
    history=POSITIONS,
    open_reorgs=st.lists(OPEN_REORGS, max_size=3)
    .filter(lambda reorgs: sum(reorg.is_begun for reorg in reorgs) < 2)
    .map(tuple),
    finished_reorgs=st.lists(HASHES, max_size=3).map(tuple),
    read=POSITIONS,
    needed=st.lists(HASHES, max_size=3).map(tuple),
    created=POSITIONS,
    first_number=NUMBERS,
)
GOOD = msgspec.json.decode(format_checkpoint(Checkpoint(start=Start(bytes(32), 1, 2), position={"a:0": 1})))


@given(CHECKPOINTS)
def test_it_comes_back(checkpoint: Checkpoint) -> None:
    assert parse_checkpoint(format_checkpoint(checkpoint)) == checkpoint


def test_a_checkpoint_without_a_first_number_can_be_read() -> None:
    """Method: the text of a checkpoint as versions without the field wrote it."""
    assert "first_number" not in GOOD
    assert parse_checkpoint(msgspec.json.encode(GOOD)).first_number == 0


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"position": "a=1"},
        {"history": "a:0"},
        {"history": "a:0=" + "1" * 5_000},
        {"start": {"hash": "0x00", "number": 1, "weight": "0x1"}},
        {"start": {"hash": "0x" + "0" * 64, "number": -1, "weight": "0x1"}},
        {"start": {"hash": "0x" + "0" * 64, "number": 1, "weight": "0x" + "1" * 65}},
        {"start": {"hash": "0x" + "0" * 64, "number": 1 << 64, "weight": "0x1"}},
        {"open_reorgs": [{"hash": "0x" + "0" * 64}]},
        {"read": "a:0=x"},
        {"needed": ["0x00"]},
        {"more": 1},
    ],
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    parse_checkpoint(msgspec.json.encode(GOOD))
    with pytest.raises(CheckpointError):
        parse_checkpoint(msgspec.json.encode(GOOD | change))


def test_only_one_reorg_can_be_begun() -> None:
    begun = tuple(OpenReorg(bytes([name]) * 32, 1, 0, True) for name in (1, 2))
    with pytest.raises(CheckpointError, match="two reorgs are begun"):
        parse_checkpoint(format_checkpoint(Checkpoint(start=None, open_reorgs=begun)))


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff"])
def test_no_text_at_all(text: bytes) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        parse_checkpoint(text)
