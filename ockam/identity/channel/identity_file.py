"""The file (JSON) with the secrets of an identity, which only its owner can read. Times: seconds since 1970.

The file also has the attestation, the signed statement that one of the keys is for channels. It is renewed in time."""

from __future__ import annotations

import os
import secrets as randomness
import stat
from pathlib import Path
from typing import Final

import msgspec

from ockam.files.durable_files import make_folder, sync, write_durably
from ockam.files.parsing import parse_json
from ockam.identity.channel.errors import IdentityFileError, IdentityRefused
from ockam.identity.channel.proof import OwnIdentity, Secrets, make_identity, must_renew, renewed

MODE: Final = 0o600
FORMAT: Final = 1


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    signing_secret: str
    static_secret: str
    change_history: str
    attestation: str


def create_identity(file: Path, now_s: int) -> OwnIdentity:
    """Creates an identity and stores it in `file`, which must not exist. Raises IdentityFileError."""
    identity = make_identity(randomness.token_bytes(32), randomness.token_bytes(32), now_s)
    try:
        make_folder(file.parent)
        # A link fails if the name exists, so no identity is ever overwritten, and readers never find half a file.
        part = file.with_name(f".{file.name}.{randomness.token_hex(4)}.new")
        write_durably(part, _encoded(identity.secrets), mode=MODE)
        try:
            os.link(part, file)
        finally:
            part.unlink()
        sync(file.parent)
    except FileExistsError as error:
        raise IdentityFileError("exists", f"{file} exists already; `identity show` shows whose it is") from error
    except OSError as error:
        raise IdentityFileError("unwritable", f"cannot write {file}: {error.strerror or error}") from error
    return identity


def load_identity(file: Path, now_s: int) -> OwnIdentity:
    """Reads an identity, and renews its attestation if that ends soon. Raises IdentityFileError."""
    stored = _read(file)
    try:
        if must_renew(stored, now_s):
            stored = _renew(file, stored, now_s)
        return OwnIdentity(stored, now_s)
    except IdentityRefused as error:
        raise IdentityFileError("undecodable", f"the identity in {file} cannot be used: {error}") from error


def ensure_identity(file: Path, now_s: int) -> OwnIdentity:
    """Returns the identity in a file, made if it is missing. now_s: seconds since 1970. Raises IdentityFileError."""
    if file.exists():
        return load_identity(file, now_s)
    try:
        return create_identity(file, now_s)
    except IdentityFileError as error:
        # Two processes may begin at the same moment; the second one takes the identity of the first.
        if error.reason != "exists":
            raise
        return load_identity(file, now_s)


class IdentityHolder:
    """The identity of a process that runs for long: made when it is first needed, and renewed in time.

    Invariant: the identifier never changes, also if the file is replaced while the process runs."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity: OwnIdentity | None = None

    def get(self, now_s: int) -> OwnIdentity:
        """Returns the identity. Raises IdentityFileError."""
        if self._identity is None:
            self._identity = ensure_identity(self._file, now_s)
        elif must_renew(self._identity.secrets, now_s):
            self._identity = OwnIdentity(_renew(self._file, self._identity.secrets, now_s), now_s)
        return self._identity


def _renew(file: Path, stored: Secrets, now_s: int) -> Secrets:
    try:
        stored = renewed(stored, now_s)
        write_durably(file, _encoded(stored), mode=MODE)
    except IdentityRefused as error:
        raise IdentityFileError("undecodable", f"the identity in {file} cannot be renewed: {error}") from error
    except OSError as error:
        raise IdentityFileError("unwritable", f"cannot renew {file}: {error.strerror or error}") from error
    return stored


def _read(file: Path) -> Secrets:
    try:
        with file.open("rb") as reading:
            mode = stat.S_IMODE(os.fstat(reading.fileno()).st_mode)
            content = reading.read()
    except FileNotFoundError as error:
        raise IdentityFileError("missing", f"there is no identity in {file}; `identity create` makes one") from error
    except OSError as error:
        raise IdentityFileError("unreadable", f"cannot read {file}: {error.strerror or error}") from error
    if mode & 0o077:
        text = f"others may read {file} (mode {mode:o}); `chmod 600` it, or make a new identity if they have"
        raise IdentityFileError("permissions", text)
    try:
        stored = parse_json(content, _Stored)
        if stored.format != FORMAT:
            raise ValueError(f"format {stored.format} is not known")
        parts = stored.signing_secret, stored.static_secret, stored.change_history, stored.attestation
        return Secrets(*map(bytes.fromhex, parts))
    except ValueError:
        # The cause is left out, because its text could quote a secret.
        raise IdentityFileError("undecodable", f"{file} is not the file of an identity, or is damaged") from None


def _encoded(secrets: Secrets) -> bytes:
    parts = (secrets.signing_secret, secrets.static_secret, secrets.history, secrets.attestation)
    stored = _Stored(FORMAT, *(part.hex() for part in parts))
    return msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"
