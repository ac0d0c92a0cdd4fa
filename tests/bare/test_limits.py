"""Limits: what they refuse, that they are inclusive, and that a message cannot ask for more memory than it is worth."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

import bare
from bare import schema
from tests.bare.samples import Tree


class Chain(msgspec.Struct):
    below: Chain | None = None


def chain(length: int) -> Chain:
    found = Chain()
    for _ in range(length - 1):
        found = Chain(found)
    return found


def test_limits_are_whole_and_positive() -> None:
    for wrong in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="list_items_max must be"):
            bare.Limits(list_items_max=wrong)  # type: ignore[arg-type]


# Limits, annotation, the longest value within them and one beyond, and the errors of both directions.
BOUNDS: list[tuple[bare.Limits, Any, Any, Any, str]] = [
    (bare.Limits(message_bytes_max=4), bytes, b"abc", b"abcd", "message of 5 bytes is over the limit of 4"),
    (bare.Limits(list_items_max=3), list[str], ["a"] * 3, ["a"] * 4, "list of 4 is over the limit of 3"),
    (bare.Limits(list_items_max=3), list[bare.U8], [1] * 3, [1] * 4, "list of 4 is over the limit of 3"),
    (bare.Limits(map_entries_max=1), dict[str, str], {"a": ""}, {"a": "", "b": ""}, "map of 2 is over the limit of 1"),
    (bare.Limits(depth_max=3), Chain, chain(3), chain(4), "value is nested deeper than the limit of 3"),
    (bare.Limits(depth_max=3), list[Chain], [chain(3)] * 5, [chain(4)], "value is nested deeper than the limit of 3"),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "type_", "within", "beyond", "text"), BOUNDS)
def test_limits_hold_in_both_directions(limits: bare.Limits, type_: Any, within: Any, beyond: Any, text: str) -> None:
    encoder, decoder = bare.Encoder(type_, limits), bare.Decoder(type_, limits)
    assert decoder.decode(encoder.encode(within)) == within
    assert decoder.decode_prefix(encoder.encode(within))[0] == within
    with pytest.raises(bare.EncodeError) as refused:
        encoder.encode(beyond)
    assert refused.value.what == text
    message = bare.encode(beyond, type_)
    for decode in (decoder.decode, decoder.decode_prefix):
        with pytest.raises(bare.DecodeError) as raised:
            decode(message)
        assert raised.value.what == text


def test_fixed_lengths_are_not_limited() -> None:
    """They are part of the type, which is our own."""
    type_ = Annotated[list[bare.U8], bare.Fixed(10)]
    limits = bare.Limits(list_items_max=2)
    assert bare.Decoder(type_, limits).decode(bytes(10)) == [0] * 10


def peak_bytes(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = "ffffffffffffffffff01"

COUNTS: list[tuple[Any, str]] = [
    (bytes, HUGE),
    (str, HUGE),
    (list[bare.U8], HUGE),
    (list[bare.U8], "ffff3f"),
    (list[bare.F64], "ffff3f" + "00" * 100),
    (list[str], "ffff3f"),
    (list[Chain], "ffff3f"),
    (dict[bare.U8, bare.U8], HUGE),
    (dict[str, str], "ffff3f"),
    (Annotated[list[bare.U8], bare.Fixed(2**32 - 1)], "00"),
    (Annotated[list[str], bare.Fixed(2**32 - 1)], "00"),
    (Annotated[bytes, bare.Fixed(2**32 - 1)], "00"),
    (Annotated[list[Annotated[list[str], bare.Fixed(2**32 - 1)]], bare.Fixed(2**32 - 1)], "00"),
]


@pytest.mark.parametrize(("type_", "message"), COUNTS)
def test_a_count_without_bytes_behind_it_costs_no_memory(type_: Any, message: str) -> None:
    decoder = bare.Decoder(type_)

    def decode() -> None:
        with pytest.raises(bare.DecodeError):
            decoder.decode(bytes.fromhex(message))

    decode()
    assert peak_bytes(decode) < 100_000


def test_every_type_that_can_be_an_item_has_at_least_one_byte() -> None:
    """So a list's count is bounded by the message. Types that recur through a union are the hard case."""
    text = "type A struct { a: union { B | void } } type B struct { b: A } type L list<B> type V list<union { void }> "
    text += "type Both struct { a: list<A> b: list<B> }"
    loaded = schema.load(text, dialect="legacy")
    for name, message in (("L", b"\5\0\0\0\0"), ("V", b"\5\0\0\0\0"), ("Both", b"\0\5\0\0\0\0")):
        with pytest.raises(bare.DecodeError, match="needs at least 5 bytes and has 4"):
            loaded.decode(name, message)


def test_values_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    deepest = bare.Limits().depth_max
    message = bare.encode(chain(deepest))
    assert bare.encode(bare.decode(message, Chain)) == message
    with pytest.raises(bare.DecodeError, match="deeper than the limit of 100 - at byte 100") as raised:
        bare.decode(b"\1" * 10_000_000, Chain)
    assert raised.value.path == "$" + ".below" * 100


def test_a_value_that_contains_itself_is_refused() -> None:
    tree = Tree("a", [])
    tree.children.append(tree)
    with pytest.raises(bare.EncodeError, match="nested deeper than the limit of 100"):
        bare.encode(tree)


def test_a_limit_beyond_the_stack_ends_in_an_error_of_ours() -> None:
    limits = bare.Limits(depth_max=10**9)
    depth = sys.getrecursionlimit() * 2
    with pytest.raises(bare.DecodeError, match="deeper than the stack allows"):
        bare.Decoder(Chain, limits).decode(b"\1" * depth + b"\0")
    with pytest.raises(bare.EncodeError, match="deeper than the stack allows"):
        bare.Encoder(Chain, limits).encode(chain(depth))


def test_types_that_do_not_recur_are_not_counted() -> None:
    limits = bare.Limits(depth_max=1)
    type_: Any = list[list[list[list[list[list[list[bare.UInt]]]]]]]
    value: Any = [[[[[[[1, 300]]], [[]]]]], []]
    assert bare.Decoder(type_, limits).decode(bare.Encoder(type_, limits).encode(value)) == value


def test_a_type_may_nest_deeper_than_loops_in_python() -> None:
    depth = 60
    loaded = schema.load(f"type A {'list<' * depth}u8{'>' * depth}")
    message = b"\1" * depth + b"\7"
    assert loaded.encode("A", loaded.decode("A", message)) == message


def test_a_long_chain_of_types_is_compiled_and_used_within_the_stack() -> None:
    """Types of a schema that use each other in a row: too long for values, not for making the codecs."""
    count = 3000
    lines = [f"type T{index} struct {{ a: T{index + 1} }}" for index in range(count)]
    loaded = schema.load("\n".join([*lines, f"type T{count} uint"]), dialect="legacy")
    assert loaded.encode(f"T{count - 50}", loaded.decode(f"T{count - 50}", b"\7")) == b"\7"
    with pytest.raises(bare.DecodeError, match="deeper than the stack allows"):
        loaded.decode("T0", b"\7")
