"""Makes the TLS of a node from its settings, keeps it up to date while the node runs, and describes it for the line at
the start and for `stream-node doctor`. It makes no certificates."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import structlog
import trio

from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.tls import PLAINTEXT, OutgoingTls, ServerTls, ServerTlsFiles, Tls, TlsFilesError
from ockam.identity.tls_stream import TlsListener
from stream_node.node.config import Config, ConfigError

CHECK_INTERVAL_S = 1.0
"""The interval between two checks of the files, and of open connections for revoked or expired certificates."""

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

logger = structlog.get_logger(__name__)


def check_settings(config: Config) -> None:
    """Raises ConfigError if the settings of TLS contradict each other, or if one of the files cannot be used."""
    make_tls(config)
    outgoing = make_outgoing_tls(config)
    if outgoing.tls is not None:
        try:
            outgoing.tls.check()
        except (TlsFilesError, ssl.SSLError) as error:
            raise ConfigError(f"tls_forward_ca: {error}") from error


def make_tls(config: Config) -> ServerTls | None:
    """Returns the TLS of the listener, or None without `tls_certificate`. Raises ConfigError."""
    # A setting of TLS without TLS would only look like protection.
    if config.tls_certificate is None:
        for name in ("tls_certificate_key", "tls_client_ca", "tls_revoked"):
            if getattr(config, name) is not None:
                raise ConfigError(f"{name}: has no effect without tls_certificate; give the node a certificate")
        return None
    if config.tls_certificate_key is None:
        raise ConfigError("tls_certificate: needs tls_certificate_key, the private key of the certificate")
    if config.tls_client_ca is None and config.tls_revoked is not None:
        raise ConfigError("tls_revoked: has no effect without tls_client_ca, which makes clients show a certificate")
    files = ServerTlsFiles(
        certificate=config.tls_certificate,
        key=config.tls_certificate_key,
        client_ca=config.tls_client_ca,
        client_required=config.tls_client_required,
        revoked=config.tls_revoked,
    )
    try:
        return ServerTls(files)
    except TlsFilesError as error:
        raise ConfigError(f"tls: {error}") from error


def make_outgoing_tls(config: Config) -> OutgoingTls:
    """Returns the TLS of the connections to other nodes. Connections for the node's own messages show its certificate,
    if it has one; connections for forwarded messages do not (`OutgoingTls.find`). Raises ConfigError."""
    if config.tls_forward_ca is None:
        if config.tls_forward_plaintext:
            raise ConfigError("tls_forward_plaintext: has no effect without tls_forward_ca")
        return PLAINTEXT
    tls = Tls(ca=config.tls_forward_ca, certificate=config.tls_certificate, key=config.tls_certificate_key)
    return OutgoingTls(tls, frozenset(config.tls_forward_plaintext))


def make_listener(config: Config, tls: ServerTls, alpn: str | None = None) -> TlsListener:
    """Returns the object that makes TLS handshakes with the peers of a listener. alpn: see `TlsListener`."""
    most, handshake_s = config.tls_handshakes_max, config.tls_handshake_timeout_s
    return TlsListener(tls, handshake_s=handshake_s, handshakes_max=most, alpn=alpn)


class TlsWatch:
    """Reads the files of TLS again when they have changed or when `reload` is called.
    Also ends connections whose certificate was revoked or has expired. A file that is not valid changes nothing."""

    def __init__(self, tls: ServerTls, end_refused: Callable[[], None], audit: Audit | None = None) -> None:
        self._audit = audit
        self._tls = tls
        self._end_refused = end_refused
        self._asked = trio.Event()

    def reload(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        while True:
            with trio.move_on_after(CHECK_INTERVAL_S):
                await self._asked.wait()
            asked, self._asked = self._asked.is_set(), trio.Event()
            try:
                if await trio.to_thread.run_sync(partial(self._tls.reload, changed_only=not asked)):
                    logger.info("tls_files_read", certificate=self._tls.files.certificate)
                    self._note(Entry("tls_files_read"))
            except TlsFilesError as error:
                logger.error("tls_files_refused", reason=str(error), stays="the certificates that were read before")
                self._note(Entry("tls_files_refused", reason=str(error)))
            except RuntimeError as error:
                # The system has no room for one more thread.
                logger.error("tls_files_not_seen", reason=str(error))
            self._end_refused()

    def _note(self, entry: Entry) -> None:
        if self._audit is not None:
            self._audit.note(entry)


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
