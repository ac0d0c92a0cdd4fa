"""Goal: `cert create` makes certificates with which a node and its clients speak mutual TLS at once.

Method: the commands, then a node and a client with the files; `openssl verify` as another reader of certificates.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stream_client import Tls, connect
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.certificates import fingerprint
from tests.support.served import served


@pytest.fixture
def folder(command: CommandLine, tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    command("cert", "create", "ca", "--dir", folder, "--json").read(promised.AuthorityMade)
    hosts = ("localhost", "127.0.0.1", "::1")
    made = command("cert", "create", "server", *hosts, "--dir", folder, "--file", "node", "--json").read(
        promised.ServerMade
    )
    assert (made.certificate, made.hosts) == (str(folder / "node.pem"), list(hosts))
    client = command("cert", "create", "client", "alice", "--dir", folder, "--json").read(promised.ClientMade)
    assert client.identity == "certificate:alice"
    return folder


async def test_a_node_and_a_client_speak_with_what_was_made(folder: Path, tmp_path: Path) -> None:
    given = {"tls_certificate": "node.pem", "tls_certificate_key": "node.key", "tls_client_ca": "ca.pem"}
    paths = {name: str(folder / value) for name, value in given.items()}
    tls = Tls(str(folder / "ca.pem"), str(folder / "alice.pem"), str(folder / "alice.key"))
    async with served(tmp_path / "data", **paths) as running, connect(running.address, tls=tls) as client:
        assert await (await client.create("orders")).push(b"x") == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
def test_openssl_accepts_the_chain_strictly(folder: Path) -> None:
    for name, purpose in (("node", "sslserver"), ("node", "sslclient"), ("alice", "sslclient")):
        call = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(folder / "ca.pem")]
        subprocess.run([*call, str(folder / f"{name}.pem")], check=True, capture_output=True)
    refused = subprocess.run(
        ["openssl", "verify", "-purpose", "sslserver", "-CAfile", folder / "ca.pem", folder / "alice.pem"],
        check=False,
        capture_output=True,
    )
    assert refused.returncode != 0


def test_keys_are_for_their_owner_only_and_nothing_is_overwritten(command: CommandLine, folder: Path) -> None:
    for name in ("ca", "node", "alice"):
        assert (folder / f"{name}.key").stat().st_mode & 0o777 == 0o600
    before = (folder / "alice.key").read_bytes()
    assert "exists already" in command("cert", "create", "client", "alice", "--dir", folder).failed(1)
    assert (folder / "alice.key").read_bytes() == before


def test_show_prints_the_fingerprint_that_revokes(command: CommandLine, folder: Path) -> None:
    shown = command("cert", "show", folder / "alice.pem", "--json").read(promised.CertificateShown)
    assert shown.fingerprint == fingerprint(str(folder / "alice.pem"))
    assert shown.subject == "CN=alice"
    lines = command("cert", "show", folder / "alice.pem").text.splitlines()
    assert [line.split()[0] for line in lines] == ["subject", "issuer", "valid", "fingerprint"]
    assert lines[3] == f"fingerprint  {shown.fingerprint}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "client", "bob", "--dir", "none"), "none has no authority; make one with"),
        (("create", "client", "../bob"), "cannot name a file"),
        (("create", "client", "b" * 65), "cannot be a common name"),
        (("show", "none.pem"), "cannot read none.pem"),
        (("show", "ca.key"), "ca.key has no PEM certificate"),
    ],
)
def test_mistakes_are_one_line(
    command: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(folder)
    if "--dir" not in arguments and arguments[0] == "create":
        arguments = (*arguments, "--dir", ".")
    assert said in command("cert", *arguments).failed(1)


def test_an_earlier_certificate_of_the_same_client_is_named(command: CommandLine, tmp_path: Path) -> None:
    """A lost key is not revoked by making another one."""
    command("cert", "create", "ca", "--dir", tmp_path)
    command("cert", "create", "client", "bob", "--dir", tmp_path)
    assert command("cert", "create", "client", "alice", "--dir", tmp_path).stderr == ""
    second = command("cert", "create", "client", "alice", "--dir", tmp_path, "--file", "alice-2")
    fingerprint = command("cert", "show", tmp_path / "alice.pem", "--json").read(promised.CertificateShown).fingerprint
    (line,) = second.stderr.splitlines()
    assert str(tmp_path / "alice.pem") in line
    assert fingerprint in line
    third = command("cert", "create", "client", "alice", "--dir", tmp_path, "--file", "alice-3", "--json")
    assert third.read(promised.ClientMade).others == [str(tmp_path / "alice-2.pem"), str(tmp_path / "alice.pem")]
