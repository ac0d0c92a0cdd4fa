"""A store on HDFS, which has no conditional writes, but never overwrites a file in a rename.

Each version of an object is a file with an ending: .v00000001, .v00000002 and so on. The file with the highest number
is the current object. A write creates a file with a unique name and renames the file to the next version. If two
writers rename to the same name, only one succeeds. Old versions are removed, so the rename of a slow writer can succeed
although other writers have used the same number before. Therefore a write also checks that its version is the newest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from pyarrow import fs

from spark_export.store.data import one_line
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.store import PutUnclear, Store, StoredObject, TaggedObject

_VERSION: Final = re.compile(r"(?P<name>.+)\.v(?P<version>\d{8})")
KEPT: Final = 2
"""The number of retained versions. A reader can still open the version before the newest one."""


class VersionedStore(Store):
    """A store on a filesystem of pyarrow. The tag of an object is the number of its newest version.

    Objects from `create` and `swap` have versions. Files that are written through `data` have no versions, so their
    names do not end in a version number.
    """

    def read_tagged(self, name: str) -> TaggedObject:
        for _ in range(KEPT):
            versions = self._versions(name)
            if not versions:
                break
            try:
                with self.data.open_input(_versioned(name, versions[-1])) as file:
                    return TaggedObject(bytes(file.read()), str(versions[-1]))
            except ObjectMissing:
                # Other writers have replaced the object twice since the listing.
                continue
        raise ObjectMissing(f"{self.place / name} is not there")

    def list_objects(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        latest: dict[str, StoredObject] = {}
        for info in self._files(prefix, recursive=True):
            name = info.path[len(self.data.path("")) :].strip("/")
            if info.type is not fs.FileType.File or name.rpartition("/")[2].startswith("."):
                continue
            found = _VERSION.fullmatch(name)
            name = found["name"] if found else name
            latest[name] = StoredObject(name, info.size, (info.mtime_ns or 0) // 1000)
        yield from (each for name, each in sorted(latest.items()) if name > after)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            for path in (name, *(_versioned(name, version) for version in self._versions(name))):
                with suppress(FileNotFoundError):
                    self.data.filesystem.delete_file(self.data.path(path))

    def _put_new(self, name: str, data: bytes) -> str:
        if self._versions(name):
            raise ObjectExists(f"{self.place / name} is there already")
        return self._put(name, data, 1)

    def _put_over(self, name: str, data: bytes, tag: str) -> str:
        versions = self._versions(name)
        if not versions or versions[-1] != int(tag):
            raise ObjectChanged(f"{self.place / name} was replaced")
        new = self._put(name, data, int(tag) + 1)
        for version in versions[: 1 - KEPT]:
            self.data.remove(_versioned(name, version))
        return new

    def _put(self, name: str, data: bytes, version: int) -> str:
        folder, _, last = name.rpartition("/")
        new = f"{folder}/.{last}.{uuid.uuid4().hex}".lstrip("/")
        target = _versioned(name, version)
        try:
            self.data.filesystem.create_dir(self.data.path(folder), recursive=True)
            with self.data.filesystem.open_output_stream(self.data.path(new)) as file:
                file.write(data)
            self.data.filesystem.move(self.data.path(new), self.data.path(target))
        except OSError as error:
            self.data.remove(new)
            if version in self._versions(name):
                raise (ObjectExists if version == 1 else ObjectChanged)(f"{self.place / name} was replaced") from error
            raise PutUnclear(f"{self.place / name} cannot be written: {one_line(error)}") from error
        if self._versions(name)[-1:] != [version]:
            self.data.remove(target)
            raise (ObjectExists if version == 1 else ObjectChanged)(f"{self.place / name} was replaced meanwhile")
        return str(version)

    def _versions(self, name: str) -> list[int]:
        folder, _, last = name.rpartition("/")
        found = (_VERSION.fullmatch(info.base_name) for info in self._files(folder, recursive=False))
        return sorted(int(each["version"]) for each in found if each is not None and each["name"] == last)

    def _files(self, folder: str, *, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self.data.path(folder), recursive=recursive, allow_not_found=True)
        try:
            return list(self.data.filesystem.get_file_info(selector))
        except FileNotFoundError:
            # Another writer has made the folder between Arrow's first look, which found none, and its second.
            return self._files(folder, recursive=recursive)
        except OSError as error:
            raise StoreError(f"{self.place / folder} cannot be listed: {one_line(error)}") from error


def _versioned(name: str, version: int) -> str:
    return f"{name}.v{version:08d}"
