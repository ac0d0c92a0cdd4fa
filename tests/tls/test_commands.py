"""Goal: every command that talks to a node does so over mutual TLS: by options, by variables and by contexts.

Method: the command line inside the test, against the installed command as a node that demands certificates.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess
from tests.cli.chains.test_cardinal import batch
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.tls.keys import Keys

COMMANDS = [
    ("stream", "create", "orders"),
    ("push", "orders", "--data", "a"),
    ("pull", "orders"),
    ("consume", "orders", "--client", "me"),
    ("stream", "list"),
    ("index", "get", "orders", "--client", "me"),
    ("block", "status"),
    ("block", "backfill", "status"),
]


def options(keys: Keys) -> tuple[str, ...]:
    certificate, key = keys.alice
    return "--tls-ca", keys.ca, "--tls-cert", certificate, "--tls-key", key


def test_commands_work_with_the_options(command: CommandLine, keys: Keys, node: NodeProcess) -> None:
    for arguments in COMMANDS:
        done = command(*arguments, "--node", node.address, *options(keys))
        assert done.code == 0, (arguments, done)


def test_cardinal_commands_work_with_the_options(
    command: CommandLine, keys: Keys, node: NodeProcess, tmp_path: Path
) -> None:
    """Blocks go there and come back; without a certificate, both commands say what to give."""
    application, blocks = tmp_path / "mine.toml", tmp_path / "blocks.json"
    application.write_text('default_topic = "cardinal over tls"\n')
    blocks.write_text(json.dumps([batch(number, {f"a/{number}": "0x01"}) for number in (1, 2, 3)]))
    where = ("--application", application, "--node", node.address)
    start = ("--client", "cardinal over tls", "--start", f"0:0x{0:064x}:0")
    line = command("cardinal", "produce", blocks, *where, "--tls-ca", keys.ca).failed(3)
    assert "demands a client certificate" in line
    assert "it speaks TLS" in command("cardinal", "consume", *where, *start).failed(3)
    sent = command("cardinal", "produce", blocks, *where, *options(keys), "--json").read(promised.CardinalProduced)
    assert (sent.blocks, sent.sent) == (3, 3)
    rows = command("cardinal", "consume", *where, *start, *options(keys), "--json").read_lines(
        promised.CardinalConsumed
    )
    assert [each.number for row in rows for each in row.added] == [1, 2, 3]
    simulated = command("cardinal", "simulate", "--blocks", "30", "--node", node.address, *options(keys))
    assert simulated.code == 0, simulated


def test_the_bench_works_with_the_options(command: CommandLine, keys: Keys, node: NodeProcess) -> None:
    assert command("bench", "push", "--messages", "100", "--node", node.address, *options(keys)).code == 0


def test_an_export_works_with_the_options(command: CommandLine, keys: Keys, node: NodeProcess, tmp_path: Path) -> None:
    """Its first run exports what was pushed. Without a certificate, it says what to give."""
    for module in ("pyarrow", "aiosqlite"):
        pytest.importorskip(module, reason="the extra `export` is not installed")
    lake = tmp_path / "lake"
    given = ("--node", node.address, *options(keys))
    for number in range(3):
        assert command("push", "exported", "--data", f"message {number}", *given).code == 0
    run = ("export", "run", lake, "--pattern", "exported")
    assert "client certificate" in command.apart(*run, "--node", node.address, "--tls-ca", keys.ca).failed(3)
    done = command.apart(*run, *given, "--json")
    assert done.code == 0, done
    assert json.loads(done.text.splitlines()[-1])["rows"] == 3, done
    assert command.apart("export", "verify", lake).code == 0


def test_the_variables_say_the_same(
    command: CommandLine, keys: Keys, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = keys.alice
    for name, value in {"ADDRESS": node.address, "TLS_CA": keys.ca, "TLS_CERT": certificate, "TLS_KEY": key}.items():
        monkeypatch.setenv(f"STREAM_NODE_{name}", value)
    assert command("push", "variables", "--data", "a").code == 0
    assert command("pull", "variables").text == "a\n"


def test_a_context_keeps_the_files_and_is_listed_with_tls(
    command: CommandLine, keys: Keys, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths are kept as absolute ones, so the context works in every folder."""
    monkeypatch.chdir(keys.folder)
    relative = [Path(part).name if part.startswith("/") else part for part in options(keys)]
    assert command("context", "add", "office", node.address, *relative).code == 0
    monkeypatch.chdir("/")
    assert command("push", "contexts", "--data", "a").code == 0
    assert "tls" in command("context", "list").text
    (shown,) = json.loads(command("context", "list", "--json").stdout)["contexts"]
    assert shown["tls"] == {"ca": keys.ca, "certificate": keys.alice[0], "key": keys.alice[1]}


@pytest.mark.parametrize("arguments", [COMMANDS[1], COMMANDS[4], COMMANDS[6], COMMANDS[7]], ids=lambda each: each[0])
def test_a_command_without_a_certificate_says_what_to_give(
    command: CommandLine, keys: Keys, node: NodeProcess, arguments: tuple[str, ...]
) -> None:
    line = command(*arguments, "--node", node.address, "--tls-ca", keys.ca).failed(3)
    assert line.endswith(
        "the other side demands a client certificate; give this client its certificate and key: "
        "Tls(certificate=…, key=…), --tls-cert, --tls-key"
    )
    line = command(*arguments, "--node", node.address).failed(3)
    assert "it speaks TLS, and this client does not" in line
    line = command(*arguments, "--node", node.address, *options(keys), "--tls-server-name", "other.example").failed(3)
    assert "Hostname mismatch" in line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--tls-key", "x.key"), "--tls-key and --tls-server-name need --tls-ca or --tls-cert"),
        (("--tls-ca", "/none/ca.pem"), "cannot read /none/ca.pem: No such file or directory"),
    ],
)
def test_wrong_options_are_wrong_usage(command: CommandLine, given: tuple[str, ...], said: str) -> None:
    assert said in command("stream", "list", "--node", "127.0.0.1:1", *given).failed(2)
