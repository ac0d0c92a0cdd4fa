"""Goal: every byte as the real peers have it. Method: public vectors, and two recorded conversations with real Elixir.

The vectors in this repository are always read; the whole collection where it lies beside the repository.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ockam.actors.address import Address, Route, local
from ockam.actors.message import HERE, Message
from ockam.identity.channel.cbor import CborReader
from ockam.identity.channel.channel_machine import ChannelMachine, SecureChannelState
from ockam.identity.channel.errors import CiphertextRefused, HandshakeFailed, IdentityRefused
from ockam.identity.channel.identity_history import (
    format_identifier,
    make_history,
    parse_identifier,
    read_history,
    verify_history,
)
from ockam.identity.channel.messages import CLOSE, PAYLOAD_HEAD, PlaintextReader, PlaintextWriter, read_control
from ockam.identity.channel.noise import NoiseHandshake, _hkdf, _Symmetric
from ockam.identity.channel.proof import OwnIdentity, Secrets
from ockam.identity.channel.transport import Opener, Sealer, next_key
from ockam.transport.wire_head import HEAD
from tests.ockam.identity.channel.samples import VECTORS, ephemeral, identity, trust_all


@pytest.fixture(params=["kept", "shared"], scope="module")
def vectors(request: pytest.FixtureRequest) -> Any:
    if request.param == "kept":
        return json.loads(VECTORS.read_text())
    directory: Path = request.getfixturevalue("shared_dir")
    return json.loads((directory / "vectors" / "secure_channel.json").read_text())


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def private(text: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(unhex(text))


def test_noise_handshakes(vectors: Any) -> None:
    for each in vectors["noise_handshakes"]:
        name = unhex(each["protocol_name"])
        keys = [
            private(each[f"{who}_{kind}_key"]) for who in ("initiator", "responder") for kind in ("static", "ephemeral")
        ]
        initiator, responder = NoiseHandshake(keys[0], keys[1], name), NoiseHandshake(keys[2], keys[3], name)
        payloads = [unhex(each[f"message{number}_payload"]) for number in (1, 2, 3)]
        first = initiator.write_1(payloads[0])
        assert responder.read_1(first) == payloads[0]
        second = responder.write_2(payloads[1])
        assert initiator.read_2(second) == payloads[1]
        third = initiator.write_3(payloads[2])
        assert responder.read_3(third) == payloads[2]
        written = [each[f"message{number}_ciphertext"] for number in (1, 2, 3)]
        assert [message.hex() for message in (first, second, third)] == written, each["name"]
        derived = each["derived_here"]
        assert initiator.hash.hex() == responder.hash.hex() == derived["h"]
        # The initiator sends with the second key, against the text of Noise.
        assert [key.hex() for key in initiator.keys(is_initiator=True)] == [derived["k2"], derived["k1"]]
        assert [key.hex() for key in responder.keys(is_initiator=False)] == [derived["k1"], derived["k2"]]


def test_primitives(vectors: Any) -> None:
    primitives = vectors["primitives"]
    hkdf = primitives["hkdf"]
    assert [part.hex() for part in _hkdf(unhex(hkdf["salt"]), unhex(hkdf["ikm"]))] == [hkdf["k1"], hkdf["k2"]]
    gcm = primitives["aes_256_gcm"]
    sealed = AESGCM(unhex(gcm["key"])).encrypt(
        bytes(4) + gcm["nonce"].to_bytes(8, "big"), unhex(gcm["plaintext"]), unhex(gcm["aad"])
    )
    assert sealed.hex() == gcm["ciphertext_and_tag"]
    for name in ("initial_h", "initial_h_production"):
        symmetric = _Symmetric(unhex(primitives[name]["protocol_name"]))
        symmetric.mix_hash(b"")
        assert symmetric.h.hex() == primitives[name]["h"]


def test_transport_ciphertexts_and_keys(vectors: Any) -> None:
    transport = vectors["transport"]
    sealer, opener = Sealer(unhex(transport["key"])), Opener(unhex(transport["key"]))
    sealed = [sealer.seal(f"message {number}".encode()) for number in range(100)]
    assert sha256(b"".join(sealed)).hexdigest() == transport["sha256_of_all_ciphertexts_joined"]
    assert {number: sealed[int(number)].hex() for number in transport["ciphertexts"]} == transport["ciphertexts"]
    key = unhex(transport["keys"]["0"])
    for number in ("32", "64"):
        key = next_key(AESGCM(key))
        assert key.hex() == transport["keys"][number]
    assert [opener.open(data) for data in sealed] == [f"message {number}".encode() for number in range(100)]


def test_the_window_of_the_rust_receiver(vectors: Any) -> None:
    key = bytes(range(32))
    opener, sealed = Opener(key), seal_many(key, 300)
    for nonce, accepted in vectors["windows"]["nonce_tracker"]["marks"]:
        assert is_opened(opener, sealed[nonce]) == accepted, nonce
        opener.check()


def test_the_accepted_ranges(vectors: Any) -> None:
    """Everything that Elixir's receiver accepts, we accept; and exactly what Rust's accepts."""
    key = bytes(range(32))
    sealed = seal_many(key, 200)
    for highest, elixir_min, elixir_max, rust_min, rust_max in vectors["windows"]["accepted_ranges"]["rows"]:
        accepted = []
        for nonce in range(160):
            opener = Opener(key)
            for each in (*range(0, highest, 16), highest):
                opener.open(sealed[each])
            if is_opened(opener, sealed[nonce]):
                accepted.append(nonce)
        # The ranges of the vectors leave out what was seen.
        assert (accepted[0], accepted[-1]) == (rust_min, rust_max), highest
        seen = {*range(0, highest, 16), highest}
        assert accepted == [nonce for nonce in range(rust_min, rust_max + 1) if nonce not in seen]
        assert {nonce for nonce in range(elixir_min, elixir_max + 1)} - seen <= set(accepted)


def test_the_keys_of_intervals(vectors: Any) -> None:
    """The intervals of the vectors have ten messages; the rule is the same."""
    for case in vectors["windows"]["key_tracker"]["cases"]:
        opener = Opener(bytes(32))
        opener._interval = case["rekeys"]
        opener._previous = AESGCM(bytes(32)) if case["has_previous"] else None
        for group in ("previous", "current", "next"):
            for nonce in case.get(group, ()):
                opener._cipher_of(nonce // 10)
        for nonce in case["refused"]:
            with pytest.raises(CiphertextRefused):
                opener._cipher_of(nonce // 10)


def test_messages(vectors: Any) -> None:
    for each in vectors["messages"]:
        plaintext = unhex(each["plaintext"])
        if each["name"] == "close":
            assert plaintext == CLOSE
            assert read_control(plaintext) is None
        elif each["name"].startswith("refresh"):
            peer = read_control(plaintext)
            assert str(peer) == each["subject"]
        else:
            routes = [route_of(each[name]) for name in ("onward_route", "return_route")]
            (message,), bad, _ = PlaintextReader(HERE, None).read([plaintext])
            assert bad == 0
            assert (message.onward_route, message.return_route) == tuple(routes)
            assert message.payload == unhex(each["payload"])
            assert encoded(message) == plaintext


def test_identities(vectors: Any) -> None:
    for each in vectors["identities"]:
        history = unhex(each["change_history"])
        peer = verify_history(history)
        assert str(peer) == each["identifier"]
        assert parse_identifier(each["identifier"]) == peer.identifier
        assert format_identifier(peer.identifier) == each["identifier"]
        assert (peer.valid_from, peer.valid_until) == (each["valid_from"], each["valid_until"])
        if each.get("reproduced_byte_for_byte"):
            signing_key = Ed25519PrivateKey.from_private_bytes(unhex(each["signing_secret"]))
            assert make_history(signing_key, peer.valid_from, peer.valid_until) == history


def test_a_rotated_identity(vectors: Any) -> None:
    each = vectors["identity_rotated"]
    peer = verify_history(unhex(each["change_history"]))
    assert str(peer) == each["identifier"]
    assert peer.latest_change.hex() == each["latest_change_hash"]
    latest = Ed25519PrivateKey.from_private_bytes(unhex(each["signing_secrets"][1]))
    assert peer.key.raw == latest.public_key().public_bytes_raw()


def test_an_identity_of_the_old_format_is_refused(vectors: Any) -> None:
    with pytest.raises(IdentityRefused) as refused:
        verify_history(unhex(vectors["identity_of_the_old_format"]["change_history"]))
    assert refused.value.reason == "old_format"


def test_points_of_low_order_are_refused(vectors: Any) -> None:
    for text in vectors["low_order_x25519"]["points"]:
        point = unhex(text)
        # As a responder, in message 1.
        responder = ChannelMachine(identity("responder"), trust_all)
        with pytest.raises(HandshakeFailed) as refused:
            responder.receive_1(point, ephemeral("responder"))
        assert (refused.value.reason, responder.state) == ("low_order_point", SecureChannelState.NEW)
        # As an initiator, in message 2.
        initiator = ChannelMachine(identity("initiator"), trust_all)
        initiator.begin(ephemeral("initiator"))
        with pytest.raises(HandshakeFailed) as refused:
            initiator.receive_2(point + bytes(400), 0)
        assert (refused.value.reason, initiator.state) == ("low_order_point", SecureChannelState.SENT_1)


@pytest.mark.parametrize("side", ["we_initiate", "they_initiate"])
def test_a_recorded_conversation(vectors: Any, side: str) -> None:
    """Every frame of ours is made again byte for byte, and every frame of the real peer is read."""
    recorded = vectors["recorded"]
    conversation, now_s, ours = recorded[side], recorded["now"], recorded["python"]
    parts = (ours[name] for name in ("signing_secret", "static_secret", "change_history", "attestation"))
    own = OwnIdentity(Secrets(*map(unhex, parts)), now_s)
    assert str(own) == ours["identifier"]
    assert own.proof.hex() == recorded["our_proof"]
    machine = ChannelMachine(own, trust_all)
    frames = [(who, *frame_of(unhex(frame))) for who, frame in conversation["frames"]]
    key = private(recorded["our_ephemeral_secret"])
    if side == "we_initiate":
        assert machine.begin(key) == frames[0][3]
        assert machine.receive_2(frames[1][3], now_s) == frames[2][3]
        sent_key = conversation["k2"]
    else:
        assert machine.receive_1(frames[0][3], key) == frames[1][3]
        machine.receive_3(frames[2][3], now_s)
        sent_key = conversation["k1"]
    assert machine.state is SecureChannelState.OPEN
    assert str(machine.peer) == recorded["elixir"]["identifier"]
    machine.check()
    # The keys of the recording open what we sent, which shows what to encrypt.
    spectator = Opener(unhex(sent_key))
    seal, open_, reader = machine.seal, machine.open, PlaintextReader(HERE, None)
    read, contents = 0, set[bytes]()
    for who, _onward, return_route, payload in frames[3:]:
        assert return_route == ()
        plaintext = spectator.open(payload) if who == "us" else open_(payload)
        if who == "us":
            assert seal(plaintext) == payload
        read += who != "us"
        if not plaintext.startswith(PAYLOAD_HEAD):
            # One of the conversations ends so.
            assert read_control(plaintext) is None
            continue
        (message,), bad, _ = reader.read([plaintext])
        assert bad == 0
        assert encoded(message) == plaintext
        contents.add(message.payload)
    assert read >= 2
    # Each message and its echo have a text of their own, so equal ciphertexts of one text would be noticed.
    assert len(contents) >= 2


def route_of(hops: list[list[Any]]) -> Route:
    return tuple(Address(kind, value.encode()) for kind, value in hops)


def encoded(message: Message) -> bytes:
    # The writer leaves out the first hop, which is the channel.
    through = Message((local("channel"), *message.onward_route), message.return_route, message.payload)
    (plaintext,), too_large = PlaintextWriter().write([through])
    assert not too_large
    return plaintext


def frame_of(frame: bytes) -> tuple[Route, Route, bytes]:
    body = frame[4:]
    assert int.from_bytes(frame[:4], "big") == len(body)
    onward_route, return_route, at = HEAD.decode_routes(body, 0, len(body))
    return onward_route, return_route, HEAD.decode_payload(body, 0, at, len(body))


def seal_many(key: bytes, count: int) -> list[bytes]:
    sealer = Sealer(key)
    return [sealer.seal(b"x") for _ in range(count)]


def is_opened(opener: Opener, data: bytes) -> bool:
    before = (opener.highest, opener._seen, opener._interval)
    try:
        opener.open(data)
    except CiphertextRefused:
        # A refused message changes nothing.
        assert before == (opener.highest, opener._seen, opener._interval)
        return False
    return True


def test_the_reader_of_histories_leaves_what_follows(vectors: Any) -> None:
    history = unhex(vectors["identities"][0]["change_history"])
    reader = CborReader(history + b"rest")
    assert read_history(reader).history == history
    assert reader.at == len(history)


def test_a_short_ciphertext_is_a_wrong_tag() -> None:
    with pytest.raises(InvalidTag):
        AESGCM(bytes(32)).decrypt(bytes(12), bytes(15), None)
