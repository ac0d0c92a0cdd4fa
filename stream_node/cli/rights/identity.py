"""The commands `stream-node cert` (certificates for TLS), `identity` and `trust` (of secure channels)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_node.cli.options import ANY_DIRECTORY, RUNS, DirectoryOptions
from stream_node.cli.output import AS_JSON, columns, counted, say, tell
from stream_node.cli.values import UsageError

if TYPE_CHECKING or RUNS:
    from ockam.identity.channel.identity_file import create_identity, load_identity
    from ockam.identity.channel.identity_history import format_identifier, parse_identifier
    from ockam.identity.channel.trust_list import change_trusted, load_trusted
    from stream_node.care.certificates import (
        create_authority,
        create_certificate,
        fingerprint_of,
        others_of_client,
        read_certificate,
    )
    from stream_node.node.identity.channel_services import node_identity_file, trust_file, user_identity_file

FileOption = Annotated[Path | None, "FILE", "The file of the identity. Without it: that of your user."]
OfNodeOption = Annotated[str | None, "A node's data directory: the identity of this node."]
IdentifierArgument = Annotated[str, typer.Argument(), "The identifier: I and 64 hexadecimal digits."]


def create(file: FileOption = None, data_dir: OfNodeOption = None) -> None:
    """Make a new identity and print its identifier. Only you can read its file, which has secret keys.

    Example: stream-node identity create
    """
    _say(file, data_dir, create_identity)


def show(file: FileOption = None, data_dir: OfNodeOption = None) -> None:
    """Print the identifier of an identity, which others need to trust it or to recognise it.

    Example: stream-node identity show --data-dir ./data
    """
    _say(file, data_dir, load_identity)


def add(
    identifier: IdentifierArgument,
    name: Annotated[str, "A name for people, for example whose it is."] = "",
    directory: DirectoryOptions = ANY_DIRECTORY,
) -> None:
    """Trust an identity: it may open secure channels to the node. A running node notices this within a second.

    Example: stream-node trust add I10253701dafcc65a621ad9fb4097cb327c541de78827713320b749cbbdbd2e9f --name alice
    """
    key, file = parse_identifier(identifier), _trust_file(directory)
    if any(character in name for character in "\r\n"):
        raise UsageError("a name has one line")
    is_new = key not in change_trusted(file, lambda trusted: {**trusted, key: name or trusted.get(key, "")})
    text = f"{identifier} is trusted" if is_new else f"{identifier} was trusted already"
    say({"identifier": identifier, "name": name, "added": is_new, "file": str(file)}, text)


def list_all(directory: DirectoryOptions = ANY_DIRECTORY) -> None:
    """List the identities that may open secure channels to the node.

    Example: stream-node trust list --data-dir ./data
    """
    settings = directory.load()
    found = {format_identifier(key): name for key, name in load_trusted(_trust_file(directory)).items()}
    rows = [{"identifier": each, "name": name, "from": "file"} for each, name in found.items()]
    others = (each for each in settings.secure_channel_trusted if each not in found)
    rows += [{"identifier": each, "name": "", "from": "settings"} for each in others]
    anyone = settings.secure_channel_trust_anyone
    text = list(columns([tuple(rows[0]), *(tuple(row.values()) for row in rows)])) if rows else []
    if not rows and not anyone:
        text.append("nobody is trusted, so nobody can open a secure channel")
    if anyone:
        text.append("everybody is trusted: secure_channel_trust_anyone is set")
    say({"trusted": rows, "anyone": anyone}, text)


def remove(identifier: IdentifierArgument, directory: DirectoryOptions = ANY_DIRECTORY) -> None:
    """Stop trusting an identity. A running node ends its channels within a second.

    Example: stream-node trust remove I10253701dafcc65a621ad9fb4097cb327c541de78827713320b749cbbdbd2e9f
    """
    key, file = parse_identifier(identifier), _trust_file(directory)
    if identifier in directory.load().secure_channel_trusted:
        raise UsageError(f"{identifier} is trusted by the setting secure_channel_trusted; take it out there first")
    before = change_trusted(file, lambda trusted: {each: name for each, name in trusted.items() if each != key})
    was_there = key in before
    left = counted(len(before) - was_there, "trusted identity").replace("identitys", "identities")
    text = f"{identifier} is not trusted any more" if was_there else f"{identifier} was not trusted"
    say({"identifier": identifier, "removed": was_there, "file": str(file)}, f"{text}; {left} left")


def _say(file: Path | None, data_dir: str | None, get: Callable[[Path, int], object]) -> None:
    if file is not None and data_dir is not None:
        raise UsageError("--file and --data-dir are two identities; leave one out")
    chosen = file or (user_identity_file() if data_dir is None else node_identity_file(data_dir))
    identity = get(chosen, int(time.time()))
    say({"identifier": str(identity), "file": str(chosen)}, str(identity))


def _trust_file(directory: DirectoryOptions) -> Path:
    return trust_file(directory.load().data_dir)


DirOption = Annotated[Path, typer.Option("--dir"), "The folder of the authority and of the new files."]
CertificateNameOption = Annotated[str | None, "NAME", "The name of the two files, without .pem and .key."]
DaysOption = Annotated[int, typer.Option(min=1, max=3_650), "The lifetime of the certificate, in days."]
KEYS = Path("tls")


def create_ca(directory: DirOption = KEYS) -> None:
    """Make an authority: ca.pem, which nodes and clients trust, and ca.key, which signs their certificates.

    Example: stream-node cert create ca --dir ./tls
    """
    certificate = create_authority(directory)
    key = certificate.with_suffix(".key")
    say({"certificate": str(certificate), "key": str(key)}, f"{certificate} is the authority; keep {key} secret")


def create_server(
    host: Annotated[
        list[str], typer.Argument(), "HOST...", "The DNS names and IP addresses by which clients call the node."
    ],
    directory: DirOption = KEYS,
    file: CertificateNameOption = None,
    days: DaysOption = 365,
) -> None:
    """Make the certificate and the key of a node.

    Example: stream-node cert create server localhost 127.0.0.1 --dir ./tls --file node
    """
    certificate = create_certificate(directory, host[0], hosts=host, days=days, file=file)
    key = certificate.with_suffix(".key")
    text = f"for the node: tls_certificate = {str(certificate)!r}, tls_certificate_key = {str(key)!r}"
    say({"certificate": str(certificate), "key": str(key), "hosts": host}, text)


def create_client(
    name: Annotated[str, typer.Argument(), "The name of the client. Its identity is certificate:NAME."],
    directory: DirOption = KEYS,
    file: CertificateNameOption = None,
    days: DaysOption = 365,
) -> None:
    """Make the certificate and the key of a client.

    Earlier certificates of the client stay valid. The command names those in the same folder.

    Example: stream-node cert create client alice --dir ./tls
    """
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


def show_certificate(file: Annotated[Path, typer.Argument(), "A PEM file with a certificate."]) -> None:
    """Print the name, the end and the fingerprint of a certificate. A line with the fingerprint in the file of
    `tls_revoked` revokes the certificate.

    Example: stream-node cert show ./tls/alice.pem
    """
    certificate = read_certificate(file)
    subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
    ends = certificate.not_valid_after_utc.isoformat()
    report = {"subject": subject, "issuer": issuer, "not_after": ends, "fingerprint": fingerprint_of(file)}
    titles = ("subject", "issuer", "valid until", "fingerprint")
    say(report, columns(list(zip(titles, report.values(), strict=True))))
