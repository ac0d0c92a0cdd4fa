"""Makes the TLS of a node from its settings, and keeps it up to date while the node runs. It makes no certificates."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial

import structlog
import trio

from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.tls import PLAINTEXT, OutgoingTls, ServerTls, ServerTlsFiles, Tls, TlsFilesError
from ockam.identity.tls_stream import TlsListener
from stream_node.node.config import Config, ConfigError

CHECK_INTERVAL_S = 1.0
"""The interval between two checks of the files, and of open connections for revoked or expired certificates."""

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
    Also ends connections whose certificate was revoked or has expired. A file that is not valid is reported in one log
    line, and the earlier contents remain in use."""

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
