"""Parses the address of a table: a local folder, or a prefix in a store. Spark executors load this module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from spark_export.store.errors import PlaceRefused

FILE: Final = "file"
SCHEMES: Final = {
    "file": FILE,
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfs",
    "az": "abfs",
    "hdfs": "hdfs",
}
"""Maps each supported scheme to that of `StoreLocation`."""
SERVED: Final = "a folder, file://, s3:// (s3a, s3n), gs:// (gcs), abfs:// (abfss, az) and hdfs:// are served"

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/{1,3})(?P<rest>[^/].*|)")
"""Matches an address with a scheme. One slash is enough, because `pathlib` turns `s3://bucket` into `s3:/bucket`."""


@dataclass(frozen=True)
class StoreLocation:
    """The address of a table or of a folder in it.

    scheme: a value of `SCHEMES`.
    authority: the bucket or container; for HDFS the host and port; empty for a local folder.
    path: absolute for a local folder, relative to the authority for a store; without a slash at the end.
    """

    scheme: str
    authority: str
    path: str

    @property
    def is_local(self) -> bool:
        return self.scheme == FILE

    @property
    def folder(self) -> Path:
        assert self.is_local
        return Path(self.path)

    @property
    def name(self) -> str:
        """The last part of the path, or the authority if the path is empty."""
        return self.path.rpartition("/")[2] or self.authority

    def __truediv__(self, name: str) -> StoreLocation:
        return StoreLocation(self.scheme, self.authority, f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.authority}/{self.path}".rstrip("/")


def parse_place(text: str | Path) -> StoreLocation:
    """Parses an address. Raises PlaceRefused for an unknown scheme or a wrong address, such as one without a bucket.

    Percent escapes in a `file:` address are decoded. In the address of a store, a percent sign is part of the name.
    """
    found = _URI.fullmatch(str(text))
    if found is None:
        return StoreLocation(FILE, "", str(Path(text).absolute()))
    scheme = SCHEMES.get(found["scheme"].lower())
    if scheme is None:
        raise PlaceRefused(f"{text}: nothing serves {found['scheme']}://; {SERVED}")
    if scheme == FILE:
        return _parse_file(str(text), found["slashes"], found["rest"])
    authority, _, path = found["rest"].partition("/")
    parts = [part for part in path.split("/") if part]
    if not authority or found["slashes"] == "/" * 3:
        raise PlaceRefused(f"{text} names no bucket: write {found['scheme']}://BUCKET/PREFIX")
    if "@" in authority and scheme in ("s3", "gs"):
        raise PlaceRefused(f"an address on {scheme}:// holds no credentials: put them into the environment")
    if {".", ".."} & set(parts):
        raise PlaceRefused(f"{text}: a name in a store has no parts `.` and `..`")
    return StoreLocation(scheme, authority, "/".join(parts))


def _parse_file(text: str, slashes: str, rest: str) -> StoreLocation:
    """Parses file:///folder, file:/folder or file://localhost/folder."""
    if slashes == "//":
        host, _, rest = rest.partition("/")
        if host != "localhost":
            raise PlaceRefused(f"{text} names the machine {host or '(none)'}: write file:///FOLDER")
    return StoreLocation(FILE, "", str(Path("/" + unquote(rest))))
