"""Goal: what the program keeps outlasts a power cut, whichever folders it had to make for that.

Method: the calls of mkdir, rename and fsync of this process, in their order, beside what is on disk afterwards. SQLite
syncs its own files past Python; `tests/power` looks at these.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from block_node.blocks.generator import SigningKeys
from cardinal_streams.consume.checkpoints import FileCheckpoints
from cardinal_streams.machines.events import Checkpoint
from cardinal_streams.transports.file_transport import Recorder
from ockam.files.durable_files import make_folder, remove_folders, write_durably
from stream_node.care.restore import restore
from stream_node.cli.chains import block
from stream_node.cli.contexts import Contexts, Target, save_contexts
from stream_storage.errors import StorageError
from stream_storage.sqlite.backup import back_up
from stream_storage.sqlite.database import FILE_NAME, Database

PASSING = {"node.lock", "exporter.lock"}
"""The lock files of a data directory and of an export. A power cut may take them: they have no content, and only matter
while a process holds the lock. The next process makes them anew."""
OF_SQLITE = {FILE_NAME}


class Disk:
    """The names and syncs of this process, in order: ("made", path), ("named", path), ("synced", inode)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        mkdir, replace, fsync = os.mkdir, os.replace, os.fsync

        def making(path: Any, *more: Any, **named: Any) -> None:
            mkdir(path, *more, **named)
            self.calls.append(("made", Path(path).absolute()))

        def replacing(source: Any, target: Any) -> None:
            replace(source, target)
            self.calls.append(("named", Path(target).absolute()))

        def syncing(descriptor: int) -> None:
            inode = os.fstat(descriptor).st_ino
            fsync(descriptor)
            self.calls.append(("synced", inode))

        monkeypatch.setattr(os, "mkdir", making)
        monkeypatch.setattr(os, "replace", replacing)
        monkeypatch.setattr(os, "fsync", syncing)

    def made(self) -> set[Path]:
        return {path for what, path in self.calls if what == "made"}

    def lost(self, root: Path) -> list[str]:
        """What a power cut could take now: names whose folder, and files, that were not synced since."""
        found = []
        for at, (what, path) in enumerate(self.calls):
            if what != "synced" and path.exists() and not self._synced(path.parent, at):
                found.append(f"{path.relative_to(root)} was {what}, then {path.parent} was not synced")
        for path in sorted(each for each in root.rglob("*") if each.is_file() and each.name not in PASSING | OF_SQLITE):
            if not self._synced(path, 0) or not self._synced(path.parent, 0):
                found.append(f"{path.relative_to(root)} was not synced")
        return found

    def _synced(self, path: Path, since: int) -> bool:
        return ("synced", path.stat().st_ino) in self.calls[since:]


@pytest.fixture
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a backup in another folder."""
    folder = tmp_path_factory.mktemp("elsewhere")
    Database.open(folder / "data").close()
    _back_up(folder / "data", folder / "taken")
    return folder / "taken"


def _quiet(_what: str, _done: int, _total: int | None) -> None:
    """The progress function of a backup that nobody watches."""


def _back_up(source: Path, target: Path) -> None:
    back_up(source, target, now_us=1, check=False, progress=_quiet)


def _open(folder: Path, _taken: Path) -> None:
    Database.open(folder).close()


def _take(folder: Path, taken: Path) -> None:
    _back_up(taken.parent / "data", folder)


def _restore(folder: Path, taken: Path) -> None:
    restore(taken, folder, check=False, progress=_quiet)


def _context(folder: Path, _taken: Path) -> None:
    save_contexts(folder / "contexts.json", Contexts("home", {"home": Target("127.0.0.1:4000")}))


def _keys(folder: Path, _taken: Path) -> None:
    SigningKeys.generate(key_bits=2048).save(folder)


def _blocks(folder: Path, _taken: Path) -> None:
    block.generate(folder, blocks=2, items=4, item_bytes=10, suffix=".blk", seed=0)


def _recording(folder: Path, _taken: Path) -> None:
    make_folder(folder)
    Recorder(folder / "recording").close()


def _checkpoint(folder: Path, _taken: Path) -> None:
    make_folder(folder)
    asyncio.run(FileCheckpoints(folder / "checkpoint").save(Checkpoint(start=None)))


def _export(folder: Path, _taken: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    from spark_export.tables.address import parse_place
    from spark_export.tables.columns import ROWS
    from spark_export.tables.parquet_folder import ParquetFolderLog

    ParquetFolderLog(parse_place(folder), {}).create(ROWS)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "data directory": _open,
    "backup": _take,
    "restored": _restore,
    "contexts": _context,
    "keys": _keys,
    "blocks": _blocks,
    "recording": _recording,
    "checkpoint": _checkpoint,
    "export": _export,
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("there", [False, True])
def test_all_that_is_made_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Path, maker: str, there: bool
) -> None:
    """Three missing folders, or three folders that another process made a moment ago and did not sync."""
    folder = tmp_path / "new" / "a" / "b"
    disk = Disk(monkeypatch)
    if there:
        folder.mkdir(parents=True)
    MAKERS[maker](folder, taken)
    assert {folder, folder.parent, folder.parent.parent} <= disk.made()
    assert disk.lost(tmp_path) == []


def test_what_is_not_synced_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `Disk.lost` can find something."""
    disk = Disk(monkeypatch)
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "text.new").write_bytes(b"text")
    (folder / "text.new").replace(folder / "text")
    assert len(disk.lost(tmp_path)) == 3


def test_a_backup_that_fails_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no database"):
        _back_up(tmp_path / "nothing", tmp_path / "new" / "a" / "b")
    Database.open(tmp_path / "data").close()
    (tmp_path / "data" / FILE_NAME).write_bytes(b"no database" * 1_000)
    with pytest.raises(StorageError):
        _back_up(tmp_path / "data", tmp_path / "new" / "a" / "b")
    assert not (tmp_path / "new").exists()


def test_made_folders_are_told_and_can_be_taken_back(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    made = make_folder(tmp_path / "old" / "a" / "b")
    assert made == [tmp_path / "old" / "a", tmp_path / "old" / "a" / "b"]
    assert make_folder(tmp_path / "old" / "a" / "b") == []
    (tmp_path / "old" / "a" / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "old" / "a" / "file")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "old" / "a" / "file" / "below")
    remove_folders(made)
    assert [path.name for path in (tmp_path / "old" / "a").iterdir()] == ["file"]


def test_folders_are_made_below_a_link_and_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far")
    monkeypatch.chdir(tmp_path)
    disk = Disk(monkeypatch)
    make_folder(Path("link/a"))
    make_folder(Path("b"))
    assert (tmp_path / "far" / "a").is_dir()
    synced = {inode for what, inode in disk.calls if what == "synced"}
    assert {tmp_path.stat().st_ino, (tmp_path / "far").stat().st_ino} <= synced


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_durably(file, b"old", mode=0o600)
    assert file.stat().st_mode & 0o777 == 0o600

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_durably(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    write_durably(file, b"new")
    assert file.read_bytes() == b"new"


def modes(*files: Path) -> list[int]:
    return [stat.S_IMODE(file.stat().st_mode) for file in files]


def test_a_replaced_file_keeps_its_permissions_and_a_secret_never_gains_any(tmp_path: Path) -> None:
    shared, secret = tmp_path / "rules.toml", tmp_path / "key"
    for file, mode in ((shared, None), (secret, 0o600)):
        write_durably(file, b"first", mode=mode)
    assert modes(secret) == [0o600]
    shared.chmod(0o660)
    secret.chmod(0o640)
    for file, mode in ((shared, None), (secret, 0o600)):
        write_durably(file, b"second", mode=mode)
        assert file.read_bytes() == b"second"
    assert modes(shared, secret) == [0o660, 0o600]
    secret.chmod(0o400)
    write_durably(secret, b"third", mode=0o600)
    assert modes(secret) == [0o400]


@pytest.mark.skipif(os.getuid() != 0, reason="only the superuser may give files away")
def test_a_file_that_the_superuser_replaces_stays_with_its_owner(tmp_path: Path) -> None:
    """As `sudo stream-node rule add` does with the rules of the node's user."""
    file = tmp_path / "rules.toml"
    file.write_bytes(b"first")
    os.chown(file, 12_345, 23_456)
    write_durably(file, b"second")
    assert (file.stat().st_uid, file.stat().st_gid) == (12_345, 23_456)


@pytest.mark.skipif(os.getuid() != 0, reason="only the superuser may give files away")
def test_a_new_file_of_the_superuser_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    """As `sudo stream-node trust add` makes it in the data directory of the node's user."""
    os.chown(tmp_path, 12_345, 23_456)
    write_durably(tmp_path / "trusted", b"first", mode=0o600)
    made = (tmp_path / "trusted").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (12_345, 23_456, 0o600)


def test_only_the_folder_itself_gets_the_asked_permissions(tmp_path: Path) -> None:
    """A data directory is for its user. One that was there keeps its permissions."""
    make_folder(tmp_path / "above" / "data", mode=0o700)
    assert modes(tmp_path / "above" / "data") == [0o700]
    assert modes(tmp_path / "above") == modes(_made(tmp_path / "plain"))
    (tmp_path / "above" / "data").chmod(0o750)
    make_folder(tmp_path / "above" / "data", mode=0o700)
    assert modes(tmp_path / "above" / "data") == [0o750]
    Database.open(tmp_path / "new").close()
    assert modes(tmp_path / "new") == [0o700]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
