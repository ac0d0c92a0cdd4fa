"""What `--json` promises of the commands `token`, as `schemas` for the others."""

from __future__ import annotations

from tests.cli.promised.schemas import Strict


class TokenShown(Strict, frozen=True):
    """state: valid, expired or revoked. Times are ISO 8601 in UTC."""

    name: str
    state: str
    created: str
    expires: str | None
    revoked: str | None
    sha256: str


class TokenCreated(TokenShown, frozen=True):
    """token: the text of the token, unless it was written to `file`. rules: the names of the rules written for it."""

    rules: list[str]
    store: str
    token: str | None = None
    file: str | None = None


class TokensListed(Strict, frozen=True):
    tokens: list[TokenShown]
    store: str


class TokenRevoked(TokenShown, frozen=True):
    rules_file: str | None
    rules_removed: list[str]
    store: str


TOKEN_SCHEMAS: dict[str, type[Strict]] = {
    "token create": TokenCreated,
    "token list": TokensListed,
    "token revoke": TokenRevoked,
}
