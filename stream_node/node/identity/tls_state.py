"""Describes the TLS of a node with given settings, for the line at the start and for `stream-node doctor`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias

from stream_node.node.config import Config, ConfigError

TlsMode: TypeAlias = Literal["off", "server", "optional", "mutual"]
"""How peers connect to the node. off: without TLS. server: with TLS, without a certificate. optional: with TLS; a peer
without a certificate is anonymous. mutual: with TLS and a certificate."""
ENDING = timedelta(days=14)
"""`examine_tls` warns if the certificate ends within this time."""
_TEXTS: dict[TlsMode, str] = {
    "off": "off: peers connect without encryption",
    "server": "on; clients prove nothing by certificates",
    "optional": "on; clients may show a certificate",
    "mutual": "on; clients must show a certificate",
}


def tls_mode(config: Config) -> TlsMode:
    if config.tls_certificate is None:
        return "off"
    if config.tls_client_ca is None:
        return "server"
    return "mutual" if config.tls_client_required else "optional"


def tls_text(config: Config) -> str:
    return _TEXTS[tls_mode(config)]


def find_certificate_sha384(config: Config) -> str | None:
    """Returns the SHA-384 of the DER of the node's certificate, in hexadecimal: "certificateSha384" in the
    `block-nodes.json` of a consensus node. None if the node has no certificate, or it cannot be read."""
    if config.tls_certificate is None:
        return None
    from cryptography.hazmat.primitives.hashes import SHA384

    from stream_node.care.certificates import CertificateError, read_certificate

    try:
        # The certificates of intermediate authorities follow the node's own.
        return read_certificate(Path(config.tls_certificate)).fingerprint(SHA384()).hex()
    except CertificateError:
        return None


def examine_tls(config: Config) -> tuple[Literal["ok", "warning", "wrong"], str, str | None]:
    """Checks the TLS of a node. Returns a status, a sentence about it, and the end of the node's certificate.
    The end is text in ISO 8601; None if the node has no certificate or cannot use it."""
    from stream_node.care.certificates import CertificateError, read_certificate
    from stream_node.node.identity.tls_settings import check_settings

    try:
        check_settings(config)
        if config.tls_certificate is None:
            return "ok", tls_text(config), None
        # The files can be used; the end of the certificate remains to be checked.
        ends = read_certificate(Path(config.tls_certificate)).not_valid_after_utc
    except (ConfigError, CertificateError) as error:
        return "wrong", f"{error}; the node does not start", None
    left = ends - datetime.now(UTC)
    text = f"{tls_text(config)}; the node's certificate ends at {ends:%Y-%m-%dT%H:%M:%SZ}"
    if left <= timedelta():
        return "wrong", f"{text}, so clients refuse it; renew it", ends.isoformat()
    if left < ENDING:
        return "warning", f"{text}, in {left.days} days; renew it", ends.isoformat()
    return "ok", text, ends.isoformat()
