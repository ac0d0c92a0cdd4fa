"""Makes certificates for trying TLS: an authority, and the certificates of nodes and clients that it signs.
This is no public key infrastructure: the key of the authority lies in the folder, and nothing is renewed by itself."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ockam.files.durable_files import write_durably

AUTHORITY = "ca"
AUTHORITY_DAYS = 3_650
DAYS = 365
EARLIER = datetime.timedelta(minutes=5)
"""How much earlier than now a certificate begins, because the clock of another machine may be slow."""


class CertificateError(Exception):
    """A certificate cannot be made or read. The text says what to do."""


def create_authority(folder: Path) -> Path:
    """Makes an authority: new files `ca.pem` and `ca.key` in the folder. Returns the path of its certificate. Raises
    CertificateError."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("stream-node test authority")
    builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS, signs=True)
    return _write(folder, AUTHORITY, builder.sign(key, hashes.SHA256()), key)


def create_certificate(
    folder: Path, name: str, *, hosts: Sequence[str] = (), days: int = DAYS, file: str | None = None
) -> Path:
    """Makes a certificate that the authority of the folder signs, and its key. Returns the path of the certificate.
    name: the common name; a client's identity is `certificate:NAME`. hosts: the DNS names and IP addresses of a node;
    empty for a client. file: the name of the two files without .pem and .key; None: the common name.
    Raises CertificateError."""
    authority, authority_key = _read_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    # A node also calls other nodes, so its certificate must also be valid for a client.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])
    builder = (
        _builder(authority.subject, _name(name), key.public_key(), days, signs=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    stem = file or name
    if not stem or "/" in stem or stem.startswith("."):
        raise CertificateError(f"{stem!r} cannot name a file; give another name with --file")
    return _write(folder, stem, builder.sign(authority_key, hashes.SHA256()), key)


def fingerprint_of(file: Path) -> str:
    """Returns the SHA-256 of the first certificate in a PEM file, for `tls_revoked`. Raises CertificateError."""
    return read_certificate(file).fingerprint(hashes.SHA256()).hex()


def others_of_client(certificate: Path) -> list[Path]:
    """Returns the other certificates of the same folder that prove the same client and have not expired.
    Raises CertificateError if the client's certificate cannot be read."""
    subject, now = read_certificate(certificate).subject, datetime.datetime.now(datetime.UTC)
    found = []
    for file in sorted(certificate.parent.glob("*.pem")):
        try:
            other = read_certificate(file)
        except CertificateError:
            continue
        if file != certificate and other.subject == subject and other.not_valid_after_utc > now:
            found.append(file)
    return found


def read_certificate(file: Path) -> x509.Certificate:
    """Returns the first certificate in a PEM file. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise CertificateError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise CertificateError(f"{file} has no PEM certificate") from error


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int, *, signs: bool
) -> x509.CertificateBuilder:
    """Returns a builder with the fields that every certificate has. signs: whether the key signs certificates;
    otherwise the key signs handshakes."""
    now = datetime.datetime.now(datetime.UTC)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        **dict.fromkeys((*others, "encipher_only", "decipher_only"), False),
    )
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    except ValueError as error:
        raise CertificateError(f"{text!r} cannot be a common name: {error}") from error


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass  # It is no IP address, so it must be a DNS name.
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise CertificateError(f"{text!r} is neither a DNS name nor an IP address") from error


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key_file = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    if not certificate.exists() or not key_file.exists():
        raise CertificateError(f"{folder} has no authority; make one with `stream-node cert create ca --dir {folder}`")
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"{key_file} is no private key that can be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{key_file} is no key of this command; use the tools with which it was made")
    return read_certificate(certificate), key


def _write(folder: Path, stem: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
    """Writes STEM.pem, and STEM.key that only its owner may read. Raises CertificateError if one of them exists."""
    public, private = folder / f"{stem}.pem", folder / f"{stem}.key"
    for file in (public, private):
        if file.exists():
            raise CertificateError(f"{file} exists already; remove it, or give another name with --file")
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(private, secret, mode=0o600)
        write_durably(public, certificate.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise CertificateError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return public
