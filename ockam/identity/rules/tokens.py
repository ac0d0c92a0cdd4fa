"""The tokens of a node: a file with their hashes, and the decision whether a token is valid.

The hash is SHA-256: a token has 256 random bits, so a slow hash, as for passwords, would protect nothing."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ockam.files.durable_files import lock_folder, make_folder, with_seal, without_seal, write_durably
from ockam.files.parsing import parse_json
from ockam.identity.authentication import TokenStatus, TokenVerdict
from ockam.identity.identity import Identity
from ockam.identity.token import new_token

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""The names of tokens. They stand in rules and in logs, so they have no spaces and no quotation marks."""
FILE_MODE = 0o600
REVOKED_KEPT_S = 30 * 86_400
"""How long a revoked token stays in the file. Until then, the answer to a client with it says that it is revoked."""
INDEX_BYTES = 8


class TokenFileError(Exception):
    """Error: the file of the tokens cannot be read or written, or a name in a command is wrong."""


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token. Its times are in seconds since 1970.

    sha256: the hash of the token's text, 64 hexadecimal digits.
    expires_s: from when on the token is not valid any more; None if it never expires.
    revoked_s: when the token was revoked; None if it is not revoked."""

    name: str
    sha256: str
    created_s: int
    expires_s: int | None = None
    revoked_s: int | None = None

    @property
    def identity(self) -> Identity:
        return Identity("token", self.name)

    def state(self, now_s: float) -> TokenStatus:
        if self.revoked_s is not None:
            return TokenStatus.REVOKED
        return TokenStatus.EXPIRED if self.expires_s is not None and now_s >= self.expires_s else TokenStatus.OK


_Change = Callable[[tuple[TokenRecord, ...]], tuple[TokenRecord, ...]]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: tuple[TokenRecord, ...] = ()


def load_tokens(file: Path) -> tuple[TokenRecord, ...]:
    """Returns the tokens in a file, the oldest first; none if there is no file. Raises TokenFileError, OSError."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        records = parse_json(without_seal(content), _File).tokens
    except ValueError as error:
        raise TokenFileError(
            f"{file} is not a file of tokens: {error}; put it back from a copy, or remove it"
        ) from error
    for record in records:
        if not NAME.fullmatch(record.name) or not re.fullmatch("[0-9a-f]{64}", record.sha256):
            raise TokenFileError(f"{file}: the token {record.name[:64]!r} has a wrong name or hash; remove this token")
    # Revoked tokens may share a name with their successor.
    named = [record.name for record in records if record.revoked_s is None]
    if len(set(named)) != len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise TokenFileError(f"{file} has the token {twice!r} twice; remove one of them")
    return records


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise TokenFileError(
            f"{name[:64]!r} cannot name a token; take 1 to 40 letters, digits, dots, hyphens and underscores, and "
            "begin with a letter or a digit"
        )


def create_token(
    file: Path, name: str, now_s: int, expires_s: int | None = None, *, replace: bool = False
) -> tuple[str, TokenRecord]:
    """Creates a token and stores its hash. Returns its text, which is stored nowhere, and its record.

    replace: whether an existing token of this name is revoked; otherwise it is an error. Raises TokenFileError."""
    check_name(name)
    text = new_token()
    record = TokenRecord(name, hashlib.sha256(text.encode()).hexdigest(), now_s, expires_s)

    def change(records: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
        if any(each.name == name and each.revoked_s is None for each in records) and not replace:
            raise TokenFileError(
                f"there is a token {name!r} already; revoke it, say --replace to revoke it with this command, or "
                "choose another name"
            )
        return (*_revoked(records, name, now_s), record)

    _change(file, change, now_s)
    return text, record


def revoke_token(file: Path, name: str, now_s: int) -> TokenRecord:
    found: list[TokenRecord] = []

    def change(records: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
        there = [each.name for each in records if each.revoked_s is None]
        if name not in there:
            raise TokenFileError(f"there is no token {name[:64]!r}; there is {', '.join(sorted(there)[:20]) or 'none'}")
        changed = _revoked(records, name, now_s)
        found.extend(each for each in changed if each.name == name)
        return changed

    _change(file, change, now_s)
    return found[-1]


def _revoked(records: Iterable[TokenRecord], name: str, now_s: int) -> tuple[TokenRecord, ...]:
    return tuple(
        msgspec.structs.replace(each, revoked_s=now_s) if each.name == name and each.revoked_s is None else each
        for each in records
    )


def _change(file: Path, change: _Change, now_s: int) -> None:
    try:
        make_folder(file.parent, mode=0o700)
        with lock_folder(file.parent):
            # A command that was killed may have left its unfinished file.
            for left in file.parent.glob(f".{file.name}.*.part"):
                left.unlink(missing_ok=True)
            # The file is read under the lock, so that no change of another command is lost.
            records = change(load_tokens(file))
            kept = [each for each in records if each.revoked_s is None or now_s - each.revoked_s < REVOKED_KEPT_S]
            content = msgspec.json.format(msgspec.json.encode(_File(tuple(kept))), indent=1) + b"\n"
            write_durably(file, with_seal(content), mode=FILE_MODE)
    except OSError as error:
        raise TokenFileError(f"cannot change {file}: {error.strerror or error}") from error


class Tokens:
    def __init__(self, records: Iterable[TokenRecord] = ()) -> None:
        self.valid: dict[str, TokenRecord] = {}
        self._by_hash: dict[bytes, list[tuple[bytes, TokenRecord]]] = {}
        for record in records:
            digest = bytes.fromhex(record.sha256)
            self._by_hash.setdefault(digest[:INDEX_BYTES], []).append((digest, record))
            if record.revoked_s is None:
                self.valid[record.name] = record

    def __len__(self) -> int:
        return len(self.valid)

    def judge(self, text: str, now_s: float) -> TokenVerdict:
        digest = hashlib.sha256(text.encode()).digest()
        # A peer cannot choose a hash, so the time of this look-up tells it nothing about another token.
        for stored, record in self._by_hash.get(digest[:INDEX_BYTES], ()):
            if hmac.compare_digest(stored, digest):
                state = record.state(now_s)
                if state is TokenStatus.OK:
                    return TokenVerdict(state, record.identity)
                what = "has expired" if state is TokenStatus.EXPIRED else "is revoked"
                reason = f"the token {record.name} {what}; ask the operator of the node for a new one"
                return TokenVerdict(state, reason=reason)
        return TokenVerdict(
            TokenStatus.UNKNOWN,
            reason="this node does not know the token; it may be one of another node, or revoked long ago: ask the "
            "operator for a new one",
        )

    def is_valid(self, identity: Identity, now_s: float) -> bool:
        record = self.valid.get(identity.name)
        return record is not None and record.state(now_s) is TokenStatus.OK
