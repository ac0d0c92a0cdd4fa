"""TlsLayer: one TLS 1.3 connection as bytes in and bytes out. It reads no sockets and no messages.

The node under trio, and the clients with AnyIO or without an event loop, pass their bytes through it. The TLS streams
of trio and AnyIO return at most one record (16 KiB) at a time, and cannot send without waiting."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from typing import Any

import msgspec

from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls_faults import ALERT_PROTOCOL_VERSION, FIRST_BYTES, TlsFault, tls_fault

RECORD_BYTES = 16 * 1024
"""The largest plaintext of one TLS record (RFC 8446 §5.1). OpenSSL decrypts one record at a time."""
NAME_CHARACTERS_MAX = 256


class PeerCertificate(msgspec.Struct, frozen=True):
    """The certificate that the other side has proved to own.

    name: the common name of the subject; else the first DNS name of the certificate; else "".
    fingerprint: the SHA-256 of the certificate in DER, in hexadecimal. not_after_s: its end, in seconds since 1970."""

    name: str
    fingerprint: str
    not_after_s: float


def identity_of(certificate: PeerCertificate | None) -> Identity:
    return ANONYMOUS if certificate is None else Identity("certificate", certificate.name)


class TlsLayer:
    """One side of one TLS connection.

    ended: whether the other side has announced that it sends no more.
    certificate: the certificate of the other side; None before the end of the handshake, and if it has none.

    Invariant: every byte of ciphertext leaves by the result of `handshake`, `encrypt`, `take_outgoing` or `goodbye`.
    The caller must send them in the order of the calls."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self._has_received = False
        self.is_open = False
        self.ended = False
        self.certificate: PeerCertificate | None = None

    def handshake(self, data: bytes = b"") -> bytes:
        """Takes bytes of the handshake. Returns the bytes to send. Raises TlsFault, whose `alert` must be sent."""
        # OpenSSL would wait for five bytes before it refuses bytes without TLS. The hello of Ockam has only one byte.
        if not self._has_received and data:
            self._has_received = True
            if data[0] not in FIRST_BYTES:
                alert = ALERT_PROTOCOL_VERSION if self._object.server_side else b""
                raise TlsFault("tls_not_tls", "the other side does not speak TLS", alert)
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read()
        except ssl.SSLError as error:
            raise tls_fault(error, self._outgoing.read()) from error
        # A client certificate that cannot be named in logs and rules fails the handshake.
        self.certificate = self._read_certificate()
        self.is_open = True
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Returns the bytes to send for these bytes. The handshake must be complete."""
        write = self._object.write
        # One call writes at most one record.
        left = memoryview(data)
        while left:
            left = left[write(left) :]
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Returns the plaintext of all records that these received bytes complete; can be empty. Raises TlsFault. Call
        it once with no bytes directly after the handshake: the first records can have come with the handshake's end."""
        if data:
            self._incoming.write(data)
        pieces = []
        read = self._object.read
        try:
            while piece := read(RECORD_BYTES):
                pieces.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise tls_fault(error, self._outgoing.read()) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def take_outgoing(self) -> bytes:
        return self._outgoing.read() if self._outgoing.pending else b""

    def goodbye(self) -> bytes:
        if self.is_open:
            # OpenSSL reports that the other side has not announced its end yet. We do not wait for that.
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()
        return self._outgoing.read()

    def _read_certificate(self) -> PeerCertificate | None:
        der = self._object.getpeercert(binary_form=True)
        if not der:
            return None
        fields: dict[str, Any] = self._object.getpeercert() or {}
        names = [value for part in fields.get("subject", ()) for key, value in part if key == "commonName"]
        names += [value for key, value in fields.get("subjectAltName", ()) if key == "DNS"]
        name = names[0] if names else ""
        # The name of a client is written into logs and compared with the names of rules.
        if self._object.server_side and not (0 < len(name) <= NAME_CHARACTERS_MAX and name.isprintable()):
            raise TlsFault(
                "tls_other", "the client certificate has no common name that can be shown, or a too long one"
            )
        not_after_s = float(ssl.cert_time_to_seconds(fields["notAfter"])) if "notAfter" in fields else 0.0
        return PeerCertificate(name, hashlib.sha256(der).hexdigest(), not_after_s)
