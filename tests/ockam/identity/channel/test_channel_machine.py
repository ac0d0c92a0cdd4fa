"""Goal: two ends agree, refuse what they must, and can do nothing after their end. Method: two machines, bytes between
them, every message changed, cut, repeated and exchanged.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.identity.channel.channel_machine import TRANSITIONS, ChannelMachine, SecureChannelEvent, SecureChannelState
from ockam.identity.channel.errors import (
    ChannelClosed,
    CiphertextRefused,
    HandshakeFailed,
    IdentityRefused,
    PeerRefused,
    PlaintextRefused,
)
from ockam.identity.channel.messages import CLOSE, PLAINTEXT
from ockam.identity.channel.proof import ATTESTATION_S, OwnIdentity, renewed
from tests.ockam.identity.channel.samples import (
    NOW_S,
    channel,
    ephemeral,
    identity,
    kept,
    machines,
    trust_all,
    trust_only,
)

PAYLOAD = PLAINTEXT.encode_routes((), ()) + PLAINTEXT.encode_payload(b"hello")


def test_both_ends_agree() -> None:
    initiator, responder = channel()
    assert initiator.peer is not None
    assert responder.peer is not None
    assert initiator.peer.identifier == identity("responder").identifier
    assert responder.peer.identifier == identity("initiator").identifier
    for number in range(100):
        assert responder.open(initiator.seal(b"to %d" % number)) == b"to %d" % number
        assert initiator.open(responder.seal(b"fro %d" % number)) == b"fro %d" % number
        initiator.check()
        responder.check()


def test_the_sizes_of_the_messages() -> None:
    initiator, _, first, second = machines()
    assert [len(first), len(second), len(initiator.receive_2(second, NOW_S))] == [32, 419, 387]


def test_a_changed_bit_in_any_byte_of_message_2_is_refused_and_the_right_one_still_accepted() -> None:
    initiator, _, _, second = machines()
    for place in range(0, 8 * len(second), 7):
        changed = bytearray(second)
        changed[place >> 3] ^= 1 << (place & 7)
        with pytest.raises(HandshakeFailed):
            initiator.receive_2(bytes(changed), NOW_S)
        assert initiator.state is SecureChannelState.SENT_1
    initiator.check()
    initiator.receive_2(second, NOW_S)
    assert initiator.state is SecureChannelState.OPEN


def test_every_changed_bit_of_message_3_is_refused_and_the_right_one_still_accepted() -> None:
    initiator, responder, _, second = machines()
    third = initiator.receive_2(second, NOW_S)
    for place in range(8 * len(third)):
        changed = bytearray(third)
        changed[place >> 3] ^= 1 << (place & 7)
        with pytest.raises(HandshakeFailed):
            responder.receive_3(bytes(changed), NOW_S)
        assert responder.state is SecureChannelState.SENT_2
    responder.check()
    responder.receive_3(third, NOW_S)
    assert responder.state is SecureChannelState.OPEN


@given(st.binary(max_size=600))
def test_any_bytes_at_any_time(data: bytes) -> None:
    """No bytes make a machine fail otherwise than by the documented errors, or change its state."""
    initiator, responder, _, _ = machines()
    with pytest.raises(HandshakeFailed):
        initiator.receive_2(data, NOW_S)
    with pytest.raises(HandshakeFailed):
        responder.receive_3(data, NOW_S)
    opened, _ = channel()
    with pytest.raises(CiphertextRefused):
        opened.open(data)
    if len(data) < 32:
        with pytest.raises(HandshakeFailed):
            ChannelMachine(identity("x"), trust_all).receive_1(data, ephemeral(0))


def test_messages_of_another_handshake_are_refused() -> None:
    initiator, responder, _, second = machines("one")
    other_initiator, other_responder, _, other_second = machines("two")
    with pytest.raises(HandshakeFailed):
        initiator.receive_2(other_second, NOW_S)
    third = initiator.receive_2(second, NOW_S)
    with pytest.raises(HandshakeFailed):
        other_responder.receive_3(third, NOW_S)
    responder.receive_3(third, NOW_S)
    other_responder.receive_3(other_initiator.receive_2(other_second, NOW_S), NOW_S)
    with pytest.raises(CiphertextRefused):
        other_responder.open(initiator.seal(b"x"))


def test_an_untrusted_initiator_gets_an_encrypted_close() -> None:
    initiator, responder, _, second = machines(responder_trusts=trust_only(identity("somebody else")))
    third = initiator.receive_2(second, NOW_S)
    with pytest.raises(PeerRefused, match="is not trusted") as refused:
        responder.receive_3(third, NOW_S)
    assert (refused.value.reason, responder.state) == ("not_trusted", SecureChannelState.CLOSED)
    responder.check()
    # The initiator believes that the channel is open, and learns better from the first message.
    assert initiator.open(refused.value.close) == CLOSE
    initiator.take_control(CLOSE)
    assert initiator.state is SecureChannelState.CLOSED
    initiator.check()


def test_an_untrusted_responder_learns_nothing_of_the_initiator() -> None:
    initiator, _, _, second = machines(initiator_trusts=trust_only(identity("the pinned node")))
    with pytest.raises(PeerRefused) as refused:
        initiator.receive_2(second, NOW_S)
    assert (refused.value.reason, refused.value.close) == ("not_trusted", b"")
    assert initiator.state is SecureChannelState.CLOSED
    initiator.check()


def test_an_initiator_with_an_expired_attestation_is_told() -> None:
    late_s = NOW_S + ATTESTATION_S + 1
    renewed_responder = OwnIdentity(renewed(identity("responder").secrets, late_s), late_s)
    initiator = ChannelMachine(identity("initiator"), trust_all)
    responder = ChannelMachine(renewed_responder, trust_all)
    second = responder.receive_1(initiator.begin(ephemeral(1)), ephemeral(2))
    third = initiator.receive_2(second, late_s)
    with pytest.raises(PeerRefused) as refused:
        responder.receive_3(third, late_s)
    assert refused.value.reason == "expired"
    assert initiator.open(refused.value.close) == CLOSE


def test_a_close_is_the_last_message() -> None:
    initiator, responder = channel()
    responder.open(initiator.seal(PAYLOAD))
    data = initiator.close()
    assert data[:8] == (1).to_bytes(8, "big")
    assert responder.open(data) == CLOSE
    responder.take_control(CLOSE)
    for machine in (initiator, responder):
        assert machine.state is SecureChannelState.CLOSED
        machine.check()
        with pytest.raises(ChannelClosed):
            machine.seal(PAYLOAD)
        with pytest.raises(ChannelClosed):
            machine.open(data)
        assert machine.close() == b""
        machine.end()


@pytest.mark.parametrize(
    "state", [SecureChannelState.NEW, SecureChannelState.SENT_1, SecureChannelState.SENT_2, SecureChannelState.OPEN]
)
def test_an_end_forgets_the_keys_in_every_state(state: SecureChannelState) -> None:
    initiator, responder, _, second = machines()
    machine = {
        SecureChannelState.NEW: ChannelMachine(identity("x"), trust_all),
        SecureChannelState.SENT_1: initiator,
        SecureChannelState.SENT_2: responder,
        SecureChannelState.OPEN: channel()[0],
    }[state]
    assert machine.state is state
    machine.end()
    assert machine.state is SecureChannelState.CLOSED
    machine.check()
    with pytest.raises(HandshakeFailed):
        machine.receive_2(second, NOW_S)
    with pytest.raises(HandshakeFailed):
        machine.receive_3(second, NOW_S)


def test_a_refresh_of_the_same_identity_is_taken_and_of_another_refused() -> None:
    initiator, responder = channel()
    assert responder.peer is not None
    own = responder.peer.history
    responder.take_control(b"\x82\x82\x01\x81\x82" + own + b"\x80\x40")
    assert responder.peer.identifier == identity("initiator").identifier
    (refresh,) = (each for each in kept()["messages"] if each["name"].startswith("refresh"))
    with pytest.raises(IdentityRefused) as refused:
        responder.take_control(bytes.fromhex(refresh["plaintext"]))
    assert refused.value.reason == "wrong_subject"
    assert responder.state is SecureChannelState.OPEN
    assert initiator.state is SecureChannelState.OPEN


@pytest.mark.parametrize("text", ["", "82", "8282038040", "8282028140", "828202804000", "82820280", "82820280 60"])
def test_a_message_of_no_kind_is_refused_and_the_channel_stays(text: str) -> None:
    initiator, _ = channel()
    with pytest.raises(PlaintextRefused):
        initiator.take_control(bytes.fromhex(text))
    assert initiator.state is SecureChannelState.OPEN


def test_the_table_is_whole() -> None:
    """Every state has an end, every state but the last is left, and every event happens."""
    assert all(
        TRANSITIONS[state].get(SecureChannelEvent.ENDED) is SecureChannelState.CLOSED for state in SecureChannelState
    )
    assert {event for events in TRANSITIONS.values() for event in events} == set(SecureChannelEvent)
    assert {after for events in TRANSITIONS.values() for after in events.values()} == set(SecureChannelState) - {
        SecureChannelState.NEW
    }
