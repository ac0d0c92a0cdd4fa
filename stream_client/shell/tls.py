"""Turns the faults of TLS into the client's errors, and checks the TLS settings that a program gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ockam.errors import RemoteProtocolError
from stream_client.errors import InvalidArgument, NodeUnreachable, TlsFailed, UnexpectedAnswer, fault_of

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.tls_layer import TlsLayer

ADVICE = {
    "tls_expired": "renew the certificate, and look at the clocks of both machines",
    "tls_files": "correct the file, or name another one",
    "tls_no_certificate": "give this client its certificate and key: Tls(certificate=…, key=…), --tls-cert, --tls-key",
    "tls_not_tls": "connect without TLS, or give the node a certificate (its setting tls_certificate)",
    "tls_other": "the log of the node may say more",
    "tls_refused": "the log of the node says why",
    "tls_revoked": "ask the operator of the node for a new certificate",
    "tls_timeout": "the node may be overloaded",
    "tls_unknown_ca": "compare the authorities: Tls(ca=…) or --tls-ca here, tls_client_ca at the node",
    "tls_version": "the node, or a proxy before it, must be updated",
    "tls_wrong_name": "call the node by a name in its certificate, or give this name as Tls(server_name=…)",
}
"""The advice at the end of the error's text, by kind of fault."""


def check_tls(tls: Tls | None) -> None:
    """Reads the files of the settings. Raises InvalidArgument if one of them cannot be used."""
    if tls is None:
        return
    from ockam.identity.tls import TlsFilesError

    try:
        tls.check()
    except TlsFilesError as error:
        raise InvalidArgument(str(error)) from error


def new_layer(tls: Tls, address: str) -> TlsLayer:
    """Returns a TLS connection whose handshake has not begun. Raises TlsFailed if a file cannot be used at present."""
    from ockam.identity.tls import TlsFilesError

    try:
        return tls.layer(address)
    except TlsFilesError as error:
        raise tls_failed(address, RemoteProtocolError("tls_files", str(error))) from error


def tls_failed(address: str, fault: RemoteProtocolError) -> TlsFailed:
    """Returns the client's error for a fault of TLS. Its text ends with the advice for `fault.kind` (ADVICE)."""
    advice = ADVICE.get(fault.kind, ADVICE["tls_other"])
    return TlsFailed(f"no TLS connection to {address}: {fault}; {advice}", fault.kind)


def ended_in_handshake(address: str) -> TlsFailed:
    from ockam.identity.tls_layer import ENDED_IN_HANDSHAKE

    return tls_failed(address, RemoteProtocolError("tls_not_tls", ENDED_IN_HANDSHAKE))


def silent_over_tls(address: str) -> NodeUnreachable:
    return NodeUnreachable(
        f"{address} completes the TLS handshake and then sends nothing: it stands still, or it is no stream node"
    )


def error_of(address: str, fault: RemoteProtocolError) -> UnexpectedAnswer | TlsFailed:
    """Returns the client's error for received bytes that no node sends, or for a fault of TLS."""
    return tls_failed(address, fault) if fault.kind.startswith("tls_") else fault_of(address, fault)


def check_refusal(address: str, first: bytes) -> None:
    """Raises TlsFailed if these first bytes over TLS say that the node refuses this client's certificate."""
    from ockam.identity.tls_layer import REFUSED

    if first.startswith(REFUSED):
        reason = first.removeprefix(REFUSED).decode("ascii", "replace").strip()
        kind = "tls_revoked" if "revoked" in reason else "tls_refused"
        raise tls_failed(address, RemoteProtocolError(kind, reason))
