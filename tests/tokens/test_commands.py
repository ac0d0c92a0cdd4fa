"""Goal: tokens by command on a running node: made, used by every way, listed, revoked; and no secret is ever shown.

Method: the command line inside the test, against the installed command as a node whose rules the commands write.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ockam.identity.rules.rule_file import load_rules
from ockam.identity.token import TOKEN
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.tokens.token_node import UNKNOWN

COMMANDS = [
    ("push", "orders", "--data", "a"),
    ("pull", "orders"),
    ("block", "status"),
    ("block", "backfill", "status"),
]
"""One command for each way in which commands connect."""


class Place:
    """A node, its data directory and its settings file, with the options that name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rules = folder / "access.toml"
        self.settings = folder / "node.toml"
        self.data = folder / "data"
        self.rules.write_text("")
        self.settings.write_text(f"access_rules = '{self.rules}'\ndata_dir = '{self.data}'\n")
        self.log = folder / "node.log"
        arguments = ("--config", str(self.settings), "--log-level", "debug")
        self.node = NodeProcess(self.data, arguments=arguments, log_file=self.log)

    @property
    def config(self) -> tuple[str, str]:
        return "--config", str(self.settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("node"))
    with made.node:
        yield made
        assert made.node.stop() == 0


def until(condition: object, seconds: float = 30.0) -> None:
    """Asks a function again and again until it says yes. A running node takes changed files within a second."""
    assert callable(condition)
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.2)


def test_a_token_is_made_used_listed_and_revoked(
    command: CommandLine, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command works with the token by file, by variable and by context, and not without it."""
    file = tmp_path / "spark.token"
    allow = ("--allow", "all:")
    made = command("token", "create", "spark", *allow, "--expires", "90d", "--file", file, *place.config, "--json")
    created = made.read(promised.TokenCreated)
    assert (created.name, created.state, created.rules) == ("spark", "valid", ["token spark may all"])
    assert created.token is msgspec.UNSET, "the token is in the file only"
    text = file.read_text().strip()
    assert TOKEN.fullmatch(text)
    assert file.stat().st_mode & 0o777 == 0o600
    at = ("--node", place.node.address)
    until(lambda: command("stream", "list", *at, "--token-file", file).code == 0)
    for arguments in COMMANDS:
        done = command(*arguments, *at, "--token-file", file)
        assert done.code == 0, (arguments, done)
        assert text not in done.text + done.stderr
    assert "access denied" in command("push", "orders", "--data", "a", *at).failed(1)
    monkeypatch.setenv("STREAM_NODE_TOKEN", text)
    assert command("push", "orders", "--data", "b", *at).code == 0
    assert command("context", "add", "kept", place.node.address).code == 0
    monkeypatch.delenv("STREAM_NODE_TOKEN")
    assert command("pull", "orders").text == "a\nb\n"
    shown = command("context", "list").text + command("context", "list", "--json").text
    assert "token" in shown
    assert text[6:] not in shown
    kept = [each for each in (tmp_path / "config").rglob("token-*")]
    assert [each.stat().st_mode & 0o777 for each in kept] == [0o600]
    assert text[6:] not in "".join(each.read_text() for each in (tmp_path / "config").rglob("*.json"))

    listed = command("token", "list", *place.config, "--json").read(promised.TokensListed)
    assert [(each.name, each.state) for each in listed.tokens] == [("spark", "valid")]
    assert command("token", "list", *place.config).text.splitlines()[1].split()[:2] == ["spark", "valid"]
    revoked = command("token", "revoke", "spark", *place.config, "--json").read(promised.TokenRevoked)
    assert (revoked.state, revoked.rules_removed) == ("revoked", ["token spark may all"])
    assert not load_rules(place.rules).rules
    until(lambda: command("stream", "list").code != 0)
    assert "the token spark is revoked; ask the operator" in command("stream", "list").failed(1)
    assert command("token", "list", *place.config).text == "no tokens\n"
    assert "revoked" in command("token", "list", "--all", *place.config).text
    assert command("context", "remove", "kept").code == 0
    assert not list((tmp_path / "config").rglob("token-*"))
    # A context that is replaced takes its stored token along.
    with monkeypatch.context() as variables:
        variables.setenv("STREAM_NODE_TOKEN", text)
        command("context", "add", "kept", place.node.address)
    assert len(list((tmp_path / "config").rglob("token-*"))) == 1
    assert command("context", "add", "kept", place.node.address, "--replace").code == 0
    assert not list((tmp_path / "config").rglob("token-*"))


def test_a_token_is_shown_once_on_stdout(command: CommandLine, place: Place) -> None:
    """The output is the token and nothing else, so that it can go into a file or a store of secrets."""
    done = command("token", "create", "once", "--data-dir", place.data)
    assert done.code == 0
    assert TOKEN.fullmatch(done.text.strip())
    assert "shown this once only" in done.stderr
    assert done.text.strip()[6:] not in (place.data / "tokens.json").read_text()
    again = command("token", "create", "once", "--data-dir", place.data)
    assert "there is a token 'once' already" in again.failed(2)
    other = command("token", "create", "once", "--replace", "--data-dir", place.data)
    assert other.code == 0
    assert other.text != done.text


def test_rights_become_rules_that_the_rule_commands_know(command: CommandLine, place: Place) -> None:
    """One rule for each right, with all its prefixes; an interrupted command that wrote them is no obstacle."""
    allow = ("--allow", "read:orders", "--allow", "read:parts", "--allow", "index:")
    command(
        "rule",
        "add",
        "token two may read",
        "--who",
        "token:two",
        "--may",
        "read",
        "--on",
        "orders",
        "--on",
        "parts",
        *place.config,
    )
    made = command("token", "create", "two", *allow, *place.config, "--json").read(promised.TokenCreated)
    assert made.rules == ["token two may read", "token two may index"]
    for name, code in (("orders-1", 0), ("parts", 0), ("other", 1)):
        assert command("rule", "check", "token:two", "read", name, *place.config).code == code
    assert command("rule", "check", "token:two", "write", "orders", *place.config).code == 1
    # A rule of another content under such a name is not taken for one's own.
    command("rule", "add", "token three may read", "--who", "*", "--may", "read", "--on", "x", *place.config)
    assert "another rule" in command("token", "create", "three", "--allow", "read:y", *place.config).failed(2)
    assert "three" not in command("token", "list", *place.config).text
    command("rule", "remove", "token three may read", *place.config)
    # Rules that somebody else wrote about a token stay when it is revoked.
    command("rule", "add", "own", "--who", "token:two", "--may", "write", "--on", "x", *place.config)
    command("token", "revoke", "two", *place.config)
    left = [rule.name for rule in load_rules(place.rules).rules if "token:two" in rule.who]
    assert left == ["own"]
    command("rule", "remove", "own", *place.config)


def test_a_replaced_token_has_the_new_rights_and_no_others(command: CommandLine, place: Place, tmp_path: Path) -> None:
    """The rules of the file are compared, and the running node is asked with the new token. Without --allow only the
    secret changes."""

    def create(*arguments: str) -> str:
        return command("token", "create", "turn", *arguments, *place.config).text.strip()

    def rights() -> list[tuple[str, tuple[str, ...]]]:
        return [(rule.name, rule.on) for rule in load_rules(place.rules).rules if rule.who == ("token:turn",)]

    create("--allow", "write:orders", "--allow", "read:orders", "--allow", "create:")
    create("--replace")
    assert [name for name, _ in rights()] == ["token turn may write", "token turn may read", "token turn may create"]
    text = create("--replace", "--allow", "read:parts", "--allow", "index:x")
    assert rights() == [("token turn may read", ("parts",)), ("token turn may index", ("x",))]
    (tmp_path / "turn.token").write_text(text)
    at = ("--node", place.node.address, "--token-file", tmp_path / "turn.token")
    until(lambda: "access denied" in command("push", "orders", "--data", "a", *at).stderr)
    assert command("token", "revoke", "turn", *place.config).code == 0
    assert rights() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "a b"), "cannot name a token"),
        (("create", "n", "--allow", "read"), "is not RIGHT:PREFIX"),
        (("create", "n", "--allow", "reed:x"), "'reed' is no right"),
        (("create", "n", "--expires", "soon"), "is no time to come"),
        (("create", "n", "--expires", "2020-01-01Z"), "is over"),
        (("create", "n", "--expires", "2090-01-01"), "has no time zone"),
        (("revoke", "nobody"), "there is no token 'nobody'"),
    ],
)
def test_mistakes_are_said_and_change_nothing(
    command: CommandLine, place: Place, arguments: tuple[str, ...], said: str
) -> None:
    rules = place.rules.read_text()
    before = (place.data / "tokens.json").read_bytes() if (place.data / "tokens.json").exists() else None
    assert said in command("token", *arguments, *place.config).failed(2)
    assert (place.data / "tokens.json").exists() == (before is not None)
    assert before is None or (place.data / "tokens.json").read_bytes() == before
    assert place.rules.read_text() == rules


def test_a_right_without_a_file_of_rules_is_refused(command: CommandLine, tmp_path: Path) -> None:
    data = ("--data-dir", tmp_path / "other")
    assert "no file of rules" in command("token", "create", "n", "--allow", "read:x", *data).failed(2)
    assert not (tmp_path / "other").exists()


def test_an_existing_file_is_not_overwritten(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("precious")
    done = command("token", "create", "n", "--file", tmp_path / "x", "--data-dir", tmp_path / "other")
    assert done.code == 1
    assert (tmp_path / "x").read_text() == "precious"
    assert command("token", "list", "--data-dir", tmp_path / "other").text == "no tokens\n"


@pytest.mark.parametrize("way", ["file", "variable"])
def test_what_is_no_token_is_wrong_usage(
    command: CommandLine, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The text that is no token may be another secret, so no error shows it."""
    (tmp_path / "bad").write_text("hunter2")
    given = ("--token-file", str(tmp_path / "bad")) if way == "file" else ()
    if way == "variable":
        monkeypatch.setenv("STREAM_NODE_TOKEN", "hunter2")
    line = command("stream", "list", "--node", place.node.address, *given).failed(2)
    assert "is no token" in line
    assert "hunter2" not in line
    assert "is no token" in command("context", "add", "x", "127.0.0.1:4000", *given).failed(2)
    assert "no contexts" in command("context", "list").text


def test_no_secret_is_in_logs_settings_or_statistics(
    command: CommandLine, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right and a wrong token are used at the level `debug`; then everything that the node wrote, and what the
    commands about it print, is searched for both."""
    text = command("token", "create", "secret", *place.config).text.strip()
    at = ("--node", place.node.address)
    monkeypatch.setenv("STREAM_NODE_TOKEN", text)
    said = ""
    while "access denied" not in said:
        # The node takes the new token within a second; then it has no right, since no rule names it.
        assert said.count("\n") < 100
        said += command("stream", "list", *at).stderr
    monkeypatch.setenv("STREAM_NODE_TOKEN", UNKNOWN)
    for arguments in (("stream", "list", *at), ("doctor", *place.config), ("config", "show", *place.config)):
        done = command(*arguments)
        said += done.text + done.stderr
    assert "token" in said
    written = b"".join(each.read_bytes() for each in place.folder.rglob("*") if each.is_file()) + said.encode()
    assert b"token_refused" in written
    for secret in (text, text.removeprefix("sntok_"), UNKNOWN.removeprefix("sntok_")):
        assert secret.encode() not in written
    assert not re.search(rb"sntok_[0-9a-f]{8}", written)


def test_a_revocation_says_what_became_of_the_rules(command: CommandLine, place: Place, tmp_path: Path) -> None:
    """The token is revoked first, and only then the rules are looked at, so that no mistake in them keeps it valid."""
    for name in ("one", "two", "three"):
        command("token", "create", name, "--allow", "read:x", *place.config)
    tokens = ["--data-dir", str(place.data)]
    missing = tmp_path / "missing.toml"
    assert f"there is no file {missing}" in command("token", "revoke", "one", "--rules", missing, *tokens).failed(2)
    assert "one valid" in " ".join(command("token", "list", *tokens).text.split())
    done = command("token", "revoke", "one", *tokens)
    assert (done.code, "no file of rules is known" in done.stderr) == (0, True)
    shown = command("token", "revoke", "two", *place.config, "--json").read(promised.TokenRevoked)
    assert (shown.rules_file, shown.rules_removed) == (str(place.rules), ["token two may read"])
    place.rules.write_text("no TOML")
    error = command("token", "revoke", "three", *place.config).failed(2)
    assert error.startswith("stream-node: the token three is revoked, but its rules are still there: ")
    assert not {"one", "two", "three"} & set(command("token", "list", *tokens).text.split())
