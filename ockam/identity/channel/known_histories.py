"""KnownHistories: the identities that have replaced a signing key, so that their old keys are not accepted again.

A history with fewer changes is valid by itself, so a thief of a replaced key could still prove the identity with it. A
node therefore retains the longest history of each identity with several keys. Each line of the file is an identifier
and the hashes of all its changes, in hexadecimal."""

from __future__ import annotations

from pathlib import Path

import structlog

from ockam.files.durable_files import PRIVATE_MODE, make_folder, write_durably
from ockam.files.sealed_file import with_seal, without_seal
from ockam.identity.channel.errors import IdentityFileError, InvalidIdentifier
from ockam.identity.channel.identity_history import (
    CHANGES_MAX,
    HASH_BYTES,
    PeerIdentity,
    format_identifier,
    parse_identifier,
)

KNOWN_MAX = 10_000
"""The most identities that are retained. The one that was added first is forgotten first."""
HEADING = "# Identities that have replaced a key: an identifier and the hashes of its changes in each line.\n"

logger = structlog.get_logger(__name__)


class KnownHistories:
    """The longest history that each identity has shown. file: keeps the histories over restarts; None: no file does.
    Raises IdentityFileError."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known = {} if file is None else _load(file)

    def refusal(self, peer: PeerIdentity) -> str | None:
        """Returns None if this history continues the known one, else why the identity is refused."""
        known = self._known.get(peer.identifier, ())
        if peer.changes[: len(known)] == known:
            return None
        if known[: len(peer.changes)] == peer.changes:
            return f"{peer} has replaced the key that was used; only its newest key is accepted"
        return f"{peer} has shown another history before; two owners of a key of it have replaced this key"

    def learn(self, peer: PeerIdentity) -> bool:
        """Retains the history of an accepted identity. Returns whether it has more changes than before."""
        known = self._known.get(peer.identifier, peer.changes[:1])
        if len(peer.changes) <= len(known):
            return False
        self._known[peer.identifier] = peer.changes
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        try:
            self._save()
        except OSError as error:
            # The identity has proved its new key, so it is accepted. A restart of the node would forget the change.
            logger.error("known_identities_not_written", file=str(self._file), reason=error.strerror or str(error))
        return True

    def _save(self) -> None:
        if self._file is None:
            return
        lines = [
            " ".join((format_identifier(identifier), *(each.hex() for each in changes)))
            for identifier, changes in self._known.items()
        ]
        make_folder(self._file.parent)
        content = with_seal((HEADING + "".join(f"{line}\n" for line in lines)).encode())
        write_durably(self._file, content, mode=PRIVATE_MODE)


def _load(file: Path) -> dict[bytes, tuple[bytes, ...]]:
    try:
        lines = without_seal(file.read_bytes()).decode().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise IdentityFileError("unreadable", f"cannot read {file}: {error}") from error
    known = {}
    # A line that cannot be read must not be skipped: the old keys of its identity would be accepted again.
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        try:
            identifier, *hashes = line.split()
            changes = tuple(map(bytes.fromhex, hashes))
            if not 0 < len(changes) <= CHANGES_MAX or any(len(each) != HASH_BYTES for each in changes):
                raise ValueError(f"{len(changes)} hashes, of {HASH_BYTES} bytes each")
            known[parse_identifier(identifier)] = changes
        except (InvalidIdentifier, ValueError) as error:
            text = f"{file}, line {number}: {error}; restore the file, since without it old keys are accepted again"
            raise IdentityFileError("undecodable", text) from error
    return known
