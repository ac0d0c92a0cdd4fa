"""Each check, shown a machine that is fit and one that is not; and the command on this one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from stream_node.care import doctor
from stream_node.care.doctor import (
    EARLIEST_US,
    LITESTREAM_FOLDER,
    OTHER_FILES,
    SYNC_COUNT,
    SYNC_TIME_S_MAX,
    check_clock,
    check_connections,
    check_database,
    check_directory,
    check_file_system,
    check_free,
    check_litestream,
    check_open_files,
    check_owner,
    check_sqlite,
    check_syncs,
    file_system,
    measure_syncs,
    nearest_directory,
)
from stream_node.care.doctor_access import check_listen, check_tls
from stream_node.node.config import Config
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.sqlite.database import FILE_NAME, Database
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.backups import NOW_US, store
from tests.tls.keys import HOSTS, Keys, settings

FLOOR = Config().free_disk_bytes_min
MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /srv rw - tmpfs tmpfs rw
31 22 0:27 / /srv/nfs rw,noatime shared:5 - nfs4 server:/export rw
32 22 0:28 / /mnt/with\\040space rw master:1 - fuse.sshfs there: rw
33 22 0:29 / /over rw - xfs /dev/vdb rw
34 33 0:30 / /over rw - overlay overlay rw
35 22 0:31 / /other rw - fuse.mergerfs pool rw
"""


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 40, 1), "warning"), ((3, 51, 2), "warning"), ((3, 51, 3), "ok"), ((3, 53, 0), "ok"), ((4, 0, 0), "ok")],
)
def test_sqlite_and_its_known_bugs(version: tuple[int, int, int], status: str) -> None:
    finding = check_sqlite(version)
    assert finding.status == status
    assert ("WAL-reset" in finding.text) == (status == "warning")


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 40, 1), "wrong"), ((3, 51, 2), "wrong"), ((3, 51, 3), "ok"), ((3, 53, 0), "ok"), ((4, 0, 0), "ok")],
)
def test_litestream_beside_a_sqlite_with_the_bug_is_wrong(
    tmp_path: Path, version: tuple[int, int, int], status: str
) -> None:
    without = check_litestream(tmp_path, version)
    assert (without.status, without.values["folder"]) == ("ok", None)
    (tmp_path / LITESTREAM_FOLDER).mkdir()
    beside = check_litestream(tmp_path, version)
    assert (beside.status, beside.values["folder"]) == (status, str(tmp_path / LITESTREAM_FOLDER))
    assert ("3.51.3 or newer" in beside.text) == (status == "wrong")


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/var/lib/x", "ext4", "ok"),
        ("/srv/data", "tmpfs", "warning"),
        ("/srv/nfs/data", "nfs4", "wrong"),
        ("/srv/nfsx", "tmpfs", "warning"),
        ("/mnt/with space/x", "fuse.sshfs", "wrong"),
        ("/over", "overlay", "warning"),
        ("/other/x", "fuse.mergerfs", "warning"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str, status: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind
    finding = check_file_system(Path(path), MOUNTS)
    assert (finding.status, finding.values) == (status, {"type": kind})


def test_a_system_that_does_not_tell_is_a_warning() -> None:
    assert check_file_system(Path("/"), None).status == "warning"
    assert check_file_system(Path("/"), "").status == "warning"


@pytest.mark.parametrize(
    ("times_s", "p50_ms", "p99_ms", "status"),
    [
        ([0.001] * 99 + [0.002], 1.0, 1.0, "ok"),
        ([0.001] * 50 + [0.3] * 50, 1.0, 300.0, "warning"),
        ([0.000001] * 100, 0.001, 0.001, "warning"),
        ([1.5], 1500.0, 1500.0, "warning"),
    ],
)
def test_times_of_syncs(times_s: list[float], p50_ms: float, p99_ms: float, status: str) -> None:
    finding = check_syncs(times_s)
    assert finding.status == status
    assert finding.values == {"p50_ms": p50_ms, "p99_ms": p99_ms, "syncs": len(times_s)}


def test_a_slow_disk_ends_the_measurement(tmp_path: Path) -> None:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 0.1
        return now_s

    assert 1 <= len(measure_syncs(tmp_path, clock)) <= SYNC_TIME_S_MAX / 0.2
    assert len(measure_syncs(tmp_path, lambda: 0.0)) == SYNC_COUNT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "free_files", "status"),
    [
        (100 * FLOOR, 10_000, "ok"),
        (2 * FLOOR, 10_000, "warning"),
        (FLOOR - 1, 10_000, "wrong"),
        (100 * FLOOR, 10, "wrong"),
    ],
)
def test_free_disk(free: int, free_files: int, status: str) -> None:
    assert check_free(free, free_files, 20_000, Config()).status == status


def test_a_file_system_without_a_number_of_files_has_room() -> None:
    assert check_free(100 * FLOOR, 0, 0, Config()).status == "ok"


def test_the_disk_of_a_node_with_a_database_server_refuses_no_push() -> None:
    assert check_free(FLOOR - 1, 10_000, 20_000, Config(database="postgresql://a/b")).status == "ok"


@pytest.mark.parametrize(
    ("now_us", "newest_us", "status"),
    [
        (NOW_US, None, "ok"),
        (NOW_US, NOW_US, "ok"),
        (NOW_US, NOW_US + 500_000, "ok"),
        (NOW_US, NOW_US + 5_000_000, "wrong"),
        (EARLIEST_US - 1, None, "wrong"),
    ],
)
def test_the_clock(now_us: int, newest_us: int | None, status: str) -> None:
    assert check_clock(now_us, newest_us).status == status


@pytest.mark.parametrize(
    ("limit", "status"),
    [(-1, "ok"), (100 + OTHER_FILES, "ok"), (99 + OTHER_FILES, "warning"), (OTHER_FILES, "wrong")],
)
def test_open_files(limit: int, status: str) -> None:
    assert check_open_files(limit, Config(connections_max=100)).status == status


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        (-1, {"most": 10_000, "of_one": 1_000, "http_most": 1_000, "http_of_one": 250}),
        (500 + OTHER_FILES, {"most": 500, "of_one": 500, "http_most": 1_000, "http_of_one": 250}),
    ],
)
def test_connections(limit: int, values: dict[str, int]) -> None:
    found = check_connections(limit, Config())
    assert found.values == values
    assert {int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", found.text)} == set(values.values())


@pytest.mark.parametrize(
    ("listen", "status"),
    [("127.0.0.1:1", "ok"), ("localhost:1", "ok"), ("[::1]:1", "ok"), ("0.0.0.0:1", "wrong"), ("node:1", "wrong")],
)
def test_listening_beyond_this_machine_is_a_warning(listen: str, status: str) -> None:
    assert check_listen(Config(listen=listen)).status == status


def test_whose_the_directory_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_owner(tmp_path).status == "ok"
    (tmp_path / LOCK_NAME).write_bytes(b"")
    assert check_owner(tmp_path).values == {"pid": None}
    (tmp_path / LOCK_NAME).write_bytes(b"%d\n" % os.getpid())
    assert (check_owner(tmp_path).status, check_owner(tmp_path).values) == ("ok", {"pid": os.getpid()})
    monkeypatch.setattr(doctor, "owner_lives", lambda directory: False)
    assert check_owner(tmp_path).status == "warning"


def test_whose_the_directory_is_that_a_node_has_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lock file as the program writes it, which has more than the process."""
    database = Database.open(tmp_path)
    assert check_owner(tmp_path).values == {"pid": os.getpid()}
    killed = shutil.copytree(tmp_path, tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "owner_lives", lambda directory: False)
        assert check_owner(killed).status == "warning"
    database.close()
    assert check_owner(tmp_path).values == {"pid": None}


def test_a_directory_that_is_not_there_is_made_by_the_node(tmp_path: Path) -> None:
    assert nearest_directory(tmp_path / "a" / "b") == tmp_path
    assert check_directory(tmp_path / "a", tmp_path).status == "ok"
    (tmp_path / "file").touch()
    assert check_directory(tmp_path / "file" / "a", nearest_directory(tmp_path / "file" / "a")).status == "wrong"
    assert check_directory(Path("/proc/1"), Path("/proc/1")).status == "wrong" or os.access("/proc/1", os.W_OK)


def test_a_database_is_opened(tmp_path: Path) -> None:
    assert check_database(tmp_path)[0].status == "ok"
    Database.open(tmp_path).close()
    assert check_database(tmp_path)[1] is None
    store(tmp_path, "words", [b"one"])
    finding, newest_us = check_database(tmp_path)
    assert (finding.status, newest_us) == ("ok", NOW_US)
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1_000)
    assert check_database(tmp_path)[0].status == "wrong"


@pytest.mark.parametrize(
    ("changed", "mode", "status", "text"),
    [
        ({}, "mutual", "ok", "on; clients must show a certificate; the node's certificate ends at "),
        ({"tls_client_required": False}, "optional", "ok", "on; clients may show a certificate"),
        ({"tls_client_ca": None}, "server", "ok", "on; clients prove nothing"),
        ({"tls_certificate_key": None}, "mutual", "wrong", "needs tls_certificate_key"),
    ],
)
def test_how_tls_stands(tmp_path: Path, changed: dict[str, Any], mode: str, status: str, text: str) -> None:
    keys = Keys(tmp_path)
    certificate, key = keys.authority.issue("node", hosts=HOSTS, ends_s=40 * 86_400)
    files = settings(keys, tls_certificate=certificate, tls_certificate_key=key)
    found = check_tls(Config(data_dir=str(tmp_path), **(files | changed)))
    assert (found.check, found.status, found.values["mode"]) == ("tls", status, mode)
    assert text in found.text


@pytest.mark.parametrize(("ends_s", "status", "text"), [(3 * 86_400, "warning", "in 2 days"), (-1, "wrong", "renew")])
def test_a_certificate_that_ends_soon_or_has_ended_is_told(
    tmp_path: Path, ends_s: float, status: str, text: str
) -> None:
    keys = Keys(tmp_path)
    certificate, key = keys.authority.issue("node", hosts=HOSTS, ends_s=ends_s)
    found = check_tls(Config(**settings(keys, tls_certificate=certificate, tls_certificate_key=key)))
    assert found.status == status
    assert text in found.text


def test_no_tls_is_told() -> None:
    found = check_tls(Config())
    assert (found.status, found.text, found.values["certificate_ends"]) == (
        "ok",
        "off: peers connect without encryption",
        None,
    )


def test_the_command_reports_all_of_it(command: CommandLine, tmp_path: Path) -> None:
    report = command("doctor", "--data-dir", tmp_path / "data", "--json").read(promised.Examined)
    assert report.ok == all(finding.status != "wrong" for finding in report.findings)
    assert [finding.check for finding in report.findings] == [
        "sqlite",
        "litestream",
        "data directory",
        "node",
        "file system",
        "fsync",
        "free disk",
        "database",
        "clock",
        "open files",
        "connections",
        "listen",
        "rates",
        "addresses",
        "sources",
        "tls",
        "rules",
        "tokens",
        "secure channel",
        "audit log",
        "private files",
        "own workers",
    ]
    assert [setting.where for setting in report.settings if setting.name == "data_dir"] == ["--data-dir"]
    assert not (tmp_path / "data").exists()


def test_what_is_wrong_is_the_exit_code(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1_000)
    done = command("doctor", "--data-dir", tmp_path)
    assert (done.code, done.stderr) == (1, "")
    *checks, settings, verdict = done.text.splitlines()
    assert [line.split()[1] for line in checks if line.startswith("wrong")] == ["database"]
    assert settings == f"settings that are not defaults: data_dir={tmp_path} (--data-dir)"
    assert verdict.startswith("1 wrong, ")
