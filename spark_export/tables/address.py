"""The address of a table (a local folder or a prefix in a store), and the options of stores. Neither has a secret.

Credentials come from environment variables, or from the role that the cloud gives to the machine. The driver completes
the options from its environment variables and sends them to the executors, which load this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from spark_export.tables.errors import TableRefused

FILE: Final = "file"
SCHEMES: Final = {
    "file": FILE,
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "abfs"),
    "hdfs": "hdfs",
}
"""Maps each supported scheme to that of `StoreLocation`."""
SERVED: Final = "a folder, file://, s3:// (s3a, s3n), gs:// (gcs), abfs:// (abfss, az) and hdfs:// are served"

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/{1,3})(?P<rest>[^/].*|)")
"""Matches an address with a scheme. One slash is enough, because `pathlib` turns `s3://bucket` into `s3:/bucket`."""


@dataclass(frozen=True)
class StoreLocation:
    """The address of a table or of a folder in it.

    scheme: a value of `SCHEMES`. authority: the bucket or container, HDFS's host and port, or empty for a local folder.
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
        return self.path.rpartition("/")[2] or self.authority

    def __truediv__(self, name: str) -> StoreLocation:
        return StoreLocation(self.scheme, self.authority, f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.authority}/{self.path}".rstrip("/")


def parse_place(text: str | Path) -> StoreLocation:
    """Parses an address, and decodes percent escapes in that of a `file:`. Raises TableRefused for a wrong address."""
    found = _URI.fullmatch(str(text))
    if found is None:
        return StoreLocation(FILE, "", str(Path(text).absolute()))
    scheme = SCHEMES.get(found["scheme"].lower())
    if scheme is None:
        raise TableRefused(f"{text}: nothing serves {found['scheme']}://; {SERVED}")
    authority, _, path = found["rest"].partition("/")
    if scheme == FILE:
        # An address of a folder is file:///folder, file:/folder or file://localhost/folder.
        if found["slashes"] == "//" and authority != "localhost":
            raise TableRefused(f"{text} names the machine {authority or '(none)'}: write file:///FOLDER")
        return StoreLocation(FILE, "", str(Path("/" + unquote(path if found["slashes"] == "//" else found["rest"]))))
    parts = [part for part in path.split("/") if part]
    if not authority or found["slashes"] == "/" * 3:
        raise TableRefused(f"{text} names no bucket: write {found['scheme']}://BUCKET/PREFIX")
    if "@" in authority and scheme in ("s3", "gs"):
        raise TableRefused(f"an address on {scheme}:// holds no credentials: put them into the environment")
    if {".", ".."} & set(parts):
        raise TableRefused(f"{text}: a name in a store has no parts `.` and `..`")
    return StoreLocation(scheme, authority, "/".join(parts))


KNOWN: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    FILE: {},
    "s3": {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "anonymous": (),
        "virtual_hosted": (),
    },
    "gs": {"endpoint": ("STORAGE_EMULATOR_HOST",), "project": ("GOOGLE_CLOUD_PROJECT",), "anonymous": ()},
    "abfs": {"account": ("AZURE_STORAGE_ACCOUNT_NAME",), "endpoint": ("AZURE_STORAGE_ENDPOINT",)},
    "hdfs": {"user": ("HADOOP_USER_NAME",), "replication": ()},
}
"""The options of each kind of store, without those in `COMMON`, each with the environment variables that give it if the
user leaves it out. The first variable that is set counts."""
COMMON: Final = {"timeout_s": "30", "tries": "6"}
"""The options that every store has, with their defaults: the longest time for one request in seconds, and how often in
all a request is sent when the store answers 5xx or does not answer."""
SECRETS: Final[Mapping[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "hdfs": "a Kerberos ticket (KRB5CCNAME)",
    FILE: "no credentials",
}
"""The source of the credentials for each kind of store, as a text for error messages."""


def complete_options(place: StoreLocation, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the given options, completed from environment variables and defaults. Raises TableRefused."""
    known = (*KNOWN[place.scheme], *COMMON)
    for name in given:
        if name not in known:
            secret = any(part in name.lower() for part in ("key", "secret", "token", "password", "credential"))
            hint = (
                f"a secret is not given as an option, which `ps` shows; set {SECRETS[place.scheme]}"
                if secret
                else f"{place.scheme} has the options {', '.join(known)}"
            )
            raise TableRefused(f"the store option {name}: {hint}")
    found = dict(COMMON)
    for name, variables in KNOWN[place.scheme].items():
        for variable in filter(os.environ.get, variables):
            found.setdefault(name, os.environ[variable])
    found.update(given)
    for name in ("timeout_s", "tries", "replication"):
        if not found.get(name, "1").isdecimal() or int(found.get(name, "1")) < 1:
            raise TableRefused(f"the store option {name}={found[name]}: it is a whole number from 1")
    if "endpoint" in found and "://" not in found["endpoint"]:
        found["endpoint"] = f"http://{found['endpoint']}" if place.scheme == "gs" else f"https://{found['endpoint']}"
    if "endpoint" in found and place.scheme == "s3":
        found.setdefault("region", "us-east-1")
    for name in found.keys() & {"anonymous", "virtual_hosted"}:
        found[name] = str(found[name].lower() in ("1", "true", "yes")).lower()
    return found


def renamed(options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a store by the names that a library has for them. Options without such a name are left
    out."""
    return {names[option]: value for option, value in options.items() if option in names}


def azure_names(place: StoreLocation, options: Mapping[str, str]) -> tuple[str, str]:
    """Returns the account and the container of an Azure address. Raises TableRefused without an account."""
    container, _, host = place.authority.partition("@")
    account = host.partition(".")[0] or options.get("account", "")
    if not account:
        raise TableRefused(
            f"{place} names no account: write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/…, or set "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    return account, container
