"""TLS settings: the certificate, key and authorities of each side, in PEM files that can be read again."""

from __future__ import annotations

import functools
import os
import re
import ssl
from pathlib import Path

import msgspec

from ockam.actors.address import split_host_port
from ockam.errors import OckamError
from ockam.identity.tls_layer import PeerCertificate, TlsLayer

# The limits of `ockam.identity.tls_stream` stand here, so that the settings of a node can be read without trio.
HANDSHAKE_TIMEOUT_S = 10.0
HANDSHAKES_MAX = 256
"""The most handshakes at one time. Even a hundred are rare: one lasts about a millisecond and two network delays."""
_FINGERPRINT = re.compile("[0-9a-f]{64}")


class TlsFilesError(OckamError, ValueError):
    """Error: a certificate, a key or a list of certificates cannot be used. The text names the file, and says why."""


Signature = tuple[tuple[int, int, int] | None, ...]
"""For each file its inode, its size and the time of its last change in nanoseconds; None if it cannot be found."""


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a client connects with TLS 1.3. The paths name PEM files, which each new connection reads again if they have
    changed.

    ca: the certificates of the authorities whose servers are trusted; None: those that the system trusts.
    certificate, key: the client's certificate, with which it proves its identity, and its private key; if key is None,
    the file of the certificate has the key, too.
    server_name: the name, or the IP address, that the certificate of the server must have; None: the host of the
    address to which the client connects."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    def check(self) -> None:
        """Reads all files. Raises TlsFilesError if one of them cannot be used."""
        if self.key is not None and self.certificate is None:
            raise TlsFilesError(f"the key {self.key} is given without its certificate; give the certificate, too")
        self._context()

    def layer(self, address: str) -> TlsLayer:
        """Returns a new TLS connection to `host:port`, whose handshake has not begun. Raises TlsFilesError."""
        name = self.server_name if self.server_name is not None else split_host_port(address)[0]
        return TlsLayer(self._context(), server_side=False, server_name=name)

    def _context(self) -> ssl.SSLContext:
        return _client_context(self, signature_of((self.ca, self.certificate, self.key)))


class OutgoingTls(msgspec.Struct, frozen=True):
    """The TLS of the connections that a node makes to other nodes. tls: the settings; None: no connection uses TLS.

    plaintext: the `host:port` destinations to which the node connects without TLS all the same."""

    tls: Tls | None = None
    plaintext: frozenset[str] = frozenset()

    def find(self, destination: str, is_own: bool) -> Tls | None:
        """Returns the settings for a new connection to `host:port`; None: it does not use TLS.

        is_own: whether the connection carries messages of the node itself, and so shows the node's certificate. If a
        connection for forwarded messages showed the certificate, other peers would act in the name of the node."""
        if self.tls is None or destination in self.plaintext:
            return None
        return self.tls if is_own else msgspec.structs.replace(self.tls, certificate=None, key=None)

    def shows_certificate(self, destination: str) -> bool:
        return self.tls is not None and self.tls.certificate is not None and destination not in self.plaintext


PLAINTEXT = OutgoingTls()


class ServerTlsFiles(msgspec.Struct, frozen=True):
    """The PEM files of a listener.

    certificate, key: the chain of the listener's certificate, its own certificate first, and its private key.
    client_ca: the certificates of the authorities that sign client certificates; None: no client is asked for one.
    client_required: whether a client without a certificate is refused.
    revoked: a text file with the SHA-256 fingerprint of one revoked client certificate in each line, or None."""

    certificate: str
    key: str
    client_ca: str | None = None
    client_required: bool = True
    revoked: str | None = None

    def paths(self) -> tuple[str | None, ...]:
        return self.certificate, self.key, self.client_ca, self.revoked


class ServerTls:
    """The TLS of a listener. Raises TlsFilesError.

    Invariant: the contexts and the revoked fingerprints come from files that were valid together. `_contexts` has one
    for each protocol that a listener names, and one that names none (None)."""

    def __init__(self, files: ServerTlsFiles) -> None:
        self.files = files
        self._signature = signature_of(files.paths())
        self._contexts: dict[str | None, ssl.SSLContext] = {}
        self._contexts[None], self.revoked = _load(files)

    def add_protocol(self, alpn: str) -> None:
        """Prepares connections that name a protocol to clients (ALPN, RFC 7301). Raises TlsFilesError."""
        # A context names the same protocol to every client, so each protocol has a context of its own.
        self._contexts[alpn] = _load(self.files, alpn)[0]

    def reload(self, *, changed_only: bool) -> bool:
        """Reads the files again, with `changed_only` only if one has changed since the last call. Returns whether
        they were read. Raises TlsFilesError; then the TLS in use stays as it was."""
        signature = signature_of(self.files.paths())
        if changed_only and signature == self._signature:
            return False
        self._signature = signature
        # Either all contexts are replaced, or none.
        contexts = {alpn: _load(self.files, alpn) for alpn in self._contexts}
        self._contexts = {alpn: context for alpn, (context, _) in contexts.items()}
        self.revoked = contexts[None][1]
        return True

    def layer(self, alpn: str | None = None) -> TlsLayer:
        """Returns a new TLS connection, whose handshake has not begun. alpn: a protocol that was added; None: none."""
        return TlsLayer(self._contexts[alpn], server_side=True)

    def refusal(self, certificate: PeerCertificate | None, now_s: float) -> tuple[str, str] | None:
        """Returns why a connection with this certificate must end (a key of KINDS and a text), or None."""
        if certificate is None:
            return None
        if certificate.fingerprint in self.revoked:
            return "tls_revoked", "this node's operator has revoked the certificate"
        if certificate.not_after_s <= now_s:
            return "tls_expired", "the certificate has expired"
        return None


def signature_of(paths: tuple[str | None, ...]) -> Signature:
    return tuple(None if path is None else _signature(path) for path in paths)


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


# Without this cache, a client with many connections would read and parse the certificates for each of them.
@functools.lru_cache(maxsize=16)
def _client_context(tls: Tls, signature: Signature) -> ssl.SSLContext:
    return new_client_context(tls)


def new_client_context(tls: Tls) -> ssl.SSLContext:
    """Returns a new SSL context for a client, which is not cached. Raises TlsFilesError."""
    context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
    if tls.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, tls.ca)
    if tls.certificate is not None:
        _load_own(context, tls.certificate, tls.key)
    return context


def _load(files: ServerTlsFiles, alpn: str | None = None) -> tuple[ssl.SSLContext, frozenset[str]]:
    context = _new_context(ssl.PROTOCOL_TLS_SERVER)
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    # A resumed session would not show its certificate again, so an expired or a revoked one would be accepted.
    context.num_tickets = 0
    _load_own(context, files.certificate, files.key)
    if files.client_ca is not None:
        _load_authorities(context, files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if files.client_required else ssl.CERT_OPTIONAL
    return context, _read_revoked(files.revoked)


def _new_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load_own(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    # OpenSSL does not tell which of the two files it could not open.
    for path in (certificate, key):
        if path is not None:
            _read(path)

    def no_password() -> bytes:
        raise TlsFilesError(
            f"the key {key or certificate} is encrypted; give a key without a password, which only the node may read"
        )

    try:
        # Without this function, OpenSSL would ask at the terminal and wait.
        context.load_cert_chain(certificate, key, password=no_password)
    except OSError as error:
        # An SSLError is an OSError, too. Any other OSError means that a file was removed after it had been read.
        if not isinstance(error, ssl.SSLError):
            reason = f"{certificate} or {key or 'its key'} cannot be read: {error.strerror}"
        elif error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the key {key or certificate} does not belong to the certificate {certificate}"
        else:
            reason = f"{certificate} and {key or 'its key'} are not a PEM certificate and its PEM key"
        raise TlsFilesError(reason) from error


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    # Programs write the names of authorities beside the certificates, in UTF-8; `ssl` takes ASCII only (TypeError).
    text = _read(path).encode("ascii", "replace").decode()
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise TlsFilesError(f"{path} has no PEM certificates of authorities: {error}") from error


def _read_revoked(path: str | None) -> frozenset[str]:
    """Returns the fingerprints in a file: one in each line, with or without colons; `#` begins a comment."""
    if path is None:
        return frozenset()
    found = set()
    for number, line in enumerate(_read(path).splitlines(), 1):
        entry = line.partition("#")[0].replace(":", "").strip().lower()
        if entry and not _FINGERPRINT.fullmatch(entry):
            raise TlsFilesError(f"{path}: line {number} is no SHA-256 fingerprint of 64 hexadecimal digits")
        if entry:
            found.add(entry)
    return frozenset(found)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TlsFilesError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
