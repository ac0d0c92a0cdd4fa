"""Goal: a proof that was changed, is somebody else's, or has expired is refused with a documented reason.

Method: every single bit of a proof; proofs that are put together from valid parts of others; a clock that is a number.
"""

from __future__ import annotations

from collections import Counter

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ockam.identity.channel.errors import IdentityRefused, InvalidIdentifier
from ockam.identity.channel.identity_history import CHANGES_MAX, parse_identifier, verify_history
from ockam.identity.channel.noise import public_bytes
from ockam.identity.channel.proof import (
    ATTESTATION_S,
    BACKDATED_S,
    CLOCK_SKEW_S,
    IDENTITY_S,
    OwnIdentity,
    make_attestation,
    make_proof,
    read_proof,
)
from tests.ockam.identity.channel.rotations import KEYS, changes
from tests.ockam.identity.channel.samples import NOW_S, identity, kept

ALICE, BOB = identity("alice"), identity("bob")
REASONS = {
    "undecodable",
    "old_format",
    "version",
    "changes",
    "signature",
    "wrong_subject",
    "wrong_key",
    "not_yet_valid",
    "expired",
    "outlives_key",
}
"""What `IdentityRefused` documents."""


def static_of(own: OwnIdentity) -> bytes:
    return public_bytes(own.static)


def signing_key(own: OwnIdentity) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(own.secrets.signing_secret)


def reason_of(proof: bytes, static: bytes = static_of(ALICE), now_s: int = NOW_S) -> str:
    with pytest.raises(IdentityRefused) as refused:
        read_proof(proof, static, now_s)
    return refused.value.reason


def test_a_right_proof_is_accepted() -> None:
    assert read_proof(ALICE.proof, static_of(ALICE), NOW_S)[0].identifier == ALICE.identifier
    # The proof of the documented size: a history of one change, an attestation, no credentials.
    assert len(ALICE.proof) == 323


def test_every_single_bit_of_a_proof_counts() -> None:
    """Not one of the 2584 changed proofs is accepted, and each is refused by the documented error."""
    reasons: Counter[str] = Counter()
    for place in range(8 * len(ALICE.proof)):
        changed = bytearray(ALICE.proof)
        changed[place >> 3] ^= 1 << (place & 7)
        reasons[reason_of(bytes(changed))] += 1
    assert reasons.total() == 8 * len(ALICE.proof)
    assert set(reasons) <= REASONS
    assert reasons["signature"] > 1000


def test_every_single_bit_of_a_real_p256_identity_counts() -> None:
    (each,) = (each for each in kept()["identities"] if each["key"] == "P-256")
    history = bytes.fromhex(each["change_history"])
    assert str(verify_history(history)) == each["identifier"]
    for place in range(8 * len(history)):
        changed = bytearray(history)
        changed[place >> 3] ^= 1 << (place & 7)
        with pytest.raises(IdentityRefused):
            verify_history(bytes(changed))


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_by_the_documented_error(data: bytes) -> None:
    assert reason_of(data) in REASONS


@given(st.integers(0, 322))
def test_a_cut_proof_is_refused(size: int) -> None:
    assert reason_of(ALICE.proof[:size]) == "undecodable"


def test_more_bytes_are_refused() -> None:
    assert reason_of(ALICE.proof + b"\0") == "undecodable"


def test_the_proof_of_somebody_else_is_refused() -> None:
    """The proof is public, so everybody has it: only the key of the handshake tells who is there."""
    assert reason_of(ALICE.proof, static_of(BOB)) == "wrong_key"


def test_the_attestation_of_somebody_else_is_refused() -> None:
    """Bob's key, attested by Bob, beside Alice's history."""
    mixed = make_proof(ALICE.secrets.history, BOB.secrets.attestation)
    assert reason_of(mixed, static_of(BOB)) == "wrong_subject"


def test_an_attestation_with_the_right_subject_by_the_wrong_key_is_refused() -> None:
    forged = make_attestation(signing_key(BOB), ALICE.peer, static_of(BOB), NOW_S - 10, NOW_S + 10)
    assert reason_of(make_proof(ALICE.secrets.history, forged), static_of(BOB)) == "signature"


def test_an_attestation_of_an_older_change_is_refused() -> None:
    outdated = make_attestation(
        signing_key(ALICE),
        verify_history(ALICE.secrets.history).__class__(
            ALICE.identifier, (bytes(32),), ALICE.peer.key, 0, 1 << 40, ALICE.secrets.history
        ),
        static_of(ALICE),
        NOW_S - 10,
        NOW_S + 10,
    )
    assert reason_of(make_proof(ALICE.secrets.history, outdated)) == "wrong_subject"


@pytest.mark.parametrize(
    ("now_s", "reason"),
    [
        (NOW_S - BACKDATED_S - CLOCK_SKEW_S - 1, "not_yet_valid"),
        (NOW_S - BACKDATED_S + ATTESTATION_S + 1, "expired"),
        (NOW_S + IDENTITY_S, "expired"),
    ],
)
def test_the_time_of_a_proof(now_s: int, reason: str) -> None:
    assert reason_of(ALICE.proof, now_s=now_s) == reason


@pytest.mark.parametrize("now_s", [NOW_S - BACKDATED_S - CLOCK_SKEW_S, NOW_S - BACKDATED_S + ATTESTATION_S])
def test_the_last_seconds_of_a_proof(now_s: int) -> None:
    read_proof(ALICE.proof, static_of(ALICE), now_s)


@pytest.mark.parametrize(
    ("created_at", "expires_at"),
    [(ALICE.peer.valid_from - 1, NOW_S + 10), (NOW_S, ALICE.peer.valid_until + 1)],
)
def test_an_attestation_beyond_its_key_is_refused(created_at: int, expires_at: int) -> None:
    attestation = make_attestation(signing_key(ALICE), ALICE.peer, static_of(ALICE), created_at, expires_at)
    assert reason_of(make_proof(ALICE.secrets.history, attestation)) == "outlives_key"


def test_a_history_of_several_changes() -> None:
    peer = verify_history(changes(*KEYS[:3]))
    assert peer.identifier == verify_history(changes(KEYS[0])).identifier
    assert peer.key.raw == KEYS[2].public_key().public_bytes_raw()


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        ("names another change", "changes"),
        ("not signed by the key before", "changes"),
        ("signed by its own key twice", "signature"),
    ],
)
def test_a_change_that_does_not_follow_is_refused(breaks: str, reason: str) -> None:
    with pytest.raises(IdentityRefused) as refused:
        verify_history(changes(*KEYS[:3], breaks=breaks))
    assert refused.value.reason == reason


def test_a_change_that_is_valid_earlier_is_refused() -> None:
    with pytest.raises(IdentityRefused, match="earlier"):
        verify_history(changes(*KEYS[:2], valid_from=(NOW_S, NOW_S - 1)))


def test_the_bound_of_changes() -> None:
    verify_history(changes(*KEYS[:CHANGES_MAX]))
    with pytest.raises(IdentityRefused, match="0 to 16"):
        verify_history(changes(*KEYS))


def test_no_changes_are_no_identity() -> None:
    with pytest.raises(IdentityRefused, match="without changes"):
        verify_history(b"\x80")


def test_the_credential_of_a_real_message_is_ignored() -> None:
    """A proof with the credential that Rust encoded is accepted as one without: credentials give no rights here."""
    (refresh,) = (each for each in kept()["messages"] if each["name"].startswith("refresh"))
    plaintext = bytes.fromhex(refresh["plaintext"])
    history_end = 5 + len(verify_history(plaintext[5 : 5 + 128]).history)
    credentials = plaintext[history_end:-1]
    assert credentials[0] == 0x81
    proof = ALICE.proof[:-1] + credentials
    assert read_proof(proof, static_of(ALICE), NOW_S)[0].identifier == ALICE.identifier
    too_many = ALICE.proof[:-1] + b"\x85" + 5 * credentials[1:]
    assert reason_of(too_many) == "undecodable"


@pytest.mark.parametrize("text", ["", "I", "I" + "0" * 63, "I" + "0" * 65, "I" + "A" * 64, "i" + "0" * 64, "0" * 65])
def test_a_text_that_is_no_identifier(text: str) -> None:
    with pytest.raises(InvalidIdentifier, match="64 lower-case"):
        parse_identifier(text)
