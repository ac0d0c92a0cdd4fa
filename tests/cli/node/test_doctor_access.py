"""Goal: `doctor` finds what keeps a node from starting, in what protects it. Method: the same settings are given to
`doctor` and to a real node, whose start is the judge.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ockam.identity.channel.identity_file import create_identity
from stream_node.care.doctor_access import (
    check_addresses,
    check_identities,
    check_private_files,
    check_rules,
    check_tokens,
    examine_access,
)
from stream_node.node.config import Config
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.tls.keys import HOSTS, Keys

GOOD_RULES = '[[rule]]\nname = "all"\nwho = ["anonymous"]\nmay = ["read"]\non = [""]\n'
TRUSTED = "secure_channel_trust_anyone = true\n"


class SetUp(NamedTuple):
    """make: writes the files of a node into a folder, and returns its settings as TOML.
    wrong: the checks that find something, and a part of what they say."""

    make: Callable[[Path], str]
    wrong: dict[str, str]


def nothing_special(folder: Path) -> str:
    return ""


def all_good(folder: Path) -> str:
    """TLS, rules, HTTP, tokens and an identity."""
    keys = Keys(folder)
    certificate, key = keys.authority.issue("node", hosts=HOSTS, ends_s=40 * 86_400)
    Path(key).chmod(0o600)
    (folder / "rules.toml").write_text(GOOD_RULES)
    (folder / "data").mkdir()
    (folder / "data" / "tokens.json").write_text('{"tokens": []}')
    (folder / "data" / "tokens.json").chmod(0o600)
    create_identity(folder / "data" / "identity.json", int(time.time()))
    return (
        f'http = ["127.0.0.1:0"]\ntls_certificate = "{certificate}"\ntls_certificate_key = "{key}"\n'
        f'access_rules = "{folder / "rules.toml"}"\n{TRUSTED}'
    )


def rules_missing(folder: Path) -> str:
    return f'access_rules = "{folder / "rules.toml"}"\n'


def rules_broken(folder: Path) -> str:
    (folder / "rules.toml").write_text(GOOD_RULES + 'may_not = ["fly"]\n')
    return rules_missing(folder)


def http_exposed(folder: Path) -> str:
    return 'http = ["0.0.0.0:0"]\n'


def audit_is_a_folder(folder: Path) -> str:
    (folder / "rules.toml").write_text(GOOD_RULES)
    return rules_missing(folder) + f'audit_log = "{folder}"\n'


def identity_damaged(folder: Path) -> str:
    (folder / "data").mkdir()
    (folder / "data" / "identity.json").write_text("{}")
    (folder / "data" / "identity.json").chmod(0o600)
    return TRUSTED


def identity_readable(folder: Path) -> str:
    (folder / "data").mkdir()
    create_identity(folder / "data" / "identity.json", int(time.time()))
    (folder / "data" / "identity.json").chmod(0o644)
    return TRUSTED


def address_of_another_machine(folder: Path) -> str:
    return "insecure = true\n"


SET_UPS = {
    "nothing_special": SetUp(nothing_special, {}),
    "all_good": SetUp(all_good, {}),
    "rules_missing": SetUp(rules_missing, {"rules": "rules.toml"}),
    "rules_broken": SetUp(rules_broken, {"rules": "fly"}),
    "http_exposed": SetUp(http_exposed, {"listen": "0.0.0.0:0 is reached from other machines"}),
    "audit_is_a_folder": SetUp(audit_is_a_folder, {"rules": "audit log"}),
    "identity_damaged": SetUp(identity_damaged, {"secure channel": "identity.json"}),
    "identity_readable": SetUp(identity_readable, {"secure channel": "chmod 600"}),
    "address_of_another_machine": SetUp(address_of_another_machine, {"addresses": "192.0.2.1:0"}),
}


LISTENS = {"address_of_another_machine": {"listen": "192.0.2.1:0"}}


def starts(folder: Path, listen: str = "127.0.0.1:0") -> bool:
    node = NodeProcess(folder / "data", listen=listen, arguments=["--config", str(folder / "node.toml")])
    try:
        with node:
            return True
    except NodeNotStarted:
        return False


@pytest.mark.parametrize("name", SET_UPS)
def test_doctor_finds_wrong_what_a_node_does_not_start_with(tmp_path: Path, name: str) -> None:
    make, wrong = SET_UPS[name]
    (tmp_path / "node.toml").write_text(make(tmp_path))
    config = load_config({"data_dir": str(tmp_path / "data")} | LISTENS.get(name, {}), file=tmp_path / "node.toml")
    before = sorted(tmp_path.rglob("*"))
    findings = examine_access(config)
    assert sorted(tmp_path.rglob("*")) == before
    found = {each.check: each.text for each in findings if each.status == "wrong"}
    assert found.keys() == wrong.keys()
    assert all(wrong[check] in found[check] for check in wrong)
    assert starts(tmp_path, **LISTENS.get(name, {})) == (not wrong)


def test_a_file_of_tokens_that_accepts_nobody_is_wrong(tmp_path: Path) -> None:
    """The node starts with it, since a mistake in a command must not stop a service, but no token is accepted."""
    config = Config(data_dir=str(tmp_path))
    (tmp_path / "tokens.json").write_text('{"tokens": [{"name": "spark"}]}')
    assert (check_tokens(config).status, "accepts no token" in check_tokens(config).text) == ("wrong", True)


def test_a_file_of_trusted_identities_that_trusts_nobody_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "trusted_identities").write_text("nobody\n")
    found = check_identities(Config(data_dir=str(tmp_path)))
    assert (found.status, "trusted_identities, line 1" in found.text) == ("wrong", True)


def test_no_trusted_identity_and_no_channels_are_fine(tmp_path: Path) -> None:
    assert check_identities(Config(data_dir=str(tmp_path))).text == "no identity is trusted, so no channel opens"
    assert check_identities(Config(data_dir=str(tmp_path), secure_channel=False)).text == "off"
    assert check_rules(Config()).status == "ok"


def test_files_with_secrets_that_others_may_read_are_a_warning(tmp_path: Path) -> None:
    key, token = tmp_path / "node.key", tmp_path / "token"
    for file, mode in ((key, 0o640), (token, 0o604), (tmp_path / "tokens.json", 0o600)):
        file.touch()
        file.chmod(mode)
    config = Config(
        data_dir=str(tmp_path), tls_certificate_key=str(key), forward_tokens=(f"node.example:4000={token}",)
    )
    found = check_private_files(config)
    assert (found.status, found.values) == ("warning", {"exposed": 2})
    for file in (key, token):
        assert str(file) in found.text
        os.chmod(file, 0o600)
    assert check_private_files(config).status == "ok"


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("setting", ["listen", "http"])
def test_an_address_in_use_is_found_unless_the_node_itself_uses_it(taken: str, setting: str) -> None:
    config = Config(listen=taken) if setting == "listen" else Config(listen="127.0.0.1:0", http=(taken,))
    found = check_addresses(config, is_running=False)
    assert (found.status, taken in found.text) == ("wrong", True)
    assert check_addresses(config, is_running=True).status == "ok"
    assert check_addresses(Config(listen="127.0.0.1:0"), is_running=False).status == "ok"
