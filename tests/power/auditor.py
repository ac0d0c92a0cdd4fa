"""Judges a disk: it has everything that a client was told, and nothing that was deleted. It trusts no code of the node.

What must be there follows from the marks up to the cut alone (`expected`); what is there is read with SQLite, after the
real code has opened and verified the directory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stream_node.care.restore import restore
from stream_storage.errors import StorageError
from stream_storage.sqlite.backup import BackupError
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.verify import verify
from tests.power.load import LATER_ERA, read_content
from tests.power.recording import Event

DATA = "new/a/data"
LAKE = "new/lake"


@dataclass
class Expected:
    """What clients know of one stream, partition 0.

    made: its creation was confirmed. confirmed: incarnation and number of each confirmed message, by index. gone_below:
    messages below this index must not be there; going_below: messages below this one may have been deleted. keeping:
    how many messages retention leaves. maybe_deleted: a deletion was asked for and not confirmed.
    """

    incarnation: int
    made: bool = False
    maybe_deleted: bool = False
    confirmed: dict[int, tuple[int, int]] = field(default_factory=dict)
    gone_below: int = 0
    going_below: int = 0
    keeping: int | None = None
    kept_from: int = 0

    def end(self) -> int:
        """The least next index that the stream may have."""
        return max((index + 1 for index in self.confirmed), default=self.kept_from)


@dataclass
class World:
    """What clients of one data directory know.

    deleted: the names of deleted streams that no client has made anew.
    """

    streams: dict[str, Expected] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    saved: dict[tuple[str, str, int], int] = field(default_factory=dict)
    fences: dict[tuple[str, str, int], int] = field(default_factory=dict)
    blocks: list[bytes] = field(default_factory=list)


class Auditor:
    """Follows the marks up to a cut.

    worlds: the states that the disk may have; two while a restore is under way. backups: for each folder, the confirmed
    state when the backup began, and the state that it holds once it is done. exported: stream, first and next index of
    finished exports. data_of: incarnation and number of each exported message, by stream and index.
    """

    def __init__(self, marks: Iterable[Event]) -> None:
        self.world = World()
        self.other: World | None = None
        self.backups: dict[str, tuple[World, Mapping[str, Any] | None]] = {}
        self.exported: list[tuple[str, int, int]] = []
        self.exporting = False
        self.data_of: dict[tuple[str, int], tuple[int, int]] = {}
        for mark in marks:
            fact = msgspec.msgpack.decode(mark.data)
            getattr(self, f"_{fact.pop('what').replace(' ', '_')}")(**fact)

    def check(self, disk: Path) -> None:
        """Raises AssertionError, or the error of the real code if it cannot open the directory."""
        if (disk / DATA).exists():
            self._check_data(disk / DATA)
        else:
            assert not any(each.made for each in self.world.streams.values()), "the data directory is not there"
        if self.exporting and (disk / LAKE).exists():
            from tests.power.lake_auditor import check_lake

            check_lake(disk / LAKE, self.exported, self.data_of)
        else:
            assert not self.exported, "the export is not there"
        for folder, (begun, content) in self.backups.items():
            self._check_backup(disk / folder, begun, content)

    def _check_data(self, directory: Path) -> None:
        """Open the directory as a node does."""
        database = Database.open(directory)
        try:
            session = database.read_session()
            try:
                assert verify(session).problems == ()
            finally:
                session.close()
        finally:
            database.close()
        found = read_content(directory / FILE_NAME)
        problems = _problems(self.world, found)
        if problems and self.other is not None:
            problems = [f"neither {problems} nor {others}" for others in [_problems(self.other, found)] if others]
        assert not problems, problems[:5]

    def _check_backup(self, folder: Path, begun: World, content: Mapping[str, Any] | None) -> None:
        """Check that a finished backup restores as it was, and that an unfinished one is refused or whole."""
        try:
            restore(folder, folder.with_name("nowhere"), check=True, dry_run=True, progress=lambda *_: None)
        except (BackupError, StorageError):
            assert content is None, f"the backup {folder.name} was done and cannot be used"
            return
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(read_content(folder / FILE_NAME)), strict=False)
        assert content is None or found == content, "the backup has changed"
        assert not _problems(begun, read_content(folder / FILE_NAME))

    def _creating(self, stream: str, incarnation: int) -> None:
        self.world.deleted.discard(stream)
        known = self.world.streams.get(stream)
        if known is None or known.incarnation % LATER_ERA != incarnation % LATER_ERA:
            self.world.streams[stream] = Expected(incarnation)
        else:
            known.incarnation = incarnation

    def _created(self, stream: str) -> None:
        self.world.streams[stream].made = True

    def _pushed(self, stream: str, index: int, incarnation: int, number: int) -> None:
        expected = self.world.streams[stream]
        expected.incarnation = incarnation
        assert index not in expected.confirmed, f"{stream} gave index {index} twice"
        expected.confirmed[index] = (incarnation, number)
        if expected.keeping is not None:
            expected.going_below = max(expected.going_below, expected.end() - expected.keeping)

    def _saved(self, client: str, stream: str, index: int) -> None:
        self.world.saved[client, stream, 0] = index

    def _leased(self, client: str, stream: str, partition: int, fence: int) -> None:
        key = (client, stream, partition)
        assert fence >= self.world.fences.get(key, 0), f"the fence {fence} of {key} was given before"
        self.world.fences[key] = fence

    def _deleting(self, stream: str) -> None:
        self.world.streams[stream].maybe_deleted = True
        # Its messages go in steps.
        self.world.streams[stream].going_below = 1 << 62

    def _deleted(self, stream: str) -> None:
        del self.world.streams[stream]
        self.world.deleted.add(stream)

    def _truncating(self, stream: str, before: int) -> None:
        self.world.streams[stream].going_below = before

    def _truncated(self, stream: str, before: int) -> None:
        self.world.streams[stream].gone_below = before

    def _keeping(self, stream: str, messages: int) -> None:
        expected = self.world.streams[stream]
        expected.keeping = messages
        # Messages that are not confirmed yet count too.
        expected.going_below = 1 << 62

    def _published(self, blocks: list[bytes]) -> None:
        self.world.blocks = blocks

    def _backing_up(self, folder: str) -> None:
        self.backups[folder] = (copy.deepcopy(self.world), None)

    def _backed_up(self, folder: str, content: Mapping[str, Any]) -> None:
        self.backups[folder] = (self.backups[folder][0], content)

    def _restoring(self, folder: str) -> None:
        content = self.backups[folder][1]
        assert content is not None
        # Fences only rise, whatever comes back.
        self.other = World(fences=dict(self.world.fences), blocks=self.world.blocks)
        for name, partition, stream in content["streams"]:
            assert partition == 0
            if name != "block_node.blocks":
                expected = Expected(self.world.streams[name].incarnation, made=True, kept_from=stream["end"])
                expected.gone_below = expected.going_below = stream["first"]
                expected.confirmed = {
                    index: (incarnation, number) for index, (_, incarnation, number) in stream["messages"].items()
                }
                self.other.streams[name] = expected
        self.other.saved = {(client, name, part): index for client, name, part, index in content["saved"]}

    def _restored(self, folder: str) -> None:
        assert self.other is not None
        self.world, self.other = self.other, None
        for expected in self.world.streams.values():
            expected.incarnation += LATER_ERA

    def _exporting(self, stream: str) -> None:
        """The expectation before the first promise: anything is right."""
        self.exporting = True

    def _exported(self, stream: str, first: int, end: int) -> None:
        self.exported.append((stream, first, end))
        for index, which in self.world.streams[stream].confirmed.items():
            self.data_of.setdefault((stream, index), which)


def _problems(world: World, found: Mapping[str, Any]) -> list[str]:
    streams = {name: each for name, _, each in found["streams"]}
    problems = [f"{name} was deleted, and is there" for name in world.deleted if name in streams]
    for name, expected in world.streams.items():
        if name in streams:
            problems += _stream_problems(name, expected, streams[name])
        elif expected.made and not expected.maybe_deleted:
            problems.append(f"{name} is not there")
    problems += [f"nobody asked for {name}" for name in streams if name not in {*world.streams, *world.deleted, BLOCKS}]
    saved = {(client, name, part): index for client, name, part, index in found["saved"]}
    for key, index in world.saved.items():
        if saved.get(key, 0) < index:
            problems.append(f"the position {key} is {saved.get(key)}, and {index} was saved")
    fences = {(client, name, part): fence for client, name, part, fence in found["fences"]}
    for key, fence in world.fences.items():
        if max(fences.get(key, 0), found["floor"]) < fence:
            problems.append(f"the fence {fence} of {key} was given, and may be given again")
    stored = b"".join(found["blocks"])
    problems += [f"block {number} is not there" for number, each in enumerate(world.blocks) if each not in stored]
    return problems


def _stream_problems(name: str, expected: Expected, found: Mapping[str, Any]) -> list[str]:
    problems = []
    messages: Mapping[int, tuple[str, int, int]] = found["messages"]
    if found["end"] < expected.end() and not expected.maybe_deleted:
        problems.append(f"{name} goes on at {found['end']}, and {expected.end() - 1} was given already")
    if found["first"] < expected.gone_below:
        problems.append(f"{name} begins at {found['first']}, and all below {expected.gone_below} was deleted")
    for index, (incarnation, number) in expected.confirmed.items():
        if index in messages and tuple(messages[index]) != (name, incarnation, number):
            problems.append(f"{name}/{index} is {messages[index]}, and {(incarnation, number)} was confirmed")
        elif index not in messages and index >= expected.going_below:
            problems.append(f"{name}/{index} was confirmed, and is not there")
    for index, (stream, incarnation, _) in messages.items():
        if index not in expected.confirmed and (stream, incarnation) != (name, expected.incarnation):
            problems.append(f"{name}/{index} is a message of {stream}/{incarnation}")
    return problems


BLOCKS = "block_node.blocks"
