"""Limits: what they refuse, that they are inclusive, and that a message cannot ask for more memory than it is worth."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

import bare
from bare import model, schema
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


LEAF = Tree("c", [])
ITEMS = "all lists and maps together are over the limit of {} items".format

# Limits, annotation, the longest value within them and one beyond, and the errors of both directions.
BOUNDS: list[tuple[bare.Limits, Any, Any, Any, str]] = [
    (bare.Limits(message_bytes_max=4), bytes, b"abc", b"abcd", "message of 5 bytes is over the limit of 4"),
    (bare.Limits(list_items_max=3), list[str], ["a"] * 3, ["a"] * 4, "list of 4 is over the limit of 3"),
    (bare.Limits(list_items_max=3), list[bare.U8], [1] * 3, [1] * 4, "list of 4 is over the limit of 3"),
    (bare.Limits(map_entries_max=1), dict[str, str], {"a": ""}, {"a": "", "b": ""}, "map of 2 is over the limit of 1"),
    (bare.Limits(items_max=3), list[str], ["a"] * 3, ["a"] * 4, ITEMS(3)),
    (bare.Limits(items_max=5), list[list[str]], [["a"], ["c"]], [["a"], [], ["b", "c"]], ITEMS(5)),
    (bare.Limits(items_max=4), dict[str, list[bare.U8]], {"a": [1, 2, 3]}, {"a": [1, 2], "b": [3]}, ITEMS(4)),
    (bare.Limits(items_max=2), Tree, Tree("a", [Tree("b", [])] * 2), Tree("a", [Tree("b", [LEAF] * 2)]), ITEMS(2)),
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


def test_a_message_of_nested_lists_costs_no_more_memory_than_a_flat_one() -> None:
    """Without a bound on the items of a whole message, these 7 MiB become 500 MiB of lists."""
    count = bare.Limits().list_items_max
    below = bare.encode(count, bare.UInt) + bytes(count)
    message = bare.encode(7, bare.UInt) + below * 7
    decoder = bare.Decoder(list[list[list[bare.UInt]]])

    def decode() -> None:
        with pytest.raises(bare.DecodeError, match="all lists and maps together are over the limit of 1048576 items"):
            decoder.decode(message)

    assert peak_bytes(decode) < 1_000_000


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


@pytest.mark.parametrize("tagged", [False, True])
def test_a_union_may_have_thousands_of_members(tagged: bool) -> None:
    """Branches one after the other are nested for Python's compiler, which has no room for so many."""
    count = 3000
    first: Any
    last: Any
    if tagged:
        members = [f"list<u8>[{length}]" for length in range(1, count + 1)]
        text, first, last = "", bare.Tagged(0, [7]), bare.Tagged(count - 1, [7] * count)
    else:
        members = [f"T{index}" for index in range(count)]
        text = "\n".join(f"type {member} struct {{ a: u8 }}" for member in members)
    loaded = schema.load(f"{text} type U union {{ {' | '.join(members)} }}")
    if not tagged:
        first, last = loaded.types["T0"](7), loaded.types[f"T{count - 1}"](7)
    for value, message in ((first, b"\0\7"), (last, b"\xb7\x17" + b"\7" * (count if tagged else 1))):
        assert loaded.encode("U", value) == message
        assert loaded.decode("U", message) == value
    with pytest.raises(bare.DecodeError, match="3000 is not a tag of the union"):
        loaded.decode("U", b"\xb8\x17\7")
    for wrong in (bare.Tagged(count, [7]), bare.Tagged(True, [7]), bare.Tagged(0, 7), 7):
        with pytest.raises(bare.EncodeError):
            loaded.encode("U", wrong)


def test_a_long_chain_of_unions_is_compiled_and_used_within_the_stack() -> None:
    lines = ["type A0 union { u8 }", *(f"type A{index} union {{ A{index - 1} }}" for index in range(1, 1200))]
    loaded = schema.load("\n".join(lines))
    assert loaded.encode("A100", loaded.decode("A100", bytes(101) + b"\7")) == bytes(101) + b"\7"
    loaded.encoder("A1199")


def test_a_long_chain_of_types_is_compiled_and_used_within_the_stack() -> None:
    """Types of a schema that use each other in a row: too long for values, not for making the codecs."""
    count = 3000
    lines = [f"type T{index} struct {{ a: T{index + 1} }}" for index in range(count)]
    loaded = schema.load("\n".join([*lines, f"type T{count} uint"]), dialect="legacy")
    assert loaded.encode(f"T{count - 50}", loaded.decode(f"T{count - 50}", b"\7")) == b"\7"
    with pytest.raises(bare.DecodeError, match="deeper than the stack allows"):
        loaded.decode("T0", b"\7")


def test_the_smallest_sizes_of_a_long_cycle_take_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these unions is finite only by the one before it, which the walk through the types meets first. So a
    search that looks at all types again for each new size takes half a minute for 2,000 of them."""
    unions = 200
    looks, look = [0], model._least

    def counted(node: model.BareType, below: list[float]) -> float:
        looks[0] += 1
        return look(node, below)

    monkeypatch.setattr(model, "_least", counted)
    lines = ["type X0 struct { a: u8 z: optional<X1> }", f"type X{unions} struct {{ p: X{unions - 1} q: u8 }}"]
    lines += [f"type X{n} union {{ X{n + 1} | struct {{ p: X{n - 1} q: u8 }} }}" for n in range(1, unions)]
    loaded = schema.load("\n".join(lines), dialect="legacy")
    shape = model.shape_of(loaded.models["X0"])
    assert shape.least[id(loaded.models["X0"])] == 2
    # The smallest value of each union is the structs of all unions before it, with a tag and a byte for each.
    assert shape.least[id(loaded.models[f"X{unions}"])] == 2 + 2 * (unions - 1) + 1
    assert looks[0] < 10 * len(shape.least)


def test_a_type_that_is_larger_than_every_float_may_be_part_of_a_cycle() -> None:
    big = "list<" * 35 + "u8" + f">[{2**32 - 1}]" * 35
    loaded = schema.load(
        f"type Cycle union {{ Big | u8 }}\ntype Big struct {{ data: {big} rest: Cycle }}", dialect="legacy"
    )
    decoder = bare.Decoder(loaded.models["Cycle"])
    assert decoder.decode(b"\1\5") == 5
    with pytest.raises(bare.DecodeError, match="needs at least"):
        decoder.decode(b"\0\5")
