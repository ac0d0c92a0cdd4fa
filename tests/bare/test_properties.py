"""Any value of any type goes through and comes back; any damage is a DecodeError or another valid message.

Types are drawn as schemas, written as text, and loaded, so the schema language takes part in every example.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bare
from bare import compile_decode, compile_encode, schema
from bare.compile_decode import _DecoderCompiler, compile_decoder
from bare.compile_encode import compile_encoder
from bare.limits import LIMITS_DEFAULT
from bare.model import PRIMITIVES, BareType, shape_of
from bare.precise import decode_precisely, encode_precisely
from tests.bare.strategies import schemas, values
from tests.support.examples import examples

EXAMPLES = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


class HandedOverError(Exception):
    """The compiled codec gave up, where the careful one would take over."""


def hand_over(*_: Any) -> Any:
    raise HandedOverError


def drawn_type(data: st.DataObject) -> BareType:
    loaded = schema.load(data.draw(schemas()), dialect="legacy")
    return loaded.models[data.draw(st.sampled_from(sorted(loaded)))]


def fast_decoding(node: BareType, message: bytes, limits: bare.Limits = LIMITS_DEFAULT) -> str:
    """What the compiled decoder alone makes of a message: its value's repr, or `error`."""
    try:
        return repr(compile_decoder(node, limits, shape_of(node), hand_over)(message))
    except HandedOverError:
        return "error"


def careful_decoding(node: BareType, message: bytes, limits: bare.Limits = LIMITS_DEFAULT) -> str:
    try:
        value, end = decode_precisely(node, limits, shape_of(node), message, 0, whole=True)
    except bare.DecodeError as error:
        found: bare.DecodeError = error
    else:
        assert end == len(message)
        return repr(value)
    assert 0 <= found.offset <= len(message)
    assert (found.need is None) == (found.have is None)
    assert found.need is None or found.have is None or found.have < found.need
    return "error"


@EXAMPLES
@given(st.data())
def test_any_value_of_any_type_round_trips(data: st.DataObject) -> None:
    node = drawn_type(data)
    value = data.draw(values(node))
    message = bare.Encoder(node).encode(value)
    decoder = bare.Decoder(node)
    assert repr(decoder.decode(message)) == repr(value)
    assert bare.Encoder(node).encode(decoder.decode(message)) == message

    before, after = data.draw(st.binary(max_size=3)), data.draw(st.binary(max_size=3))
    found, end = decoder.decode_prefix(before + message + after, len(before))
    assert repr(found) == repr(value)
    assert end == len(before) + len(message)


@EXAMPLES
@given(st.data())
def test_compiled_and_careful_encoders_give_the_same_bytes(data: st.DataObject) -> None:
    node = drawn_type(data)
    value = data.draw(values(node))
    shape = shape_of(node)
    fast = compile_encoder(node, LIMITS_DEFAULT, shape, hand_over)(value)
    assert fast == encode_precisely(node, LIMITS_DEFAULT, shape, value)


@EXAMPLES
@given(st.data())
def test_values_of_other_types_are_refused_alike_by_compiled_and_careful_encoders(
    data: st.DataObject,
) -> None:
    """The careful encoder may take more (a bytearray as data), but never less, and gives no other bytes."""
    node, other = drawn_type(data), drawn_type(data)
    value = data.draw(values(other))
    shape = shape_of(node)
    try:
        fast = compile_encoder(node, LIMITS_DEFAULT, shape, hand_over)(value)
    except HandedOverError:
        with contextlib.suppress(bare.EncodeError):
            encode_precisely(node, LIMITS_DEFAULT, shape, value)
    else:
        assert fast == encode_precisely(node, LIMITS_DEFAULT, shape, value)


@EXAMPLES
@given(st.data())
def test_every_prefix_of_a_message_is_refused(data: st.DataObject) -> None:
    node = drawn_type(data)
    message = bare.Encoder(node).encode(data.draw(values(node)))
    decoder = bare.Decoder(node)
    for size in range(len(message)):
        with pytest.raises(bare.DecodeError) as raised:
            decoder.decode(message[:size])
        assert raised.value.offset <= size


@EXAMPLES
@given(st.data())
def test_a_changed_byte_gives_an_error_or_a_message_with_one_encoding(data: st.DataObject) -> None:
    node = drawn_type(data)
    message = bytearray(bare.Encoder(node).encode(data.draw(values(node))))
    if message:
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255))
    found = fast_decoding(node, bytes(message))
    assert found == careful_decoding(node, bytes(message))
    if found != "error" and "nan" not in found:
        value = bare.Decoder(node).decode(message)
        assert bare.Encoder(node).encode(value) == message


@EXAMPLES
@given(st.data())
def test_compiled_and_careful_decoders_agree_on_any_bytes(data: st.DataObject) -> None:
    node = drawn_type(data)
    message = data.draw(
        st.binary(max_size=40) | st.lists(st.sampled_from(b"\0\1\2\x7f\x80\xff"), max_size=30).map(bytes)
    )
    assert fast_decoding(node, message) == careful_decoding(node, message)


@EXAMPLES
@given(st.data())
def test_compiled_and_careful_codecs_count_the_same_items(data: st.DataObject) -> None:
    """With limits so small that many messages pass them."""
    node = drawn_type(data)
    value = data.draw(values(node))
    message = bare.Encoder(node).encode(value)
    limits = bare.Limits(items_max=data.draw(st.integers(1, 8)), list_items_max=data.draw(st.integers(1, 8)))
    decoded = fast_decoding(node, message, limits)
    assert decoded == careful_decoding(node, message, limits)
    shape = shape_of(node)
    try:
        encoded = compile_encoder(node, limits, shape, hand_over)(value)
    except HandedOverError:
        assert decoded == "error"
        with pytest.raises(bare.EncodeError):
            encode_precisely(node, limits, shape, value)
    else:
        assert decoded != "error"
        assert encoded == message


@EXAMPLES
@given(st.data())
def test_unions_by_table_and_by_branches_are_alike(data: st.DataObject) -> None:
    node = drawn_type(data)
    value = data.draw(values(node))
    message = bytearray(bare.Encoder(node).encode(value))
    with (
        unittest.mock.patch.object(compile_decode, "CHAIN_MEMBERS_MAX", 0),
        unittest.mock.patch.object(compile_encode, "CHAIN_MEMBERS_MAX", 0),
    ):
        assert bare.Encoder(node).encode(value) == message
        assert fast_decoding(node, bytes(message)) == careful_decoding(node, bytes(message))
        if message:
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        assert fast_decoding(node, bytes(message)) == careful_decoding(node, bytes(message))


def test_the_comparison_tells_a_lax_decoder_from_a_strict_one() -> None:
    """A canary: without its check of flags, the compiled decoder must be seen to differ."""
    node = PRIMITIVES["bool"]
    assert fast_decoding(node, b"\2") == careful_decoding(node, b"\2") == "error"
    with unittest.mock.patch.object(_DecoderCompiler, "_flag", _DecoderCompiler._byte):
        assert fast_decoding(node, b"\2") == "False" != careful_decoding(node, b"\2")
