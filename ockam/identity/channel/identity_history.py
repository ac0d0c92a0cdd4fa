"""Identities: the history of an identity's signing keys, its verification, and its identifier. No clock, no files.

An identity is a list of changes. Each change has a new signing key and is signed by this key; every change but the
first is also signed by the key of the change before. The identifier is the hash of the first change. So nobody can take
over an identifier without its signing key. In this table, the numbers are bytes of CBOR in hexadecimal:

    ChangeHistory   array of Change
    Change          82 data signature        or 83 data signature previous_signature
    data            byte string of: 83 01 TYPE bytes     (TYPE 1: a change; 2: an attestation of a channel key)
    ChangeData      85 previous_change (f6, or its hash) public_key revoke valid_from valid_until
    public_key      82 00 81 5820 Ed25519    or 82 01 81 5841 P-256, uncompressed
    signature       82 00 81 5840 Ed25519    or 82 01 81 5840 P-256, r and s

Every signature is over the SHA-256 of `data`, the message of the signature scheme (facts/secure_channel.md §4)."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from ockam.identity.channel.cbor import (
    CborError,
    CborReader,
    write_array,
    write_boolean,
    write_bytes,
    write_null,
    write_unsigned,
)
from ockam.identity.channel.errors import IdentityRefused, InvalidIdentifier

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CHANGES_MAX = 16
"""The most changes of a history: each has up to two signatures to verify."""
VERIFIED_KEPT = 1_000
"""How many verified histories are remembered. The times and the channel key of a proof are checked each time."""
CHANGE, ATTESTATION = 1, 2
DATA_VERSION = 1
HASH_BYTES, SIGNATURE_BYTES = 32, 64
ED25519, P256 = 0, 1
_KEY_BYTES = {ED25519: 32, P256: 65}
_IDENTIFIER = re.compile(r"I[0-9a-f]{64}")


class PublicKey(NamedTuple):
    variant: int
    raw: bytes


class Signature(NamedTuple):
    variant: int
    raw: bytes


class PeerIdentity(msgspec.Struct, frozen=True):
    """A verified identity. It says nothing about who is on the other side of a channel; a proof does.

    identifier: 32 bytes. changes: the hashes of all changes, the oldest first.
    key: the present signing key, valid from `valid_from` to `valid_until`, in seconds since 1970.
    history: the bytes that were verified."""

    identifier: bytes
    changes: tuple[bytes, ...]
    key: PublicKey
    valid_from: int
    valid_until: int
    history: bytes

    @property
    def latest_change(self) -> bytes:
        return self.changes[-1]

    def __str__(self) -> str:
        return format_identifier(self.identifier)


def format_identifier(identifier: bytes) -> str:
    """Returns the text form of an identifier: `I` and 64 hexadecimal digits."""
    return f"I{identifier.hex()}"


def parse_identifier(text: str) -> bytes:
    """Returns the 32 bytes of an identifier. Raises InvalidIdentifier."""
    if not _IDENTIFIER.fullmatch(text):
        raise InvalidIdentifier(
            "identifier", f"{text[:80]!r} is no identifier: it is I and 64 lower-case hexadecimal digits"
        )
    return bytes.fromhex(text[1:])


@lru_cache(maxsize=VERIFIED_KEPT)
def verify_history(history: bytes) -> PeerIdentity:
    """Returns the identity whose whole history this is. Raises IdentityRefused."""
    try:
        reader = CborReader(history)
        identity = read_history(reader)
        reader.finish()
    except CborError as error:
        refuse_undecodable(error)
    return identity


def read_history(reader: CborReader) -> PeerIdentity:
    """Reads and verifies a history inside a larger message. Raises IdentityRefused and CborError."""
    start = reader.at
    count = reader.array_of(0, CHANGES_MAX)
    if not count:
        raise IdentityRefused("changes", "an identity without changes")
    changes: list[bytes] = []
    before_hash = b""
    before: tuple[PublicKey, int] | None = None
    valid_until = 0
    for _ in range(count):
        # Each change has a signature by its own key and, from the second change on, one by the key before.
        has_previous = reader.array_of(2, 3) == 3
        data = reader.byte_string()
        signature = read_signature(reader)
        previous_signature = read_signature(reader) if has_previous else None
        # The next change names this one by its hash. The hash of the first change is the identifier.
        change_hash = sha256(data).digest()
        key, valid_from, valid_until = _read_change(data, before_hash)
        verify_signature(key, signature, change_hash)
        # A later change needs the signature of the key before, and the first change cannot have one.
        if (before is None) != (previous_signature is None):
            raise IdentityRefused("changes", "a change has no signature of the key before, or one too many")
        if before is not None and previous_signature is not None:
            verify_signature(before[0], previous_signature, change_hash)
            if valid_from < before[1]:
                raise IdentityRefused("changes", "a change is valid earlier than the change before")
        changes.append(change_hash)
        before, before_hash = (key, valid_from), change_hash
    assert before is not None
    return PeerIdentity(changes[0], tuple(changes), before[0], before[1], valid_until, reader.since(start))


def _read_change(data: bytes, before_hash: bytes) -> tuple[PublicKey, int, int]:
    """Returns the key of a change and the time for which it is valid. before_hash: empty for the first change."""
    reader = CborReader(read_versioned(data, CHANGE))
    reader.array(5)
    named = b"" if reader.null() else reader.byte_string(HASH_BYTES)
    if named != before_hash:
        raise IdentityRefused("changes", "a change does not name the change before")
    variant = _read_variant(reader)
    key = PublicKey(variant, reader.byte_string(_KEY_BYTES[variant]))
    # Whether older keys are revoked has no meaning here: only the latest key is used.
    reader.boolean()
    valid_from, valid_until = reader.unsigned(), reader.unsigned()
    reader.finish()
    return key, valid_from, valid_until


def read_versioned(data: bytes, kind: int) -> bytes:
    """Returns the content of signed data, which must have the given type. Raises IdentityRefused and CborError."""
    reader = CborReader(data)
    reader.array(3)
    version, found = reader.unsigned(), reader.unsigned()
    if (version, found) != (DATA_VERSION, kind):
        raise IdentityRefused("version", f"signed data of version {version} and type {found}; {kind} is expected")
    content = reader.byte_string()
    reader.finish()
    return content


def read_signature(reader: CborReader) -> Signature:
    return Signature(_read_variant(reader), reader.byte_string(SIGNATURE_BYTES))


def _read_variant(reader: CborReader) -> int:
    reader.array(2)
    variant = reader.unsigned()
    if variant not in _KEY_BYTES:
        raise CborError(f"a key or signature of the unknown kind {variant}")
    reader.array(1)
    return variant


def verify_signature(key: PublicKey, signature: Signature, digest: bytes) -> None:
    """Raises IdentityRefused unless this is a signature by `key` of the SHA-256 `digest`."""
    # Every node imports this module, but only a node with secure channels needs the 8 MB of cryptography.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if key.variant != signature.variant:
        raise IdentityRefused("signature", "a signature is of another kind than the key")
    try:
        if key.variant == ED25519:
            Ed25519PublicKey.from_public_bytes(key.raw).verify(signature.raw, digest)
        else:
            point = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), key.raw)
            r, s = (int.from_bytes(half, "big") for half in (signature.raw[:32], signature.raw[32:]))
            # ECDSA hashes its message again, so the data are hashed twice.
            point.verify(encode_dss_signature(r, s), digest, ECDSA(SHA256()))
    except (InvalidSignature, ValueError) as error:
        raise IdentityRefused("signature", "a signature of the identity is not valid") from error


def refuse_undecodable(error: CborError) -> NoReturn:
    if error.is_map:
        text = "an identity in the format from before November 2023, which nobody supports any more"
        raise IdentityRefused("old_format", text) from error
    raise IdentityRefused("undecodable", f"not an identity: {error}") from error


def make_history(signing_key: Ed25519PrivateKey, valid_from: int, valid_until: int) -> bytes:
    """Returns the history of a new identity with one change. The times are in seconds since 1970."""
    key = write_variant(signing_key.public_key().public_bytes_raw())
    change = write_array(
        write_null(), key, write_boolean(False), write_unsigned(valid_from), write_unsigned(valid_until)
    )
    return write_array(sign_data(signing_key, CHANGE, change))


def sign_data(signing_key: Ed25519PrivateKey, kind: int, content: bytes) -> bytes:
    """Returns a CBOR array of the signed data (version, type `kind` and content) and the signature."""
    data = write_array(write_unsigned(DATA_VERSION), write_unsigned(kind), write_bytes(content))
    signature = signing_key.sign(sha256(data).digest())
    return write_array(write_bytes(data), write_variant(signature))


def write_variant(raw: bytes) -> bytes:
    return write_array(write_unsigned(0), write_array(write_bytes(raw)))
