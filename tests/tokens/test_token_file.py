"""Goal: the file of the tokens has no secret, survives every interruption and every mistake, and never opens the node.

Method: the functions of the commands in this process and in others, some of which are killed in the middle of a change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from ockam.identity.authentication import TokenStatus
from ockam.identity.rules.tokens import (
    REVOKED_KEPT_S,
    TokenFileError,
    TokenRecord,
    Tokens,
    create_token,
    load_tokens,
    revoke_token,
)
from ockam.identity.token import TOKEN, Token, new_token
from stream_client import AccessDenied, AuthenticationFailed, connect
from tests.tokens.token_node import first_token, token_node

NOW_S = 1_700_000_000
CREATE = (
    "import sys; from pathlib import Path; from ockam.identity.rules import tokens; "
    "tokens.create_token(Path(sys.argv[1]), {}, 1)"
)


def test_the_file_has_the_hash_and_not_the_token(tmp_path: Path) -> None:
    """The hash is that of `sha256sum`, and only the owner can read the file."""
    file = tmp_path / "new" / "tokens.json"
    text, record = create_token(file, "spark", NOW_S, NOW_S + 60)
    assert TOKEN.fullmatch(text)
    assert record == TokenRecord("spark", hashlib.sha256(text.encode()).hexdigest(), NOW_S, NOW_S + 60)
    assert load_tokens(file) == (record,)
    assert text.removeprefix("sntok_") not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["tokens.json"]
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_tokens_differ_and_are_random() -> None:
    """No digit is fixed: over 200 tokens, each of the 64 places has at least 8 of the 16 digits."""
    made = [new_token() for _ in range(200)]
    assert len(set(made)) == 200
    assert all(len({text[6 + place] for text in made}) >= 8 for place in range(64))


def test_the_verdicts_of_a_life(tmp_path: Path) -> None:
    """A token is valid up to its last second, then expired; revoked is revoked, also after its end; a replaced token is
    revoked, and its name lives on."""
    file = tmp_path / "tokens.json"
    text, _ = create_token(file, "spark", NOW_S, NOW_S + 60)

    def state(text: str, now_s: float) -> TokenStatus:
        return Tokens(load_tokens(file)).judge(text, now_s).status

    assert state(text, NOW_S + 59.9) is TokenStatus.OK
    assert state(text, NOW_S + 60) is TokenStatus.EXPIRED
    with pytest.raises(TokenFileError, match="already; revoke it"):
        create_token(file, "spark", NOW_S)
    newer, _ = create_token(file, "spark", NOW_S + 1, replace=True)
    assert (state(text, NOW_S), state(newer, NOW_S)) == (TokenStatus.REVOKED, TokenStatus.OK)
    revoke_token(file, "spark", NOW_S + 2)
    assert (state(text, NOW_S + 100), state(newer, NOW_S + 100)) == (TokenStatus.REVOKED, TokenStatus.REVOKED)
    with pytest.raises(TokenFileError, match="there is no token 'spark'; there is none"):
        revoke_token(file, "spark", NOW_S)
    # What was revoked long ago is forgotten, and no longer told apart from a token that never was.
    create_token(file, "other", NOW_S + 2 + REVOKED_KEPT_S)
    assert state(newer, NOW_S + 100) is TokenStatus.UNKNOWN
    assert [each.name for each in load_tokens(file)] == ["other"]


def test_a_hash_that_begins_alike_is_another_token() -> None:
    """The look-up takes the first bytes of a hash; the decision takes all of them."""
    text = Token("sntok_" + "5" * 64).read()
    digest = hashlib.sha256(text.encode()).hexdigest()
    other = digest[:16] + ("0" * 48 if digest[16:] != "0" * 48 else "1" * 48)
    records = [TokenRecord("other", other, 1), TokenRecord("right", digest, 1)]
    assert str(Tokens(records).judge(text, 2).identity) == "token:right"
    assert Tokens(records[:1]).judge(text, 2).status is TokenStatus.UNKNOWN


@pytest.mark.parametrize("name", ["", "a b", "-x", "a" * 41, "a:b", "ä", 'q"', "x\n", "*"])
def test_names_that_rules_could_not_tell_apart_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokenFileError, match="cannot name a token"):
        create_token(tmp_path / "tokens.json", name, NOW_S)
    assert not list(tmp_path.iterdir())


def _file_of(**changed: Any) -> bytes:
    record = {"name": "a", "sha256": "0" * 64, "created_s": 1} | changed
    return msgspec.json.encode({"tokens": [record]})


GARBAGE = [
    b"",
    b"\xff\x00",
    b"[]",
    b"{",
    b"[" * 100_000,
    b'{"tokens": 1}',
    b'{"token": []}',
    _file_of(sha256="0" * 63),
    _file_of(sha256="G" * 64),
    _file_of(name="a b"),
    _file_of(created_s="x"),
    _file_of(rights="all"),
    msgspec.json.encode({"tokens": [{"name": "a", "sha256": c * 64, "created_s": 1} for c in "01"]}),
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    """Neither reading nor a command goes on with it, and the bytes stay for a person to look at."""
    file = tmp_path / "tokens.json"
    file.write_bytes(content)
    for act in (
        lambda: load_tokens(file),
        lambda: create_token(file, "b", NOW_S),
        lambda: revoke_token(file, "a", NOW_S),
    ):
        with pytest.raises(TokenFileError, match=r"tokens\.json"):
            act()
    assert file.read_bytes() == content


async def test_a_file_that_is_damaged_while_the_node_runs_has_no_token(tmp_path: Path) -> None:
    """The node closes the connections of tokens, and others go on; when the file is right again, so are its tokens."""
    token = first_token(tmp_path)
    async with token_node(tmp_path) as node:
        right = node.file.read_bytes()
        async with connect(node.address, token=token, reconnect=None), connect(node.address) as stranger:
            with pytest.raises(AccessDenied):
                await stranger.create("orders")
            node.file.write_bytes(b"garbage")
            await node.running.wait_closed_because("token_ended")
            with pytest.raises(AccessDenied):
                await stranger.create("orders")
            assert stranger.statistics().connections == 1
        assert await _kind(node.address, token) == "unknown"
        node.file.write_bytes(right)
        with trio.fail_after(30):
            while await _kind(node.address, token):
                await trio.sleep(0.05)


async def _kind(address: str, token: str) -> str:
    """Why a token is refused; empty if it is accepted."""
    try:
        async with connect(address, token=token):
            return ""
    except AuthenticationFailed as error:
        return error.kind


def test_many_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    """Four processes make a token each at the same time: all are in the file."""
    file = tmp_path / "tokens.json"
    processes = [
        subprocess.Popen([sys.executable, "-c", CREATE.format(f"'t{number}'"), str(file)]) for number in range(4)
    ]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert sorted(each.name for each in load_tokens(file)) == [f"t{number}" for number in range(4)]


KILLS = {
    "before the new file is synced": "files.os.fsync = die",
    "before the new file has its name": "files.rename_durably = die",
    "before the new name is synced": "files.sync = die",
}
DYING = """
import os, signal, sys
from pathlib import Path
import ockam.identity.rules.tokens, ockam.files.durable_files as files

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

# The folder is there, and its own syncs are not meant.
ockam.identity.rules.tokens.make_folder = lambda folder, **options: []
{kill}
ockam.identity.rules.tokens.create_token(Path(sys.argv[1]), "new", 1)
"""


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_command_changes_nothing_or_everything(tmp_path: Path, moment: str) -> None:
    """A process is killed at a step of the change: the file is the old or the new one, no lock stays, and the next
    command works and clears away what was left."""
    file = tmp_path / "tokens.json"
    create_token(file, "old", NOW_S)
    code = DYING.format(kill=KILLS[moment])
    done = subprocess.run([sys.executable, "-c", code, str(file)], timeout=60, check=False)
    assert done.returncode == -9
    names = [each.name for each in load_tokens(file)]
    assert names == (["old", "new"] if moment == "before the new name is synced" else ["old"])
    create_token(file, "later", NOW_S)
    assert [each.name for each in load_tokens(file)] == [*names, "later"]
    assert os.listdir(tmp_path) == ["tokens.json"]


def test_ten_thousand_tokens(tmp_path: Path) -> None:
    """The file of ten thousand tokens is read, and the right one is found among them."""
    texts = ["sntok_" + f"{number:064x}" for number in range(10_000)]
    records = [TokenRecord(f"t{n}", hashlib.sha256(text.encode()).hexdigest(), 1) for n, text in enumerate(texts)]
    file = tmp_path / "tokens.json"
    file.write_bytes(msgspec.json.encode({"tokens": records}))
    tokens = Tokens(load_tokens(file))
    assert len(tokens) == 10_000
    for number in (0, 5_000, 9_999):
        assert str(tokens.judge(texts[number], 2).identity) == f"token:t{number}"
    create_token(file, "one-more", NOW_S)
    assert len(load_tokens(file)) == 10_001


def test_a_token_in_place_of_its_file_is_not_shown(tmp_path: Path) -> None:
    """Goal: a token where the name of its file belongs is in no error. Method: each command that reads it."""
    text = new_token()
    (tmp_path / "node.toml").write_text(f'forward_tokens = ["127.0.0.1:9={text}"]\n')
    for command in (
        ("config", "check", "--config", "node.toml"),
        ("config", "show", "--config", "node.toml"),
        ("config", "show", "--config", "node.toml", "--json"),
        ("doctor", "--config", "node.toml", "--data-dir", "data"),
        ("serve", "--config", "node.toml", "--data-dir", "data"),
        ("stream", "list", "--node", "127.0.0.1:9", "--token-file", text),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "stream_node", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = done.stdout + done.stderr
        assert text[10:] not in said, command
        assert "sntok_…" in said.replace("\\u2026", "…"), command
