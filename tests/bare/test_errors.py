"""What errors say: the place, the path, and what is missing."""

from __future__ import annotations

import pickle
from typing import Annotated, Any

import msgspec
import pytest

import bare
from tests.bare.samples import TYPES, PullResponse, PushRequest, Status, StreamMessage, Tree

UNION: Any = Annotated[PushRequest | str, bare.Union({0: PushRequest, 3: str})]
TAGGED: Any = Annotated[bare.Tagged, bare.Union({0: bare.Int, 3: bare.UInt})]
FIXED: Any = Annotated[list[str], bare.Fixed(2)]

# Annotation, message in hexadecimal, and the whole text of the error.
DECODE: list[tuple[Any, str, str]] = [
    (bare.UInt, "", "uint is missing - at byte 0, $"),
    (bare.Int, "", "int is missing - at byte 0, $"),
    (bare.UInt, "80", "uint ends in the middle - at byte 0, $"),
    (bare.UInt, "ff" * 9, "uint ends in the middle - at byte 0, $"),
    (bare.UInt, "8000", "uint is not in its shortest form - at byte 0, $"),
    (bare.UInt, "808000", "uint is not in its shortest form - at byte 0, $"),
    (bare.UInt, "80808000", "uint is not in its shortest form - at byte 0, $"),
    (bare.UInt, "ff" * 9 + "00", "uint is not in its shortest form - at byte 0, $"),
    (bare.UInt, "ff" * 9 + "02", "uint has more than 64 bits - at byte 0, $"),
    (bare.UInt, "80" * 9 + "02", "uint has more than 64 bits - at byte 0, $"),
    (bare.UInt, "ff" * 10 + "01", "uint has more than 64 bits - at byte 0, $"),
    (bare.UInt, "0000", "1 bytes after the end of the message - at byte 1, $"),
    (bare.U32, "000000", "u32 needs 4 bytes and has 3 - at byte 0, $"),
    (bare.F64, "00", "f64 needs 8 bytes and has 1 - at byte 0, $"),
    (bool, "02", "bool must start with 00 or 01, not 02 - at byte 0, $"),
    (bool, "", "bool needs 1 bytes and has 0 - at byte 0, $"),
    (str | None, "ff", "optional must start with 00 or 01, not ff - at byte 0, $"),
    (str | None, "8000", "optional must start with 00 or 01, not 80 - at byte 0, $"),
    (str, "0361ff61", "str is not UTF-8: invalid start byte - at byte 2, $"),
    (str, "03eda080", "str is not UTF-8: invalid continuation byte - at byte 1, $"),
    (str, "05616263", "str needs 5 bytes and has 3 - at byte 1, $"),
    (bytes, "80", "length ends in the middle - at byte 0, $"),
    (Annotated[bytes, bare.Fixed(3)], "6162", "data needs 3 bytes and has 2 - at byte 0, $"),
    (Status, "02", "2 is not a value of enum Status - at byte 0, $"),
    (Status, "8000", "enum Status is not in its shortest form - at byte 0, $"),
    (UNION, "01", "1 is not a tag of the union - at byte 0, $"),
    (UNION, "8000", "union tag is not in its shortest form - at byte 0, $"),
    (UNION, "000501", "data needs 1 bytes and has 0 - at byte 3, $.data"),
    (list[bool], "03000102", "bool must start with 00 or 01, not 02 - at byte 3, $[2]"),
    (list[bare.U16], "03000102", "list of 3 needs at least 6 bytes and has 3 - at byte 1, $"),
    (FIXED, "01", "list of 2 needs at least 2 bytes and has 1 - at byte 0, $"),
    (list[FIXED], "03000102", "list of 3 needs at least 6 bytes and has 3 - at byte 1, $"),
    (FIXED, "01610162", ""),
    (FIXED, "0161ff", "length ends in the middle - at byte 2, $[1]"),
    (list[str], "80", "list count ends in the middle - at byte 0, $"),
    (dict[str, bool], "0201610101610f", "map key is repeated - at byte 4, $.keys[1]"),
    (dict[str, bool], "0101ff01", "str is not UTF-8: invalid start byte - at byte 2, $.keys[0]"),
    (dict[str, bool], "01016105", "bool must start with 00 or 01, not 05 - at byte 3, $.values[0]"),
    (dict[str, bool], "05", "map of 5 needs at least 10 bytes and has 0 - at byte 1, $"),
    (PullResponse, "07020161", "list of 2 needs at least 4 bytes and has 2 - at byte 2, $.messages"),
    (PullResponse, "070401000200030004056162", "data needs 5 bytes and has 2 - at byte 10, $.messages[3].data"),
    (Tree, "00010001050200", "str needs 5 bytes and has 2 - at byte 5, $.children[0].children[0].name"),
]


@pytest.mark.parametrize(("type_", "message", "text"), DECODE)
def test_decode_errors_say_what_where_and_in_which_value(type_: Any, message: str, text: str) -> None:
    found = ""
    try:
        bare.decode(bytes.fromhex(message), type_)
    except bare.DecodeError as error:
        found = str(error)
    assert found == text


def test_missing_bytes_are_counted() -> None:
    with pytest.raises(bare.DecodeError) as raised:
        bare.decode(b"\1\5ab", PushRequest)
    error = raised.value
    assert (error.what, error.offset, error.path) == ("data needs 5 bytes and has 2", 2, "$.data")
    assert (error.need, error.have) == (5, 2)
    with pytest.raises(bare.DecodeError) as raised:
        bare.decode(b"\xff\xff", bare.UInt)
    assert (raised.value.offset, raised.value.need, raised.value.have) == (0, 3, 2)
    with pytest.raises(bare.DecodeError) as raised:
        bare.decode(b"\2", bool)
    assert (raised.value.need, raised.value.have) == (None, None)


def test_errors_do_not_drag_along_how_they_were_found() -> None:
    with pytest.raises(bare.DecodeError) as raised:
        bare.decode(b"", PushRequest)
    assert raised.value.__context__ is None
    with pytest.raises(bare.DecodeError) as raised:
        bare.Decoder(PushRequest).decode_prefix(b"")
    assert raised.value.__context__ is None
    with pytest.raises(bare.EncodeError) as refused:
        bare.encode(PushRequest(-1, b""))
    assert refused.value.__context__ is None


def test_offsets_of_a_prefix_count_from_the_start_of_the_buffer() -> None:
    with pytest.raises(bare.DecodeError, match=r"has 1 - at byte 5, \$\.data") as raised:
        bare.Decoder(PushRequest).decode_prefix(b"...\1\2a", 3)
    assert (raised.value.offset, raised.value.need, raised.value.have) == (5, 2, 1)


WRONG_RESPONSE = PullResponse(7, [StreamMessage(1, b""), StreamMessage(2, "")])  # type: ignore[arg-type]

# Annotation, value, and the whole text of the error.
ENCODE: list[tuple[Any, Any, str]] = [
    (bare.UInt, -1, "uint must be from 0 to 18446744073709551615 - at $"),
    (bare.UInt, 2**64, "uint must be from 0 to 18446744073709551615 - at $"),
    (bare.UInt, True, "wants an int for uint, not bool - at $"),
    (bare.UInt, 1.0, "wants an int for uint, not float - at $"),
    (bare.Int, 2**63, "int must be from -9223372036854775808 to 9223372036854775807 - at $"),
    (bare.Int, -(2**63) - 1, "int must be from -9223372036854775808 to 9223372036854775807 - at $"),
    (bare.U8, 256, "u8 must be from 0 to 255 - at $"),
    (bare.U8, True, "wants an int for u8, not bool - at $"),
    (bare.I16, -32769, "i16 must be from -32768 to 32767 - at $"),
    (bare.F32, 1e39, "number is out of the range of f32 - at $"),
    (bare.F32, 2**24 + 1, "f32 cannot represent this int exactly - at $"),
    (bare.F64, 10**400, "number is out of the range of f64 - at $"),
    (bare.F64, True, "wants a float for f64, not bool - at $"),
    (bare.F64, "1", "wants a float for f64, not str - at $"),
    (bool, 1, "wants bool, not int - at $"),
    (str, b"a", "wants a str, not bytes - at $"),
    (str, "a\ud800", "str has no UTF-8 form: surrogates not allowed at character 1 - at $"),
    (bytes, "a", "wants bytes, not str - at $"),
    (bytes, [1], "wants bytes, not list - at $"),
    (Annotated[bytes, bare.Fixed(2)], b"a", "wants exactly 2 bytes, not 1 - at $"),
    (None, 0, "wants None, not int - at $"),
    (Status, 1, "wants a member of Status, not int - at $"),
    (list[str], ("a",), "wants a list, not tuple - at $"),
    (list[str], ["a", 1], "wants a str, not int - at $[1]"),
    (list[bare.U8], [1, 256], "u8 must be from 0 to 255 - at $[1]"),
    (list[bare.U8], [1, True], "wants an int for u8, not bool - at $[1]"),
    (list[bare.I32], [2**31], "i32 must be from -2147483648 to 2147483647 - at $[0]"),
    (list[bare.F32], [0.0, None], "wants a float for f32, not NoneType - at $[1]"),
    (FIXED, ["a"], "wants exactly 2 items, not 1 - at $"),
    (dict[str, bool], [], "wants a dict, not list - at $"),
    (dict[str, bool], {"a": True, 1: True}, "wants a str, not int - at $.keys[1]"),
    (dict[str, bool], {"a": True, "b": 1}, "wants bool, not int - at $.values[1]"),
    (bare.Some[str | None] | None, "a", "wants None or Some, not str - at $"),
    (UNION, 5, "wants a member of the union, not int - at $"),
    (UNION, None, "wants a member of the union, not NoneType - at $"),
    (TAGGED, 5, "wants Tagged, not int - at $"),
    (TAGGED, bare.Tagged(1, 5), "1 is not a tag of the union - at $"),
    (TAGGED, bare.Tagged(False, 5), "False is not a tag of the union - at $"),
    (TAGGED, bare.Tagged(3, -5), "uint must be from 0 to 18446744073709551615 - at $"),
    (PushRequest, StreamMessage(1, b"a"), "wants PushRequest, not StreamMessage - at $"),
    (PullResponse, WRONG_RESPONSE, "wants bytes, not str - at $.messages[1].data"),
]


@pytest.mark.parametrize(("type_", "value", "text"), ENCODE)
def test_encode_errors_say_what_and_in_which_value(type_: Any, value: Any, text: str) -> None:
    with pytest.raises(bare.EncodeError) as raised:
        bare.Encoder(type_).encode(value)
    assert str(raised.value) == text
    assert text.endswith(" - at " + raised.value.path)
    assert text.startswith(raised.value.what)


class Sub(PushRequest, frozen=True):
    pass


def test_a_subclass_of_a_struct_is_not_that_struct() -> None:
    with pytest.raises(bare.EncodeError, match="wants PushRequest, not Sub"):
        bare.encode(Sub(1, b"a"), PushRequest)


def test_a_struct_without_a_value_for_a_field_is_an_encode_error() -> None:
    class Settable(msgspec.Struct):
        number: int

    value = Settable(1)
    del value.number
    with pytest.raises(bare.EncodeError, match="Settable has no value for its field number"):
        bare.encode(value)


ERRORS = [
    bare.EncodeError("what", "$.a"),
    bare.DecodeError("what", 3, "$.a", 5, 2),
    bare.SchemaError("what", 3, 5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_are_value_errors_and_can_be_pickled(error: bare.BareError) -> None:
    assert isinstance(error, bare.BareError)
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_no_input_of_two_bytes_raises_anything_but_decode_error() -> None:
    """Every message of up to one byte, and of two bytes from the interesting ones, for every sample type."""
    some = [0, 1, 2, 3, 0x10, 0x41, 0x7F, 0x80, 0x81, 0xC0, 0xE2, 0xF0, 0xFE, 0xFF]
    messages = [b"", *(bytes((one,)) for one in range(256)), *(bytes((one, two)) for one in some for two in some)]
    for type_ in TYPES.values():
        decoder, encoder = bare.Decoder(type_), bare.Encoder(type_)
        for message in messages:
            try:
                value = decoder.decode(message)
            except bare.DecodeError:
                continue
            assert encoder.encode(value) == message
