"""Rebuilds disks as a power cut may leave them, from a recording. It opens none of them and judges nothing.

The model is strict. The content that a file had when its last sync began is on the disk, and so are the names that a
folder had when its last sync began. Any part of the later changes may be there too. Each sector of 512 bytes of a file
is as it was at some later moment, and so is its size, whatever the order of the writes. Each name that was made, moved
or removed has changed or not, independent of others; only a rename is one step. A name may lead to a file that was
never synced: such a file is empty, or has any part of its content.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stream_storage.directory_lock import boot_id
from tests.power.recording import Event, Kind

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
NOISE_BYTES: Final = 32 * 1024
THIS_START: Final = boot_id() or b"unknown"
OTHER_START: Final = b"0" * len(THIS_START)
"""A rebuilt disk gets another boot id in the files beside the database, since a power cut starts the machine anew. The
database itself is left as it is."""
DATABASE_NAME: Final = "streams.sqlite"


class File:
    """A file, folder or symbolic link, without its names.

    changes: each change of the content: the number of its event, then an offset with data, or a new size with None.
    sync_begins, sync_ends: the numbers of the events with which its syncs begin and end.
    """

    def __init__(self, kind: str, points: str = "") -> None:
        self.kind = kind
        self.points = points
        self.changes: list[tuple[int, int, bytes | None]] = []
        self.sync_begins: list[int] = []
        self.sync_ends: list[int] = []

    def synced_to(self, cut: int) -> int:
        """The event up to which everything is on disk at a cut; -1 if nothing is."""
        done = bisect_right(self.sync_ends, cut)
        return self.sync_begins[done - 1] if done else -1


class Naming(NamedTuple):
    """One change of names, which is durable once `folder` is synced.

    at: the number of its event. names: each folder and name with the file that the name leads to from then on, or None.
    """

    at: int
    folder: File
    names: tuple[tuple[File, str, File | None], ...]


class Policy(NamedTuple):
    """Which changes a power cut keeps of those that were not synced.

    names: the chance of each change of a name; None keeps all up to a moment and none after it. data: the chance of
    each piece of data. piece_bytes: the size of a piece; 0 for whole writes; None keeps all writes up to a moment.
    """

    names: float | None
    data: float
    piece_bytes: int | None


POLICIES: Final = (
    Policy(0.0, 0.0, 0),
    Policy(1.0, 1.0, 0),
    Policy(1.0, 0.0, 0),
    Policy(0.0, 1.0, 0),
    Policy(0.5, 0.5, SECTOR_BYTES),
    Policy(0.5, 0.5, PAGE_BYTES),
    Policy(1.0, 0.5, SECTOR_BYTES),
    Policy(1.0, 0.9, PAGE_BYTES),
    Policy(0.5, 0.5, 0),
    Policy(0.2, 0.8, 0),
    Policy(None, 1.0, None),
    Policy(0.5, 0.1, SECTOR_BYTES),
)


class Disks:
    """All disks that a power cut during one recording can leave."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self._root = File("folder")
        self._namings: list[Naming] = []
        self._live: dict[File, dict[str, File]] = {self._root: {}}
        self._by_inode: dict[int, File] = {}
        self._under_way: dict[int, list[int]] = {}
        for at, event in enumerate(events):
            self._take(at, event)

    def write(self, target: Path, cut: int, seed: int) -> Policy:
        """Make one disk that a power cut may leave, in the empty folder `target`.

        cut: the number of the last event that happened. seed: chooses the disk; seeds take the policies in turn.
        """
        randomness = random.Random(seed)
        policy = POLICIES[seed % len(POLICIES)]
        self._write_folder(target, self._root, self._names(cut, policy, randomness), cut, policy, randomness)
        return policy

    def write_all(self, target: Path) -> None:
        """Make the disk on which nothing is lost."""
        nothing = random.Random(0)
        everything = Policy(1.0, 1.0, 0)
        cut = len(self.events)
        self._write_folder(target, self._root, self._names(cut, everything, nothing), cut, everything, nothing)

    def _take(self, at: int, event: Event) -> None:
        if event.kind is Kind.OPENED:
            folder, name = self._find_folder(event.path)
            file = self._live[folder].get(name)
            if file is None:
                file = File("file")
                self._name(at, folder, (folder, name, file))
            elif event.size:
                file.changes.append((at, 0, None))
            self._by_inode[event.inode] = file
        elif event.kind is Kind.WRITTEN:
            self._by_inode[event.inode].changes.append((at, event.offset, event.data))
        elif event.kind is Kind.SIZED:
            self._by_inode[event.inode].changes.append((at, event.size, None))
        elif event.kind is Kind.BEGUN:
            self._under_way.setdefault(event.inode, []).append(at)
        elif event.kind is Kind.SYNCED:
            # Of several that are under way together, the earliest: what it is sure of, all are.
            file = self._by_inode[event.inode] if event.path else self._root
            file.sync_begins.append(self._under_way[event.inode].pop(0))
            file.sync_ends.append(at)
        elif event.kind is not Kind.MARK:
            self._take_name(at, event)

    def _take_name(self, at: int, event: Event) -> None:
        folder, name = self._find_folder(event.path)
        if event.kind is Kind.MADE:
            made = File("folder")
            self._live[made] = {}
            self._by_inode[event.inode] = made
            self._name(at, folder, (folder, name, made))
        elif event.kind is Kind.POINTED:
            self._name(at, folder, (folder, name, File("link", event.other)))
        elif event.kind is Kind.REMOVED:
            self._name(at, folder, (folder, name, None))
        else:
            file = self._live[folder][name]
            target, new = self._find_folder(event.other)
            moved = ((folder, name, None),) if event.kind is Kind.RENAMED else ()
            self._name(at, target, *moved, (target, new, file))

    def _name(self, at: int, folder: File, *names: tuple[File, str, File | None]) -> None:
        self._namings.append(Naming(at, folder, names))
        for where, name, file in names:
            if file is None:
                del self._live[where][name]
            else:
                self._live[where][name] = file

    def _find_folder(self, path: str) -> tuple[File, str]:
        *folders, name = path.split("/")
        folder = self._root
        for each in folders:
            folder = self._live[folder][each]
        return folder, name

    def _names(self, cut: int, policy: Policy, randomness: random.Random) -> dict[File, dict[str, File]]:
        """The names in each folder. The root itself is older than the recording."""
        until = randomness.randint(0, cut) if policy.names is None else 0
        names: dict[File, dict[str, File]] = {}
        for naming in self._namings:
            if naming.at > cut:
                break
            kept = naming.at <= naming.folder.synced_to(cut)
            if not kept:
                kept = naming.at <= until if policy.names is None else randomness.random() < policy.names
            if kept:
                for folder, name, file in naming.names:
                    if file is None:
                        names.get(folder, {}).pop(name, None)
                    else:
                        names.setdefault(folder, {})[name] = file
        return names

    def _write_folder(
        self,
        target: Path,
        folder: File,
        names: dict[File, dict[str, File]],
        cut: int,
        policy: Policy,
        randomness: random.Random,
    ) -> None:
        for name, file in sorted(names.get(folder, {}).items()):
            path = target / name
            if file.kind == "folder":
                path.mkdir()
                self._write_folder(path, file, names, cut, policy, randomness)
            elif file.kind == "link":
                path.symlink_to(file.points)
            elif name.endswith("-shm"):
                # SQLite syncs nothing of its shared memory and rebuilds it, whatever it finds.
                path.write_bytes(randomness.randbytes(NOISE_BYTES))
            else:
                content = _content(file, cut, policy, randomness)
                if cut < len(self.events) and not name.startswith(DATABASE_NAME):
                    content = content.replace(THIS_START, OTHER_START)
                path.write_bytes(content)


def _content(file: File, cut: int, policy: Policy, randomness: random.Random) -> bytes:
    """The content of a file: all changes up to its last sync, and those later ones that the policy keeps."""
    synced_to = file.synced_to(cut)
    content = bytearray()
    rest: list[tuple[int, int, bytes | None]] = []
    for change in file.changes:
        if change[0] <= synced_to:
            _apply(content, change[1], change[2])
        elif change[0] <= cut:
            rest.append(change)
    if policy.piece_bytes is None:
        return _prefix(content, rest, randomness)
    for _, offset, data in rest:
        if data is None or not policy.piece_bytes:
            if randomness.random() < policy.data:
                _apply(content, offset, data)
            continue
        # Pieces begin where those of the disk do, not where the write does.
        begin = offset
        while begin < offset + len(data):
            end = min(begin - begin % policy.piece_bytes + policy.piece_bytes, offset + len(data))
            if randomness.random() < policy.data:
                _apply(content, begin, data[begin - offset : end - offset])
            begin = end
    return bytes(content)


def _prefix(content: bytearray, rest: list[tuple[int, int, bytes | None]], randomness: random.Random) -> bytes:
    """The first few of the changes, with only a part of the last of them."""
    kept = rest[: randomness.randint(0, len(rest))]
    for number, (_, offset, data) in enumerate(kept, 1):
        if data is not None and number == len(kept):
            data = data[: randomness.randint(0, len(data))]
        _apply(content, offset, data)
    return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
