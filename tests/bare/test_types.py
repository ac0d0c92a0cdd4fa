"""Which annotations stand for which BARE types, which values fit them, and which annotations are refused."""

from __future__ import annotations

import enum
import math
import struct
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pytest

import bare
from bare.codec import _decoder, _encoder
from tests.bare.samples import AppendixEnum, CreateStreamRequest, Init, PushRequest, Status, Tree

T = TypeVar("T")

INT_OR_NAME: Any = Annotated[bare.Int | str, bare.Union({0: bare.Int, 7: str})]
NUMBERS: Any = Annotated[bare.Tagged, bare.Union({0: bare.Int, 1: bare.UInt, 300: list[bare.U8]})]
MAYBE_VOID: Any = Annotated[Init | None, bare.Union({1: Init, 2: None})]

# Annotation, value, message in hexadecimal.
FITTING: list[tuple[Any, Any, str]] = [
    (int, -1, "01"),
    (float, 1.0, "000000000000f03f"),
    (bare.UInt, 2**64 - 1, "ffffffffffffffffff01"),
    (bare.UInt, 16383, "ff7f"),
    (bare.UInt, 16384, "808001"),
    (bare.UInt, 2**21, "80808001"),
    (bare.UInt, 2**28, "8080808001"),
    (bare.Int, -(2**63), "ffffffffffffffffff01"),
    (bare.Int, 2**63 - 1, "feffffffffffffffff01"),
    (bare.U8, 255, "ff"),
    (bare.U16, 258, "0201"),
    (bare.U64, 2**64 - 1, "ff" * 8),
    (bare.I8, -128, "80"),
    (bare.I32, -2, "feffffff"),
    (bare.I64, -(2**63), "0000000000000080"),
    (bare.F32, 1.5, "0000c03f"),
    (bare.F32, math.inf, "0000807f"),
    (bare.F64, -0.0, "0000000000000080"),
    (bare.Bool, True, "01"),
    (bare.Str, "é€", "05c3a9e282ac"),
    (bare.Data, b"\0" * 200, "c801" + "00" * 200),
    (bare.Void, None, ""),
    (Status, Status.ERROR, "01"),
    (AppendixEnum, AppendixEnum.BUZZ, "8002"),
    (bytes | None, b"a", "010161"),
    (bytes | None, None, "00"),
    (bare.Some[bare.U8 | None] | None, None, "00"),
    (bare.Some[bare.U8 | None] | None, bare.Some(None), "0100"),
    (bare.Some[bare.U8 | None] | None, bare.Some(5), "010105"),
    (list[int], [1, -1], "020201"),
    (list[bare.U8], [0, 255], "0200ff"),
    (list[bare.U16], [1, 2], "0201000200"),
    (list[bare.F32], [0.5], "010000003f"),
    (list[bool], [True, False], "020100"),
    (list[list[str]], [[], ["a"]], "0200010161"),
    (Annotated[list[bare.U8], bare.Fixed(2)], [1, 2], "0102"),
    (Annotated[list[bare.I16], bare.Fixed(2)], [1, -1], "0100ffff"),
    (Annotated[list[str], bare.Fixed(1)], ["a"], "0161"),
    (Annotated[bytes, bare.Fixed(2)], b"ab", "6162"),
    (dict[str, bare.U8], {"a": 1}, "01016101"),
    (dict[Status, str | None], {Status.OK: None}, "010000"),
    (dict[Annotated[bytes, bare.Fixed(1)], bool], {b"a": True}, "016101"),
    (dict[bool, bool], {True: False, False: True}, "0201000001"),
    (INT_OR_NAME, -1, "0001"),
    (INT_OR_NAME, "a", "070161"),
    (NUMBERS, bare.Tagged(0, 1), "0002"),
    (NUMBERS, bare.Tagged(1, 1), "0101"),
    (NUMBERS, bare.Tagged(300, [1]), "ac020101"),
    (MAYBE_VOID, Init("a"), "010161"),
    (MAYBE_VOID, None, "02"),
    (list[INT_OR_NAME], [1, "a"], "020002070161"),
    (PushRequest, PushRequest(5, b"a"), "050161"),
    (list[PushRequest], [PushRequest(5, b"a"), PushRequest(300, b"")], "02050161ac0200"),
    (Tree, Tree("a", [Tree("b", [])], Tree("c", [])), "0161010162000001016300 00"),
]


@pytest.mark.parametrize(("type_", "value", "message"), FITTING)
def test_values_of_a_type_have_the_bytes_of_the_draft(type_: Any, value: Any, message: str) -> None:
    assert bare.encode(value, type_).hex() == bytes.fromhex(message).hex()
    decoded = bare.decode(bytes.fromhex(message), type_)
    assert decoded == value
    assert type(decoded) is type(value)


def test_the_class_of_a_value_is_its_type_unless_one_is_given() -> None:
    assert bare.encode(PushRequest(1, b"a")).hex() == "010161"
    assert bare.encode(Status.ERROR).hex() == "01"
    assert bare.encode(-1).hex() == "01"
    assert bare.encode(None) == b""
    with pytest.raises(TypeError, match="has no BARE type"):
        bare.encode([1])


def test_codecs_are_made_once_per_type() -> None:
    class Fresh(msgspec.Struct):
        number: int

    before = _encoder.cache_info().misses, _decoder.cache_info().misses
    for _ in range(3):
        assert bare.decode(bare.encode([Fresh(1)], list[Fresh]), list[Fresh]) == [Fresh(1)]
    assert (_encoder.cache_info().misses, _decoder.cache_info().misses) == (before[0] + 1, before[1] + 1)


def test_encode_into_appends_and_leaves_the_buffer_alone_on_errors() -> None:
    buffer = bytearray(b"head")
    encoder = bare.Encoder(PushRequest)
    encoder.encode_into(PushRequest(1, b"a"), buffer)
    assert buffer == b"head\x01\x01a"
    with pytest.raises(bare.EncodeError):
        encoder.encode_into(PushRequest(-1, b"a"), buffer)
    assert buffer == b"head\x01\x01a"


@pytest.mark.parametrize("make", [bytearray, memoryview])
def test_any_buffer_is_decoded_into_bytes(make: type[Any]) -> None:
    decoder = bare.Decoder(PushRequest)
    assert type(decoder.decode(make(b"\5\1a")).data) is bytes
    assert decoder.decode_prefix(make(b"..\5\1a.."), 2) == (PushRequest(5, b"a"), 5)


def test_what_is_no_buffer_is_a_type_error() -> None:
    for wrong in ("text", 5, [1], None):
        with pytest.raises(TypeError, match="wants bytes"):
            bare.decode(wrong, bare.UInt)  # type: ignore[call-overload]


@pytest.mark.parametrize("offset", [-1, 4])
def test_a_prefix_offset_outside_of_the_buffer_is_a_value_error(offset: int) -> None:
    with pytest.raises(ValueError, match="outside of a buffer of 3 bytes"):
        bare.Decoder(bare.UInt).decode_prefix(b"\1\2\3", offset)


def test_a_prefix_may_start_at_the_end() -> None:
    assert bare.Decoder(bare.Void).decode_prefix(b"abc", 3) == (None, 3)
    with pytest.raises(bare.DecodeError, match="uint is missing - at byte 3"):
        bare.Decoder(bare.UInt).decode_prefix(b"abc", 3)


@pytest.mark.parametrize(("type_", "width"), [(bare.F32, 4), (bare.F64, 8)])
def test_nan_goes_through(type_: Any, width: int) -> None:
    message = bare.encode(math.nan, type_)
    assert len(message) == width
    assert math.isnan(bare.decode(message, type_))


def test_the_payload_of_a_wide_nan_is_kept() -> None:
    message = bytes.fromhex("010000000000f87f")
    assert bare.encode(bare.decode(message, bare.F64), bare.F64) == message


class Shape(enum.IntEnum):
    ROUND = 1


# Beyond the exact types: what the careful encoder lets pass.
ACCEPTED: list[tuple[Any, Any, str]] = [
    (bare.UInt, Shape.ROUND, "01"),
    (bare.Int, Shape.ROUND, "02"),
    (bare.U8, Shape.ROUND, "01"),
    (list[bare.U8], [Shape.ROUND], "0101"),
    (bytes, bytearray(b"ab"), "026162"),
    (bytes, memoryview(b"ab"), "026162"),
    (Annotated[bytes, bare.Fixed(2)], bytearray(b"ab"), "6162"),
    (bare.F64, 1, "000000000000f03f"),
    (bare.F32, 2**24, "0000804b"),
    (Annotated[bytes | str, bare.Union({0: bytes, 1: str})], bytearray(b"a"), "000161"),
]


@pytest.mark.parametrize(("type_", "value", "message"), ACCEPTED)
def test_near_relatives_of_the_exact_types_are_encoded(type_: Any, value: Any, message: str) -> None:
    assert bare.encode(value, type_).hex() == message


def test_f32_rounds_to_the_nearest() -> None:
    assert bare.decode(bare.encode(0.1, bare.F32), bare.F32) == struct.unpack("<f", struct.pack("<f", 0.1))[0]


class KeywordOnly(msgspec.Struct, frozen=True):
    first: bare.U8
    third: bare.U16 = msgspec.field(default=3)
    second: bare.U8 = msgspec.field(default=2)


class Derived(KeywordOnly, frozen=True, kw_only=True):
    fourth: bare.U8


def test_fields_are_sent_in_the_order_of_the_class_and_given_by_name_where_they_must_be() -> None:
    value = Derived(1, 3, 2, fourth=4)
    names = [name for name in Derived.__struct_fields__]
    message = bare.encode(value)
    assert [getattr(value, name) for name in names] == [1, 3, 2, 4]
    assert message.hex() == "0103000204"
    assert bare.decode(message, Derived) == value


def test_fields_that_are_given_by_name_may_be_called_anything() -> None:
    cls = msgspec.defstruct("Odd", [("class", bare.U8), ("plain", bare.U8)], kw_only=True)
    value = cls(**{"class": 1, "plain": 2})
    assert bare.decode(bare.encode(value), cls) == value


class Checked(msgspec.Struct, frozen=True):
    low: bare.U8
    high: bare.U8

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ArithmeticError("low is over high")


def test_a_class_that_refuses_its_fields_makes_a_decode_error() -> None:
    assert bare.decode(b"\1\2", Checked) == Checked(1, 2)
    with pytest.raises(bare.DecodeError, match="Checked refuses its fields: low is over high") as raised:
        bare.decode(b"\2\1\2\2\1", list[Checked])
    assert (raised.value.offset, raised.value.path) == (3, "$[1]")
    assert isinstance(raised.value.__cause__, ArithmeticError)


class Empty(msgspec.Struct):
    pass


class NoMembers(enum.IntEnum):
    pass


class Negative(enum.IntEnum):
    BELOW = -1


class Endless(msgspec.Struct):
    inner: Endless


class EndlessInFixedList(msgspec.Struct):
    inner: Annotated[list[EndlessInFixedList], bare.Fixed(2)]


class Leaf(msgspec.Struct):
    number: bare.U8


class Branch(msgspec.Struct):
    below: Annotated[Branch | Leaf, bare.Union({0: Branch, 1: Leaf})]


class OnlyBranches(msgspec.Struct):
    below: Annotated[OnlyBranches, bare.Union({0: OnlyBranches})]


class Unresolved(msgspec.Struct):
    inner: Missing  # type: ignore[name-defined]  # noqa: F821


class Box(msgspec.Struct, Generic[T]):
    inner: T


class VoidField(msgspec.Struct):
    nothing: None


class Deep(msgspec.Struct):
    key: dict[float, str]


# Annotation, and a part of the message of the TypeError.
REFUSED: list[tuple[Any, str]] = [
    (complex, "complex'> has no BARE type"),
    (list, "has no BARE type"),
    (tuple[int, str], "has no BARE type"),
    (Any, "has no BARE type"),
    (Box[int], "has no BARE type"),
    (Box, "Box.inner: ~T has no BARE type"),
    (int | str, "needs its tags"),
    (int | str | None, "needs its tags"),
    (list[None], "may only be a member of a union"),
    (dict[str, None], "may only be a member of a union"),
    (VoidField, "VoidField.nothing: None"),
    (dict[float, str], "key of a map"),
    (dict[PushRequest, str], "key of a map"),
    (dict[str | None, str], "key of a map"),
    (Deep, "Deep.key: the key of a map"),
    (Empty, "Empty has no fields"),
    (NoMembers, "NoMembers has no members"),
    (Negative, "Negative.BELOW = -1 is not an unsigned 64-bit number"),
    (Endless, "Endless contains itself without end"),
    (EndlessInFixedList, "EndlessInFixedList contains itself without end"),
    (OnlyBranches, "OnlyBranches contains itself without end"),
    (Unresolved, "Unresolved: name 'Missing' is not defined"),
    (bare.Tagged, "Tagged needs its types"),
    (Annotated[bytes, bare.Fixed(0)], "must be from 1"),
    (Annotated[bytes, bare.Fixed(2**32)], "must be from 1"),
    (Annotated[str, bare.Fixed(1)], "belongs to bytes or list"),
    (Annotated[bare.U8, bare.Fixed(1)], "more than one annotation"),
    (Annotated[bare.Tagged, bare.Union({})], "at least one member"),
    (Annotated[bare.Tagged, bare.Union({-1: int})], "tag -1 is not"),
    (Annotated[bare.Tagged, bare.Union({2**64: int})], "is not an unsigned 64-bit number"),
    (Annotated[int, bare.Union({0: bare.Int, 1: bare.UInt})], "annotate bare.Tagged"),
    (Annotated[str | None, bare.Union({0: str | None, 1: None})], "annotate bare.Tagged"),
    (MAYBE_VOID | None, "need bare.Some"),
]


@pytest.mark.parametrize(("type_", "what"), REFUSED)
def test_types_that_bare_does_not_have_are_refused(type_: Any, what: str) -> None:
    with pytest.raises(TypeError) as raised:
        bare.Encoder(type_)
    assert what in str(raised.value)
    with pytest.raises(TypeError):
        bare.Decoder(type_)


def test_a_type_may_contain_itself_in_a_union_with_an_end() -> None:
    value = Branch(Branch(Leaf(5)))
    assert bare.encode(value).hex() == "000105"
    assert bare.decode(b"\0\1\5", Branch) == value


def test_metadata_of_others_is_ignored() -> None:
    assert bare.encode(5, Annotated[int, msgspec.Meta(gt=0), "note"]).hex() == "0a"
    assert bare.encode(5, Annotated[bare.UInt, "note"]).hex() == "05"


def test_unions_are_equal_by_their_members() -> None:
    same = bare.Union({0: int}), bare.Union({0: int})
    assert same[0] == same[1]
    assert hash(same[0]) == hash(same[1])
    assert same[0] != bare.Union({1: int})
    assert same[0] != 0
    assert repr(same[0]) == "Union({0: <class 'int'>})"


def test_an_optional_struct_is_plain() -> None:
    assert bare.decode(
        bare.encode(CreateStreamRequest("a"), CreateStreamRequest | None), CreateStreamRequest | None
    ) == (CreateStreamRequest("a"))
