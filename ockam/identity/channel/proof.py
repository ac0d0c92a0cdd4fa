"""The proof of an identity: its history, and the attestation that a Noise static key belongs to it.
OwnIdentity: an identity whose secret keys this process has. The module reads no files. Times: seconds since 1970.

    proof             83 ChangeHistory Attestation array of credentials (80)
    Attestation       82 data signature
    AttestationData   85 subject (5820 identifier) latest change (5820 hash) key created_at expires_at
    key               82 00 81 5820 X25519

The numbers are bytes of CBOR in hexadecimal: 82, 83 and 85 begin arrays of 2, 3 and 5 items.

A proof is public. It proves who is on the other side only together with the handshake, in which that side has shown
that it owns the attested key. Credentials are not supported: their shape is checked, and their content ignored."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.identity.channel.cbor import CborError, CborReader, write_array, write_bytes, write_unsigned
from ockam.identity.channel.errors import IdentityRefused
from ockam.identity.channel.identity_history import (
    ATTESTATION,
    CHANGES_MAX,
    ED25519,
    HASH_BYTES,
    PeerIdentity,
    Signature,
    format_identifier,
    make_history,
    read_signature,
    read_versioned,
    refuse_undecodable,
    sign_data,
    verify_history,
    verify_signature,
    write_variant,
)
from ockam.identity.channel.noise import KEY_BYTES, public_bytes

CLOCK_SKEW_S = 60
"""How far in the future an attestation may begin. The other implementations have the same constant."""
CREDENTIALS_MAX = 4
CHANNEL_KEY = 0
"""The variant of a key that is attested for channels. Variant 1 is for signing credentials."""
DAY_S = 86_400
IDENTITY_S = 10 * 365 * DAY_S
"""How long a new identity is valid, as in the other implementations of Ockam."""
ATTESTATION_S = 5 * 365 * DAY_S
RENEW_BEFORE_S = 30 * DAY_S
BACKDATED_S = 300
"""A new identity or attestation begins this many seconds in the past, for peers whose clock is behind."""


def read_proof(proof: bytes, remote_static: bytes, now_s: int) -> tuple[PeerIdentity, int]:
    """Returns the identity that owns the static key of a handshake (32 bytes), and when its attestation ends, in
    seconds since 1970 as `now_s` is. Raises IdentityRefused."""
    try:
        reader = CborReader(proof)
        reader.array(3)
        start = reader.at
        _skip_history(reader)
        # The history is verified once for the same bytes. The times and the key below are checked each time.
        identity = verify_history(reader.since(start))
        expires_at = _verify_attestation(reader, identity, remote_static, now_s)
        skip_credentials(reader)
        reader.finish()
    except CborError as error:
        refuse_undecodable(error)
    return identity, expires_at


def _skip_history(reader: CborReader) -> None:
    for _ in range(reader.array_of(0, CHANGES_MAX)):
        has_previous = reader.array_of(2, 3) == 3
        reader.byte_string()
        for _ in range(1 + has_previous):
            read_signature(reader)


class _Attestation(NamedTuple):
    subject: bytes
    latest_change: bytes
    key: bytes
    created_at: int
    expires_at: int
    digest: bytes
    signature: Signature


def _read_attestation(reader: CborReader) -> _Attestation:
    reader.array(2)
    data = reader.byte_string()
    signature = read_signature(reader)
    content = CborReader(read_versioned(data, ATTESTATION))
    content.array(5)
    subject, latest_change = content.byte_string(HASH_BYTES), content.byte_string(HASH_BYTES)
    content.array(2)
    variant = content.unsigned()
    content.array(1)
    if variant != CHANNEL_KEY:
        raise IdentityRefused("wrong_key", "the attested key is not for channels")
    key = content.byte_string(KEY_BYTES)
    created_at, expires_at = content.unsigned(), content.unsigned()
    content.finish()
    return _Attestation(subject, latest_change, key, created_at, expires_at, sha256(data).digest(), signature)


def _verify_attestation(reader: CborReader, identity: PeerIdentity, remote_static: bytes, now_s: int) -> int:
    """Verifies an attestation. Returns its end, in seconds since 1970. Raises IdentityRefused and CborError."""
    # First the signed content is read. It must be of this identity, and of the key of this handshake.
    subject, latest_change, key, created_at, expires_at, digest, signature = _read_attestation(reader)
    if (subject, latest_change) != (identity.identifier, identity.latest_change):
        raise IdentityRefused("wrong_subject", f"the attestation is not of {identity}, or not by its latest key")
    # Without this comparison, anybody could send the public proof of somebody else.
    if key != remote_static:
        raise IdentityRefused("wrong_key", f"the proof of {identity} was sent by the owner of another key")
    # The identity itself must have signed the attestation, with its present key.
    verify_signature(identity.key, signature, digest)
    # The times come last: a wrong clock is reported only for a proof that is right otherwise.
    if created_at < identity.valid_from or expires_at > identity.valid_until:
        raise IdentityRefused("outlives_key", f"the attestation of {identity} is not within the time of its key")
    if created_at > now_s + CLOCK_SKEW_S:
        raise IdentityRefused(
            "not_yet_valid", f"the attestation of {identity} begins in the future; compare the clocks"
        )
    if expires_at < now_s:
        raise IdentityRefused("expired", f"the attestation of {identity} has expired; its owner must renew it")
    return expires_at


def skip_credentials(reader: CborReader) -> None:
    for _ in range(reader.array_of(0, CREDENTIALS_MAX)):
        reader.array(2)
        for _ in ("the credential", "the attestation of the issuer's key"):
            reader.array(2)
            reader.byte_string()
            read_signature(reader)


def make_attestation(
    signing_key: Ed25519PrivateKey, identity: PeerIdentity, static_public: bytes, created_at: int, expires_at: int
) -> bytes:
    """Returns the attestation that `static_public` is the channel key of `identity`. Times are seconds since 1970."""
    content = write_array(
        write_bytes(identity.identifier),
        write_bytes(identity.latest_change),
        write_variant(static_public),
        write_unsigned(created_at),
        write_unsigned(expires_at),
    )
    return sign_data(signing_key, ATTESTATION, content)


def make_proof(history: bytes, attestation: bytes) -> bytes:
    return write_array(history, attestation, write_array())


class Secrets(msgspec.Struct, frozen=True):
    """The stored parts of an identity. They are secret, and are never logged.

    signing_secret: the Ed25519 key. static_secret: the X25519 key. history: the signed public key with its times.
    attestation: the signed statement that the X25519 key is the channel key of this identity (see `renewed`)."""

    signing_secret: bytes
    static_secret: bytes
    history: bytes
    attestation: bytes

    def __repr__(self) -> str:
        return "Secrets(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return []


class OwnIdentity:
    """An identity of this process. Its texts show no secrets. Raises IdentityRefused if its parts do not fit together.

    secrets: its stored parts. peer: the identity as other sides see it.
    static: the X25519 key of all handshakes. proof: the payload of handshake messages that proves this identity."""

    __slots__ = ("peer", "proof", "secrets", "static")

    def __init__(self, secrets: Secrets, now_s: int) -> None:
        self.secrets = secrets
        self.peer = verify_history(secrets.history)
        try:
            self.static = X25519PrivateKey.from_private_bytes(secrets.static_secret)
            signing_key = Ed25519PrivateKey.from_private_bytes(secrets.signing_secret)
        except ValueError as error:
            raise IdentityRefused("undecodable", "a secret of the identity does not have 32 bytes") from error
        if self.peer.key != (ED25519, signing_key.public_key().public_bytes_raw()):
            raise IdentityRefused("wrong_key", "the signing secret does not belong to the identity's history")
        self.proof = make_proof(secrets.history, secrets.attestation)
        read_proof(self.proof, public_bytes(self.static), now_s)

    @property
    def identifier(self) -> bytes:
        return self.peer.identifier

    def __str__(self) -> str:
        return format_identifier(self.peer.identifier)

    def __repr__(self) -> str:
        return f"OwnIdentity({self})"


def make_identity(signing_secret: bytes, static_secret: bytes, now_s: int) -> OwnIdentity:
    signing_key = Ed25519PrivateKey.from_private_bytes(signing_secret)
    begin = now_s - BACKDATED_S
    history = make_history(signing_key, begin, begin + IDENTITY_S)
    return OwnIdentity(renewed(Secrets(signing_secret, static_secret, history, b""), now_s), now_s)


def renewed(secrets: Secrets, now_s: int) -> Secrets:
    """Returns the secrets with a new attestation of the same channel key. Raises IdentityRefused."""
    peer = verify_history(secrets.history)
    created_at = max(now_s - BACKDATED_S, peer.valid_from)
    expires_at = min(created_at + ATTESTATION_S, peer.valid_until)
    if expires_at <= now_s:
        raise IdentityRefused("expired", f"the identity {peer} has ended; make a new one and have it trusted")
    signing_key = Ed25519PrivateKey.from_private_bytes(secrets.signing_secret)
    static_public = public_bytes(X25519PrivateKey.from_private_bytes(secrets.static_secret))
    attestation = make_attestation(signing_key, peer, static_public, created_at, expires_at)
    return msgspec.structs.replace(secrets, attestation=attestation)


def must_renew(secrets: Secrets, now_s: int) -> bool:
    peer = verify_history(secrets.history)
    try:
        expires_at = _read_attestation(CborReader(secrets.attestation)).expires_at
    except CborError as error:
        refuse_undecodable(error)
    return expires_at < now_s + RENEW_BEFORE_S and expires_at < min(now_s + ATTESTATION_S, peer.valid_until)
