"""TrustList: the identifiers that are allowed to open channels, from the settings and from a file that commands change.
KnownHistories: the identities that have replaced a signing key, so that their old keys are not accepted again.

A line of the file of a TrustList is an identifier and, after a space, a name for people; `#` begins a comment. A line
of the file of KnownHistories is an identifier and the hashes of all its changes, in hexadecimal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from ockam.files.durable_files import (
    PRIVATE_MODE,
    lock_folder,
    make_folder,
    state_of,
    with_seal,
    without_seal,
    write_durably,
)
from ockam.identity.channel.errors import IdentityFileError, InvalidIdentifier
from ockam.identity.channel.identity_history import (
    CHANGES_MAX,
    HASH_BYTES,
    PeerIdentity,
    format_identifier,
    parse_identifier,
)

HEADING = "# Identities that may open secure channels to this node: an identifier and a name in each line.\n"
KNOWN_HEADING = "# Identities that have replaced a key: an identifier and the hashes of its changes in each line.\n"
KNOWN_MAX = 10_000
"""The most identities whose histories are retained. The one that was added first is forgotten first."""

logger = structlog.get_logger(__name__)


def load_trusted(file: Path) -> dict[bytes, str]:
    """Returns the names of the trusted identities by identifier; none without a file. Raises IdentityFileError."""
    trusted = {}
    for number, line in _read_lines(file):
        text, _, name = line.partition(" ")
        try:
            trusted[parse_identifier(text)] = name.strip()
        except InvalidIdentifier as error:
            raise IdentityFileError("undecodable", f"{file}, line {number}: {error}") from error
    return trusted


def save_trusted(file: Path, trusted: Mapping[bytes, str]) -> None:
    lines = [
        f"{format_identifier(identifier)} {' '.join(name.split())}".rstrip() for identifier, name in trusted.items()
    ]
    try:
        _write_lines(file, HEADING, lines)
    except OSError as error:
        raise IdentityFileError("unwritable", f"cannot write {file}: {error.strerror or error}") from error


def change_trusted(file: Path, change: Callable[[dict[bytes, str]], Mapping[bytes, str]]) -> dict[bytes, str]:
    """Replaces the file by the result of `change`. Returns the identities from before. Raises IdentityFileError."""
    if not file.parent.exists() and not change({}):
        return {}
    try:
        # A second command at the same time waits, so that neither undoes the change of the other.
        make_folder(file.parent)
        with lock_folder(file.parent):
            before = load_trusted(file)
            changed = change(dict(before))
            if changed != before:
                save_trusted(file, changed)
            return before
    except OSError as error:
        raise IdentityFileError("unwritable", f"cannot write {file}: {error.strerror or error}") from error


class TrustList:
    """The trusted identifiers of a node. A file that cannot be read trusts nobody. Raises InvalidIdentifier.

    anyone: whether every identity is accepted. lost: the identifiers that have left this list since the start."""

    def __init__(self, file: Path | None, identifiers: Iterable[str] = (), *, anyone: bool = False) -> None:
        self._file = file
        self._always = dict.fromkeys(map(parse_identifier, identifiers), "")
        self._from_file: dict[bytes, str] = {}
        self._stamp: tuple[int, ...] | None = None
        self._ever: set[bytes] = set()
        self.lost: frozenset[str] = frozenset()
        self.anyone = anyone
        self.refresh()

    def __str__(self) -> str:
        return "every identity trusted" if self.anyone else f"{len(self._always | self._from_file)} trusted"

    @property
    def is_closed(self) -> bool:
        return not (self.anyone or self._always or self._from_file)

    def refresh(self) -> bool:
        """Reads the file again if it, its owner or its permissions have changed. Returns whether it did."""
        if self._file is None:
            return False
        stamp = state_of(self._file)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._from_file = load_trusted(self._file)
        except IdentityFileError as error:
            self._from_file = {}
            logger.error("trust_file_unusable", reason=str(error))
        trusted = {*self._always, *self._from_file}
        self._ever |= trusted
        self.lost = frozenset() if self.anyone else frozenset(map(format_identifier, self._ever - trusted))
        return True

    def replace_identifiers(self, identifiers: Iterable[str]) -> None:
        """Replaces the identifiers of the settings. The next `refresh` returns True. Raises InvalidIdentifier."""
        self._always = dict.fromkeys(map(parse_identifier, identifiers), "")
        self._stamp = None

    def is_named(self, peer: PeerIdentity) -> bool:
        return peer.identifier in self._always or peer.identifier in self._from_file

    def refusal(self, peer: PeerIdentity) -> str | None:
        """Returns None if this identity is trusted, else a text that says how to trust it."""
        if self.anyone or self.is_named(peer):
            return None
        return f"{peer} is not trusted here; `stream-node trust add {peer}` on this node would trust it"


class KnownHistories:
    """The longest history that each identity with several keys has shown. A history with fewer changes is valid by
    itself, so a thief of a replaced key could still prove the identity with it. Raises IdentityFileError.

    file: keeps the histories over restarts; None: a restart loses them."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known = {} if file is None else _load_known(file)

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
        lines = [
            " ".join((format_identifier(identifier), *(each.hex() for each in changes)))
            for identifier, changes in self._known.items()
        ]
        try:
            if self._file is not None:
                _write_lines(self._file, KNOWN_HEADING, lines)
        except OSError as error:
            # The identity has proved its new key, so it is accepted. A restart of the node would forget the change.
            logger.error("known_identities_not_written", file=str(self._file), reason=error.strerror or str(error))
        return True


def _load_known(file: Path) -> dict[bytes, tuple[bytes, ...]]:
    known = {}
    # A line that cannot be read must not be skipped: the old keys of its identity would be accepted again.
    for number, line in _read_lines(file):
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


def _read_lines(file: Path) -> list[tuple[int, str]]:
    """Returns the lines with their numbers, except comments and empty lines. Raises IdentityFileError."""
    try:
        lines = [line.strip() for line in without_seal(file.read_bytes()).decode().splitlines()]
        return [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise IdentityFileError("unreadable", f"cannot read {file}: {error}") from error


def _write_lines(file: Path, heading: str, lines: Iterable[str]) -> None:
    make_folder(file.parent)
    content = with_seal((heading + "".join(f"{line}\n" for line in lines)).encode())
    write_durably(file, content, mode=PRIVATE_MODE)
