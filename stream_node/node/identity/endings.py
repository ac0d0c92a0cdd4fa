"""Finds when the certificates and the tokens of a node end, to report it before clients are refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ockam.identity.rules.tokens import TokenFileError, load_tokens
from stream_node.node.config import Config
from stream_node.node.identity.token_services import token_file

CERTIFICATES = ("tls_certificate", "tls_client_ca", "tls_forward_ca")


class Ending(NamedTuple):
    """The end of a certificate or a token, in seconds since 1970."""

    ends_s: float
    began_s: float
    kind: str  # "certificate" or "token"
    name: str  # the setting that names the certificate's file, or the name of the token


def read_endings(config: Config) -> list[Ending]:
    """Returns the ends of the certificates and tokens, the next one first. It takes milliseconds: call it in a thread.
    Of several certificates in a file, the first end counts. A file that cannot be read has no end."""
    endings = []
    for name, file in ((each, getattr(config, each)) for each in CERTIFICATES):
        with suppress(OSError, ValueError):
            if file is not None:
                # Only a node with certificates loads this.
                from cryptography import x509

                found = x509.load_pem_x509_certificates(Path(file).read_bytes())
                ends, began = min((each.not_valid_after_utc, each.not_valid_before_utc) for each in found)
                endings.append(Ending(ends.timestamp(), began.timestamp(), "certificate", name))
    with suppress(OSError, TokenFileError):
        for token in load_tokens(token_file(config.data_dir)):
            if token.revoked_s is None and token.expires_s is not None:
                endings.append(Ending(float(token.expires_s), float(token.created_s), "token", token.name))
    return sorted(endings)
