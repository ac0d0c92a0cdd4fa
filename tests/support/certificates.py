"""Certificates for tests: authorities, servers and clients, also wrong ones. Each process makes its keys once."""

from __future__ import annotations

import datetime
import functools
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


@functools.cache
def key_of(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def name_of(text: str | None) -> x509.Name:
    return x509.Name([] if text is None else [x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A certificate authority that writes what it signs into a folder, as PEM files."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.name = name
        self.ca = str(folder / f"{name}.pem")
        now = datetime.datetime.now(datetime.UTC)
        key = key_of(name)
        made = (
            x509.CertificateBuilder(name_of(name), name_of(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 10 * DAY)
            .add_extension(x509.BasicConstraints(True, None), True)
            .sign(key, hashes.SHA256())
        )
        Path(self.ca).write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str | None,
        *,
        hosts: tuple[str, ...] = (),
        begins_s: float = -3_600.0,
        ends_s: float = 3_600.0,
        file: str | None = None,
    ) -> tuple[str, str]:
        """Writes a certificate and its key. Returns their paths.

        hosts: DNS names and IP addresses. begins_s, ends_s: when the certificate is valid, in seconds from now.
        """
        now = datetime.datetime.now(datetime.UTC)
        key = key_of(f"{self.name}/{name}")
        builder = (
            x509.CertificateBuilder(name_of(self.name), name_of(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(seconds=begins_s))
            .not_valid_after(now + datetime.timedelta(seconds=ends_s))
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
            )
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), False)
        made = builder.sign(key_of(self.name), hashes.SHA256())
        stem = self.folder / (file or f"{self.name}-{name}")
        certificate, private = Path(f"{stem}.pem"), Path(f"{stem}.key")
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(certificate), str(private)


def fingerprint(certificate: str | bytes) -> str:
    """The SHA-256 of a certificate: of the PEM file at a path, or in DER."""
    if isinstance(certificate, bytes):
        return x509.load_der_x509_certificate(certificate).fingerprint(hashes.SHA256()).hex()
    return x509.load_pem_x509_certificate(Path(certificate).read_bytes()).fingerprint(hashes.SHA256()).hex()


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
