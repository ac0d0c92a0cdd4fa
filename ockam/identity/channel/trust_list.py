"""TrustList: the identifiers that are allowed to open channels, from the settings and from a file that commands change.

A line of the file is an identifier and, after a space, a name for people; `#` begins a comment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from ockam.files.durable_files import PRIVATE_MODE, lock_folder, make_folder, write_durably
from ockam.files.sealed_file import with_seal, without_seal
from ockam.identity.channel.errors import IdentityFileError, InvalidIdentifier
from ockam.identity.channel.identity_history import PeerIdentity, format_identifier, parse_identifier

HEADING = "# Identities that may open secure channels to this node: an identifier and a name in each line.\n"

logger = structlog.get_logger(__name__)


def load_trusted(file: Path) -> dict[bytes, str]:
    """Returns the names of the trusted identities by identifier; none without a file. Raises IdentityFileError."""
    try:
        lines = without_seal(file.read_bytes()).decode().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise IdentityFileError("unreadable", f"cannot read {file}: {error}") from error
    trusted = {}
    for number, line in enumerate(lines, 1):
        text, _, name = line.strip().partition(" ")
        if text and not text.startswith("#"):
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
        make_folder(file.parent)
        content = with_seal((HEADING + "".join(f"{line}\n" for line in lines)).encode())
        write_durably(file, content, mode=PRIVATE_MODE)
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

    anyone: whether every identity is accepted. lost: the identifiers that this list has had since the node's start, and
    has no more."""

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
        """Reads the file again if it has changed since the last call. Returns whether it has changed."""
        if self._file is None:
            return False
        stamp = _stamp_of(self._file)
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


def _stamp_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    # A file that is replaced has another inode, also within one tick of the clock.
    return found.st_ino, found.st_mtime_ns, found.st_size
