"""TLS for the connection of a Spark process to a node. Like `node_client`, it uses only the standard library.

Programs with this project installed use `ockam.identity.tls`. The paths name files of the machine on which the process
runs.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from spark_export.errors import OptionError, SourceTlsFailed

SYSTEM = "system"
"""The value of `tlsCa` that stands for the authorities that the system trusts."""
TLS_OPTIONS = ("tlsCa", "tlsCert", "tlsKey", "tlsServerName")
ALERT = 0x15
"""The first byte of a TLS alert. A node with TLS sends one if the other side does not use TLS."""
REFUSED = b"refused: "
"""The first bytes over TLS if the node refuses a certificate that it has revoked. The reason and a line feed follow."""

_ADVICE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it demands a client certificate; set the options tlsCert and tlsKey",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of tlsCert; see tls_client_ca at the node",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that tlsCert has expired; renew it",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; leave out the option tlsCa, or give the node a certificate",
}


@dataclass(frozen=True)
class NodeTls:
    """The options of TLS: PEM files, and the name in the node's certificate if it is not the host of the endpoint.

    ca: the authorities of the node's certificate, or SYSTEM.
    key: None if the private key is in the file `certificate`.
    """

    ca: str = SYSTEM
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    def wrap(self, connection: socket.socket, endpoint: str) -> ssl.SSLSocket:
        """Completes the handshake. Raises OptionError if a file cannot be used, and SourceTlsFailed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            if self.ca == SYSTEM:
                context.load_default_certs()
            else:
                context.load_verify_locations(self.ca)
            if self.certificate is not None:
                # Without a function for the password, OpenSSL would wait for somebody at a terminal.
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except OSError as error:
            files = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            raise OptionError(f"tlsCa, tlsCert, tlsKey: one of {files} cannot be used: {error}") from error
        name = self.server_name or endpoint.rpartition(":")[0].strip("[]")
        try:
            return context.wrap_socket(connection, server_hostname=name)
        except ssl.SSLError as error:
            raise tls_failed(endpoint, error) from error
        except (ConnectionError, EOFError) as error:
            raise SourceTlsFailed(
                f"{endpoint} ended the connection during the TLS handshake; does it speak TLS at this port?"
            ) from error


def tls_of(find: Callable[[str], str | None]) -> NodeTls | None:
    """Returns the options of TLS; None if tlsCa and tlsCert are absent. Raises OptionError."""
    ca, certificate, key, server_name = map(find, TLS_OPTIONS)
    if ca is None and certificate is None:
        if key is not None or server_name is not None:
            raise OptionError("tlsKey and tlsServerName have no effect without tlsCa or tlsCert; give one of these")
        return None
    return NodeTls(ca or SYSTEM, certificate, key, server_name)


def tls_failed(endpoint: str, error: ssl.SSLError) -> SourceTlsFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate is not accepted: {error.verify_message}; see the options tlsCa and tlsServerName"
    elif isinstance(error, ssl.SSLEOFError):
        text = _ADVICE["WRONG_VERSION_NUMBER"]
    else:
        text = _ADVICE.get(error.reason or "", str(error))
    return SourceTlsFailed(f"no TLS connection to {endpoint}: {text}")


def tls_needed(endpoint: str) -> SourceTlsFailed:
    return SourceTlsFailed(
        f"{endpoint} speaks TLS, and this process does not; set the option tlsCa to the authority of its certificate"
    )


def _no_password() -> bytes:
    raise OptionError("tlsKey is encrypted; give a key without a password")
