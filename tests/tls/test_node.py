"""Goal: a whole node with TLS: its settings, its certificates read again under traffic, and only TLS 1.3.

Method: the server inside the test or the installed command, real files, streams of trio, and `openssl s_client`.
"""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from ockam.transport.wire_head import HEAD
from stream_node.node.config import ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeProcess
from tests.support.certificates import fingerprint
from tests.support.served import Served, served, wait_until
from tests.support.stream_peer import StreamPeer
from tests.tls.keys import HOSTS, Keys, settings


async def tls_peer(running: Served, context: ssl.SSLContext) -> tuple[StreamPeer, str]:
    """Returns a client that has said hello, and the fingerprint of the certificate that the node has shown."""
    stream = trio.SSLStream(await running.connect(), context, server_hostname="localhost")
    await stream.send_all(HEAD.hello)
    der = stream.getpeercert(binary_form=True)
    return StreamPeer(stream, HEAD), fingerprint(der)  # type: ignore[arg-type]


async def test_new_certificates_are_taken_while_a_client_pushes(own_keys: Keys, tmp_path: Path) -> None:
    """Rotation under traffic: pushes over an open connection go on, all at their indexes, while the files change four
    times; new connections get the new certificate. A certificate without its key is reported once, in one line, and
    changes nothing."""
    async with served(tmp_path / "data", **settings(own_keys)) as running:
        peer, first = await tls_peer(running, own_keys.context(own_keys.alice))
        route = await peer.create("orders")
        pushed = 0
        done = trio.Event()

        async def push() -> None:
            nonlocal pushed
            while not done.is_set():
                assert (await peer.push(route, b"%d" % pushed)).index == pushed
                pushed += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push)
            seen = {first}
            for _ in range(2):
                own_keys.authority.issue("node", hosts=HOSTS)
                running.server.reload()
                with trio.fail_after(10):
                    while (shown := (await tls_peer(running, own_keys.context(own_keys.alice)))[1]) in seen:
                        await trio.sleep(0.01)
                seen.add(shown)
            strange, _ = own_keys.strangers.issue("node", hosts=HOSTS)
            with structlog.testing.capture_logs() as logs:
                shutil.copy(strange, own_keys.server[0])
                await wait_until(lambda: any(line["event"] == "tls_files_refused" for line in logs))
                assert (await tls_peer(running, own_keys.context(own_keys.alice)))[1] == shown
                await trio.sleep(1.2)
            (line,) = [line for line in logs if line["event"] == "tls_files_refused"]
            assert "does not belong to the certificate" in line["reason"]
            own_keys.authority.issue("node", hosts=HOSTS)
            with trio.fail_after(10):
                while (await tls_peer(running, own_keys.context(own_keys.alice)))[1] in seen:
                    await trio.sleep(0.05)
            done.set()
        assert pushed > 10
        page = await peer.pull(route, 0, pushed)
        assert [message.data for message in page.messages] == [b"%d" % number for number in range(pushed)]


async def test_an_open_connection_of_a_revoked_certificate_ends_by_itself(own_keys: Keys, tmp_path: Path) -> None:
    """The file alone is written; no signal is sent. Another client's connection stays."""
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("")
    async with served(tmp_path / "data", **settings(own_keys, tls_revoked=str(revoked))) as running:
        peer, _ = await tls_peer(running, own_keys.context(own_keys.alice))
        other, _ = await tls_peer(running, own_keys.context(own_keys.authority.issue("bob")))
        await peer.create("orders")
        route = await other.create("payments")
        revoked.write_text(fingerprint(own_keys.alice[0]))
        await running.wait_closed_because("tls_revoked")
        assert (await other.push(route, b"x")).index == 0


def put_name_before(file: Path) -> None:
    file.write_text(f"# subject=O = Bäckerei\n{file.read_text()}", encoding="utf-8")


async def test_a_name_beside_the_certificate_of_an_authority_ends_no_node(own_keys: Keys, tmp_path: Path) -> None:
    """Goal: a file of authorities may have comments in UTF-8, as programs write them, also while the node runs.
    Method: a comment with an umlaut is put before the certificate; then a client connects."""
    async with served(tmp_path / "data", **settings(own_keys)) as running:
        with structlog.testing.capture_logs() as logs:
            put_name_before(Path(own_keys.ca))
            running.server.reload()
            await wait_until(lambda: any(line["event"] == "tls_files_read" for line in logs))
        peer, _ = await tls_peer(running, own_keys.context(own_keys.alice))
        assert await peer.create("orders")


def test_the_command_reads_its_certificates_again_on_sighup_and_goes_on(own_keys: Keys, tmp_path: Path) -> None:
    variables = {f"STREAM_NODE_{name.upper()}": value for name, value in settings(own_keys).items()}
    with NodeProcess(tmp_path / "data", environment=variables) as node:
        node.signal(signal.SIGHUP)
        log = node.log_file
        trio.run(wait_until, lambda: "tls_files_read" in log.read_text())
        assert node.stop() == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
async def test_openssl_sees_tls_1_3_only(keys: Keys, tmp_path: Path) -> None:
    """An implementation of the command line, not of Python: 1.3 with a client certificate works; 1.2 is refused."""
    async with served(tmp_path / "data", **settings(keys)) as running:
        certificate, key = keys.alice
        call = ["openssl", "s_client", "-connect", running.address, "-CAfile", keys.ca, "-verify_return_error"]
        call += ["-verify_hostname", "localhost", "-cert", certificate, "-key", key]

        async def openssl(*options: str) -> subprocess.CompletedProcess[bytes]:
            return await trio.run_process(
                [*call, *options], stdin=b"", capture_stdout=True, capture_stderr=True, check=False
            )

        def greet() -> bytes:
            with subprocess.Popen(
                [*call, "-quiet", "-tls1_3"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(HEAD.hello)
                answer = process.stdout.read(1)
                process.kill()
                return answer

        assert await trio.to_thread.run_sync(greet) == HEAD.hello
        shown = await openssl("-brief", "-tls1_3")
        assert b"Protocol version: TLSv1.3" in shown.stderr
        assert b"Verification: OK" in shown.stderr
        for version in ("-tls1_2", "-tls1_1"):
            refused = await openssl(version)
            assert refused.returncode != 0
            assert b"Protocol version: TLSv1" not in refused.stderr
        assert running.statistics().tcp.closed["tls_version"] >= 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls_certificate_key": "k.pem"}, "tls_certificate_key: has no effect without tls_certificate"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca: has no effect without tls_certificate"),
        ({"tls_certificate": "SERVER"}, "tls_certificate: needs tls_certificate_key"),
        ({"tls_certificate": "none.pem", "tls_certificate_key": "KEY"}, "cannot read none.pem: No such file"),
        ({"tls_certificate": "SERVER", "tls_certificate_key": "OTHER"}, "does not belong to the certificate"),
        ({"tls_certificate": "KEY", "tls_certificate_key": "KEY"}, "are not a PEM certificate and its PEM key"),
        (
            {"tls_certificate": "SERVER", "tls_certificate_key": "KEY", "tls_client_ca": "KEY"},
            "has no PEM certificates of authorities",
        ),
        (
            {"tls_certificate": "SERVER", "tls_certificate_key": "KEY", "tls_client_ca": "CA", "tls_revoked": "CA"},
            "line 1 is no SHA-256 fingerprint",
        ),
        (
            {"tls_certificate": "SERVER", "tls_certificate_key": "KEY", "tls_revoked": "CA"},
            "tls_revoked: has no effect without tls_client_ca",
        ),
        ({"tls_forward_plaintext": ["a:1"]}, "tls_forward_plaintext: has no effect without tls_forward_ca"),
        ({"tls_forward_ca": "KEY"}, "tls_forward_ca: "),
    ],
)
def test_wrong_settings_are_told_with_the_setting_and_the_file(keys: Keys, given: dict[str, Any], said: str) -> None:
    files = {"SERVER": keys.server[0], "KEY": keys.server[1], "OTHER": keys.alice[1], "CA": keys.ca}
    flags = {name: files.get(value, value) if isinstance(value, str) else value for name, value in given.items()}
    with pytest.raises(ConfigError) as raised:
        load_config(flags, environment={})
    assert any(said in mistake.replace(" on the command line", "") for mistake in raised.value.mistakes)


def test_an_encrypted_key_is_refused_and_nothing_asks_for_its_password(keys: Keys, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(keys.server[1]).read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    pem = serialization.Encoding.PEM
    made = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    encrypted.write_bytes(made)
    with pytest.raises(ConfigError, match="is encrypted; give a key without a password"):
        load_config({"tls_certificate": keys.server[0], "tls_certificate_key": str(encrypted)}, environment={})
