"""Goal: keys that repeat are remembered, within bounds. Method: keys that repeat, and keys that never do."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import local
from ockam.actors.message import HERE, Message
from ockam.transport.frames import (
    GENERATION_BYTES_MAX,
    GENERATION_MAX,
    GENERATION_MIN,
    FrameReader,
    FrameWriter,
    GenerationCache,
)
from ockam.transport.wire_head import HEAD
from tests.support.compiled import is_compiled


def look_up(memory: GenerationCache[int, str], key: int) -> bool:
    """As its users do it; whether the key was known."""
    known = memory.young.get(key) or memory.recall(key)
    assert known in (None, str(key))
    if known is None:
        memory.add(key, str(key))
    return known is not None


def small() -> GenerationCache[int, str]:
    return GenerationCache(lambda key, value: 100)


def test_keys_that_never_come_again_make_nothing_grow() -> None:
    memory = small()
    assert not any(look_up(memory, key) for key in range(100_000))
    assert len(memory) <= 2 * GENERATION_MIN


@pytest.mark.parametrize("keys", [GENERATION_MIN, 1_000, GENERATION_MAX])
def test_many_keys_in_turn_are_known_after_a_few_rounds(keys: int) -> None:
    memory = small()
    for _ in range(12):
        known = sum(look_up(memory, key) for key in range(keys))
    assert known == keys


def test_keys_used_lately_stay_among_keys_that_never_come_again() -> None:
    memory = small()
    look_up(memory, -1)
    for key in range(10_000):
        look_up(memory, key)
        if not key % 30:
            assert look_up(memory, -1)


def test_large_entries_are_bounded_by_bytes() -> None:
    memory = GenerationCache[int, str](lambda key, value: 100_000)
    for _ in range(20):
        for key in range(3_000):
            look_up(memory, key)
    assert memory.size_bytes <= 2 * (GENERATION_BYTES_MAX + 100_000)


@given(keys=st.lists(st.integers(0, 300), max_size=2_000))
def test_the_size_is_that_of_the_entries(keys: list[int]) -> None:
    memory = GenerationCache[int, str](lambda key, value: key)
    for key in keys:
        look_up(memory, key)
    assert memory.size_bytes == sum(key for key in range(301) if key in memory.young or memory.recall(key))
    memory.forget()
    assert (len(memory), memory.size_bytes) == (0, 0)


def deep_size(thing: object, seen: set[int]) -> int:
    """Of an object and all it leads to."""
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    parts: list[object] = []
    if isinstance(thing, dict):
        parts += [*thing.keys(), *thing.values()]
    elif isinstance(thing, tuple | list):
        parts += thing
    elif hasattr(thing, "__slots__"):
        parts += [getattr(thing, name) for name in thing.__slots__ if not callable(getattr(thing, name))]
    elif hasattr(thing, "__dict__"):
        parts += vars(thing).values()
    return sys.getsizeof(thing) + sum(deep_size(part, seen) for part in parts)


@pytest.mark.parametrize("hop_bytes", [10, 450])
def test_the_estimates_of_a_connection_are_near_what_python_says(hop_bytes: int) -> None:
    if is_compiled(FrameReader):
        pytest.skip("Python does not tell the attributes of compiled objects")
    reader, writer = FrameReader(HEAD, HERE, (local("TCP_0123456789abcdef"),)), FrameWriter(HEAD)
    empty = deep_size([reader, writer], set())
    frames = []
    for number in range(100):
        route = (local("ST_S_0123456789abcdef"),), (local(f"{number:04d}" + "r" * hop_bytes),)
        body = HEAD.encode_routes(*route) + HEAD.encode_payload(b"x")
        frames.append(len(body).to_bytes(4, "big") + body)
    messages = reader.feed(b"".join(frames))
    writer.encode([Message(message.return_route, (local("s"),), b"x") for message in messages], print)
    known_bytes = reader.known_bytes + writer.known_bytes
    held_bytes = deep_size([reader, writer], set()) - empty
    assert 0.6 * held_bytes < known_bytes < 1.6 * held_bytes
    reader.forget()
    writer.forget()
    assert reader.known_bytes + writer.known_bytes == 0
    assert deep_size([reader, writer], set()) < empty + 10_000
