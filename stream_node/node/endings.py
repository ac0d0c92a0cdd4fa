"""Finds when the certificates and the tokens of a node end, so that this is told before clients are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ockam.identity.rules.tokens import TokenFileError, load_tokens
from stream_node.node.config import Config
from stream_node.node.token_services import token_file

CERTIFICATES = ("tls_certificate", "tls_client_ca", "tls_forward_ca")
"""The settings that name files with certificates."""


class Ending(NamedTuple):
    """What ends, and when, in seconds since 1970. kind: "certificate" or "token".

    name: the setting that names the file of the certificate, or the name of the token. began_s: when it was made.
    """

    ends_s: float
    began_s: float
    kind: str
    name: str


def read_endings(config: Config) -> list[Ending]:
    """Reads the files of certificates and tokens. Returns what ends, the next one first. Of a file with several
    certificates, the one that ends first counts. A file that cannot be read has no end: the node tells that elsewhere.

    This takes milliseconds: call it in a thread."""
    return sorted((*_certificates(config), *_tokens(config)))


def _certificates(config: Config) -> Iterator[Ending]:
    files = {name: file for name in CERTIFICATES if (file := getattr(config, name)) is not None}
    if not files:
        return
    from cryptography import x509

    for name, file in files.items():
        with suppress(OSError, ValueError):
            found = x509.load_pem_x509_certificates(Path(file).read_bytes())
            times = ((each.not_valid_after_utc, each.not_valid_before_utc) for each in found)
            ends, began = min(times)
            yield Ending(ends.timestamp(), began.timestamp(), "certificate", name)


def _tokens(config: Config) -> Iterator[Ending]:
    with suppress(OSError, TokenFileError):
        for token in load_tokens(token_file(config.data_dir)):
            if token.revoked_s is None and token.expires_s is not None:
                yield Ending(float(token.expires_s), float(token.created_s), "token", token.name)
