"""TlsLayer: one TLS 1.3 connection as bytes in and bytes out. It reads no sockets and no messages. TlsFault: why a
handshake or connection failed, as a short fixed word and a sentence of advice.

The node under trio, and the clients with AnyIO or without an event loop, pass their bytes through it. The TLS streams
of trio and AnyIO return at most one record (16 KiB) at a time, and cannot send without waiting."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from typing import Any

import msgspec

from ockam.errors import RemoteProtocolError
from ockam.identity.identity import ANONYMOUS, Identity

RECORD_BYTES = 16 * 1024
"""The largest plaintext of one TLS record (RFC 8446 §5.1). OpenSSL decrypts one record at a time."""
NAME_CHARACTERS_MAX = 256

ALERT_PROTOCOL_VERSION = bytes.fromhex("15030300020246")
"""A TLS alert (fatal, protocol_version, RFC 8446 §6) for a peer whose first byte is not that of TLS."""
FIRST_BYTES = b"\x15\x16"
"""The first byte of each side of a TLS connection: the type of an alert or a handshake record (RFC 8446 §5.1)."""
REFUSED = b"refused: "
"""The first bytes over a TLS connection whose certificate is refused after the handshake; reason and line feed
follow."""

ENDED_IN_HANDSHAKE = "it ended the connection during the TLS handshake; does it speak TLS at this port?"

PROBE = "stream-node-probe"
"""The protocol (ALPN) in the hello by which a client of ours finds out whether a silent server speaks TLS."""
PROBED = "tls_probed"

KINDS = {
    "tls_expired": "a certificate has expired, or is not valid yet",
    "tls_no_certificate": "a client certificate is demanded, and none was sent",
    "tls_not_tls": "the other side does not speak TLS",
    "tls_other": "the handshake failed for another reason",
    PROBED: "a client of this program asked whether the port speaks TLS",
    "tls_refused": "the other side refused our certificate, and did not say why",
    "tls_revoked": "the certificate is in the node's list of revoked certificates",
    "tls_timeout": "the handshake was not complete in time",
    "tls_unexpected": "the other side speaks TLS to a port without TLS",
    "tls_unknown_ca": "a certificate is not signed by a trusted certificate authority",
    "tls_version": "the other side does not speak TLS 1.3",
    "tls_wrong_name": "the certificate is for another name",
}

_OF_OUR_CHECK = {
    **dict.fromkeys((9, 10), "tls_expired"),
    **dict.fromkeys((2, 18, 19, 20, 21), "tls_unknown_ca"),
    **dict.fromkeys((62, 64), "tls_wrong_name"),
}
"""The kind for each result of OpenSSL's check of a certificate (X509_V_ERR_… in `openssl/x509_vfy.h`)."""
_OF_REASON = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("tls_no_certificate", "the peer sent no client certificate"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("tls_no_certificate", "the other side demands a client certificate"),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "tls_unknown_ca",
        "the other side does not trust the certificate authority of our certificate",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": ("tls_expired", "the other side says that our certificate has expired"),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": ("tls_revoked", "the other side says that our certificate is revoked"),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "tls_refused",
        "the other side refuses our certificate; it may be for another name than the one that was called",
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": ("tls_refused", "the other side refuses our certificate"),
    "WRONG_VERSION_NUMBER": ("tls_not_tls", "the other side does not speak TLS"),
    "HTTP_REQUEST": ("tls_not_tls", "the other side speaks HTTP, not TLS"),
    "UNSUPPORTED_PROTOCOL": ("tls_version", "the other side does not speak TLS 1.3"),
    "TLSV1_ALERT_PROTOCOL_VERSION": ("tls_version", "the other side does not speak TLS 1.3"),
}


class TlsFault(RemoteProtocolError):
    """Error: a TLS handshake or a TLS connection failed. kind: one of KINDS.

    alert: the bytes to send to the other side before the connection is closed; they tell the other side the reason."""

    def __init__(self, kind: str, what: str, alert: bytes = b"") -> None:
        assert kind in KINDS, kind
        super().__init__(kind, what)
        self.alert = alert


def tls_fault(error: ssl.SSLError, alert: bytes = b"") -> TlsFault:
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = _OF_OUR_CHECK.get(error.verify_code, "tls_other")
        return TlsFault(kind, f"the certificate of the other side is not accepted: {error.verify_message}", alert)
    kind, text = _OF_REASON.get(error.reason or "", ("tls_other", ""))
    if not text:
        # A reason such as SSLV3_ALERT_HANDSHAKE_FAILURE reads well enough as words.
        text = (error.reason or str(error)).replace("_", " ").lower()
    return TlsFault(kind, text, alert)


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
