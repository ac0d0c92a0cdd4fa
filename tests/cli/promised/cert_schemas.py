"""What `--json` promises of the commands `cert`, as `schemas` for the others."""

from __future__ import annotations

from tests.cli.promised.schemas import Strict


class AuthorityMade(Strict, frozen=True):
    certificate: str
    key: str


class ServerMade(Strict, frozen=True):
    certificate: str
    key: str
    hosts: list[str]


class ClientMade(Strict, frozen=True):
    certificate: str
    key: str
    identity: str
    others: list[str]


class CertificateShown(Strict, frozen=True):
    subject: str
    issuer: str
    not_after: str
    fingerprint: str


CERT_SCHEMAS: dict[str, type[Strict]] = {
    "cert create ca": AuthorityMade,
    "cert create server": ServerMade,
    "cert create client": ClientMade,
    "cert show": CertificateShown,
}
