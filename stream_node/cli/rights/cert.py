"""The commands `stream-node cert create ca|server|client` and `cert show`: make and show certificates for TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli.output import AS_JSON, say, tell

DirOption = Annotated[Path, typer.Option("--dir"), "The folder of the authority and of the new files."]
FileOption = Annotated[str | None, "NAME", "The name of the two files, without .pem and .key."]
DaysOption = Annotated[int, typer.Option(min=1, max=3_650), "The lifetime of the certificate, in days."]
KEYS = Path("tls")


def create_ca(directory: DirOption = KEYS) -> None:
    """Make an authority: ca.pem, which nodes and clients trust, and ca.key, which signs their certificates.

    Example: stream-node cert create ca --dir ./tls
    """
    from stream_node.care.certificates import create_authority

    certificate = create_authority(directory)
    text = f"{certificate} is the authority; keep {certificate.with_suffix('.key')} secret"
    say({"certificate": str(certificate), "key": str(certificate.with_suffix(".key"))}, text)


def create_server(
    host: Annotated[
        list[str], typer.Argument(), "HOST...", "The DNS names and IP addresses by which clients call the node."
    ],
    directory: DirOption = KEYS,
    file: FileOption = None,
    days: DaysOption = 365,
) -> None:
    """Make the certificate and the key of a node.

    Example: stream-node cert create server localhost 127.0.0.1 --dir ./tls --file node
    """
    from stream_node.care.certificates import create_certificate

    certificate = create_certificate(directory, host[0], hosts=host, days=days, file=file)
    key = certificate.with_suffix(".key")
    text = f"for the node: tls_certificate = {str(certificate)!r}, tls_certificate_key = {str(key)!r}"
    say({"certificate": str(certificate), "key": str(key), "hosts": host}, text)


def create_client(
    name: Annotated[str, typer.Argument(), "The name of the client. Its identity is certificate:NAME."],
    directory: DirOption = KEYS,
    file: FileOption = None,
    days: DaysOption = 365,
) -> None:
    """Make the certificate and the key of a client.

    Earlier certificates of the client stay valid. The command names those in the same folder.

    Example: stream-node cert create client alice --dir ./tls
    """
    from stream_node.care.certificates import create_certificate, fingerprint_of, others_of_client

    certificate = create_certificate(directory, name, days=days, file=file)
    key = certificate.with_suffix(".key")
    others = others_of_client(certificate)
    text = f"for the client: --tls-ca {directory / 'ca.pem'} --tls-cert {certificate} --tls-key {key}"
    report = {"certificate": str(certificate), "key": str(key), "identity": f"certificate:{name}"}
    say({**report, "others": [str(each) for each in others]}, text)
    for each in [] if AS_JSON.get() else others:
        tell(
            f"{each} is valid for certificate:{name}, too; to revoke it, write its fingerprint into the file of "
            f"tls_revoked: {fingerprint_of(each)}"
        )


def show(file: Annotated[Path, typer.Argument(), "A PEM file with a certificate."]) -> None:
    """Print the name, the end and the fingerprint of a certificate. A line with the fingerprint in the file of
    `tls_revoked` revokes the certificate.

    Example: stream-node cert show ./tls/alice.pem
    """
    from stream_node.care.certificates import fingerprint_of, read_certificate

    certificate = read_certificate(file)
    subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
    ends = certificate.not_valid_after_utc.isoformat()
    report = {"subject": subject, "issuer": issuer, "not_after": ends, "fingerprint": fingerprint_of(file)}
    lines = [f"subject      {subject}", f"issuer       {issuer}", f"valid until  {ends}"]
    say(report, [*lines, f"fingerprint  {report['fingerprint']}"])
