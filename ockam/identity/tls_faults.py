"""TlsFault: why a TLS handshake or connection failed, as a short fixed word and a sentence of advice."""

from __future__ import annotations

import ssl

from ockam.errors import RemoteProtocolError

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
    9: "tls_expired",
    10: "tls_expired",
    2: "tls_unknown_ca",
    18: "tls_unknown_ca",
    19: "tls_unknown_ca",
    20: "tls_unknown_ca",
    21: "tls_unknown_ca",
    62: "tls_wrong_name",
    64: "tls_wrong_name",
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
