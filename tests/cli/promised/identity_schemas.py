"""What `--json` promises of the commands `identity` and `trust`, as `schemas` for the others."""

from __future__ import annotations

from typing import Literal

from tests.cli.promised.schemas import Strict


class IdentityShown(Strict, frozen=True):
    identifier: str
    file: str


class TrustAdded(Strict, frozen=True):
    identifier: str
    name: str
    added: bool
    file: str


class Trusted(Strict, frozen=True, rename={"origin": "from"}):
    identifier: str
    name: str
    origin: Literal["file", "settings"]


class TrustListed(Strict, frozen=True):
    trusted: list[Trusted]
    anyone: bool


class TrustRemoved(Strict, frozen=True):
    identifier: str
    removed: bool
    file: str


IDENTITY_SCHEMAS: dict[str, type[Strict]] = {
    "identity create": IdentityShown,
    "identity show": IdentityShown,
    "trust add": TrustAdded,
    "trust list": TrustListed,
    "trust remove": TrustRemoved,
}
