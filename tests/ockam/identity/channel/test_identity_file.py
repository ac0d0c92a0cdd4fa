"""Goal: an identity's file is made once, is readable by its owner only, is renewed in time, and leaks no secret.

Method: real files; two makers at once; a clock that is a number.
"""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from ockam.identity.channel.errors import IdentityFileError, IdentityRefused
from ockam.identity.channel.identity_file import create_identity, ensure_identity, load_identity
from ockam.identity.channel.noise import public_bytes
from ockam.identity.channel.proof import ATTESTATION_S, DAY_S, IDENTITY_S, OwnIdentity, read_proof
from tests.ockam.identity.channel.samples import NOW_S, identity


def reason_of(file: Path, now_s: int = NOW_S) -> str:
    with pytest.raises(IdentityFileError) as refused:
        load_identity(file, now_s)
    assert str(file) in str(refused.value)
    return refused.value.reason


def test_an_identity_is_the_same_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "identity.json"
    made = create_identity(file, NOW_S)
    again = load_identity(file, NOW_S + 1)
    assert (str(again), again.proof) == (str(made), made.proof)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["identity.json"]


def test_an_identity_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    made = create_identity(file, NOW_S)
    with pytest.raises(IdentityFileError, match="exists already"):
        create_identity(file, NOW_S)
    assert str(ensure_identity(file, NOW_S)) == str(made)


def test_many_makers_at_once_have_one_identity(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    found: list[str] = []
    makers = [threading.Thread(target=lambda: found.append(str(ensure_identity(file, NOW_S)))) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(found) == 8
    assert set(found) == {str(load_identity(file, NOW_S))}


def test_an_attestation_that_ends_soon_is_renewed_with_the_same_identifier(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    made = create_identity(file, NOW_S)
    later_s = NOW_S + ATTESTATION_S - 10 * DAY_S
    renewed = load_identity(file, later_s)
    assert str(renewed) == str(made)
    assert renewed.proof != made.proof
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # The new attestation lasts, and is on disk.
    read_proof(renewed.proof, public_bytes(renewed.static), later_s + 100 * DAY_S)
    assert load_identity(file, later_s).proof == renewed.proof


def test_an_expired_attestation_is_renewed_and_an_expired_identity_refused(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    create_identity(file, NOW_S)
    load_identity(file, NOW_S + ATTESTATION_S + DAY_S)
    assert reason_of(file, NOW_S + IDENTITY_S + DAY_S) == "undecodable"


def test_the_last_attestation_ends_with_the_identity(tmp_path: Path) -> None:
    """Near the end of the identity nothing is gained by renewing, so the file is not written at every start."""
    file = tmp_path / "identity.json"
    create_identity(file, NOW_S)
    late_s = NOW_S + IDENTITY_S - 20 * DAY_S
    load_identity(file, late_s)
    before = file.stat().st_mtime_ns
    load_identity(file, late_s + DAY_S)
    assert file.stat().st_mtime_ns == before


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    assert reason_of(file) == "missing"
    create_identity(file, NOW_S)
    content = file.read_text()
    file.chmod(0o640)
    assert reason_of(file) == "permissions"
    file.chmod(0o600)
    for damaged in ("", content[: len(content) // 2], content.replace('"format": 1', '"format": 2')):
        file.write_text(damaged)
        assert reason_of(file) == "undecodable"


@pytest.mark.parametrize("part", ["signing_secret", "static_secret", "change_history", "attestation"])
def test_parts_of_two_identities_do_not_fit(tmp_path: Path, part: str) -> None:
    create_identity(tmp_path / "a", NOW_S)
    create_identity(tmp_path / "b", NOW_S)
    mixed = json.loads((tmp_path / "a").read_text())
    mixed[part] = json.loads((tmp_path / "b").read_text())[part]
    (tmp_path / "a").write_text(json.dumps(mixed))
    assert reason_of(tmp_path / "a") == "undecodable"


def test_no_text_has_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    own = create_identity(file, NOW_S)
    secrets = [own.secrets.signing_secret.hex(), own.secrets.static_secret.hex()]
    texts = [str(own), repr(own), repr(own.secrets), str(own.secrets), f"{own.peer}"]
    stored = json.loads(file.read_text())
    for damaged in (secrets[0], {**stored, "extra": secrets[0]}, {**stored, "signing_secret": secrets[0] + "x"}):
        file.write_text(json.dumps(damaged))
        with pytest.raises(IdentityFileError) as refused:
            load_identity(file, NOW_S)
        texts += [str(refused.value), repr(refused.value), repr(refused.value.__cause__)]
    for secret in secrets:
        raw = repr(bytes.fromhex(secret))
        assert not [text for text in texts if secret in text or raw in text]


def test_secrets_of_another_size_are_refused() -> None:
    import msgspec

    cut = msgspec.structs.replace(identity("x").secrets, static_secret=bytes(31))
    with pytest.raises(IdentityRefused, match="32 bytes"):
        OwnIdentity(cut, NOW_S)
