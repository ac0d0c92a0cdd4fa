"""A store in a local folder. Each object is a file, which is on disk (fsync) when the write returns."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ockam.files.durable_files import give_to_folder, make_folder, rename_durably, sync
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.store import Store, StoredObject, TaggedObject

HIDDEN = "."
"""The first character of the names of files that are not objects: lock files, and files that are not complete yet."""


class LocalStore(Store):
    """A store in a local folder. The tag of an object is the SHA-256 of the contents."""

    def read_tagged(self, name: str) -> TaggedObject:
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError as error:
            raise ObjectMissing(f"{self._path(name)} is not there") from error
        except OSError as error:
            raise StoreError(f"{self._path(name)} cannot be read: {error.strerror or error}") from error
        return TaggedObject(data, _tag(data))

    def list_objects(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        root = self.place.folder
        for path in sorted((root / prefix).rglob("*"), key=lambda each: each.relative_to(root).as_posix()):
            name = path.relative_to(root).as_posix()
            if name <= after or path.name.startswith(HIDDEN):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                yield StoredObject(name, status.st_size, status.st_mtime_ns // 1000)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _put_new(self, name: str, data: bytes) -> str:
        path = self._path(name)
        with self._written(path, data) as written:
            try:
                # `os.link` fails if a file with this name exists.
                os.link(written, path)
            except FileExistsError as error:
                raise ObjectExists(f"{path} is there already") from error
            sync(path.parent)
        return _tag(data)

    def _put_over(self, name: str, data: bytes, tag: str) -> str:
        path = self._path(name)
        with self._written(path, data) as written, _locked(path.with_name(f"{HIDDEN}{path.name}.lock")):
            found = self._find(name)
            if found is None or found.tag != tag:
                raise ObjectChanged(f"{path} was replaced")
            rename_durably(written, path)
        return _tag(data)

    def _path(self, name: str) -> Path:
        return self.place.folder / name

    @contextmanager
    def _written(self, path: Path, data: bytes) -> Iterator[Path]:
        """Yields a temporary file with these contents, on disk. The end of the block removes it unless renamed."""
        new = path.with_name(f"{HIDDEN}{path.name}.{uuid.uuid4().hex}")
        try:
            make_folder(path.parent)
            with new.open("xb") as file:
                give_to_folder(file.fileno(), path.parent)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield new
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
        finally:
            new.unlink(missing_ok=True)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock (flock) of a file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
