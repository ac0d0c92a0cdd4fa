"""Completes and checks the options of stores. No option contains a secret.

Credentials come from environment variables, or from the role that the cloud gives to the machine. The Spark driver adds
the options in its environment variables and sends all options to the executors. So the executors need environment
variables for credentials only. Executors load this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from spark_export.store.errors import PlaceRefused
from spark_export.store.place import FILE, StoreLocation

KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    FILE: (),
    "s3": ("endpoint", "region", "anonymous", "virtual_hosted"),
    "gs": ("endpoint", "project", "anonymous"),
    "abfs": ("account", "endpoint"),
    "hdfs": ("user", "replication"),
}
"""The names of the options of each kind of store, without the options in `COMMON`."""
COMMON: Final = {"timeout_s": "30", "tries": "6"}
"""The options that every store has, with their defaults.

timeout_s: the longest time for one request, in seconds.
tries: how many times in all a request is sent when the store answers 5xx or does not answer.
"""
SECRETS: Final[Mapping[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "hdfs": "a Kerberos ticket (KRB5CCNAME)",
    FILE: "no credentials",
}
"""The source of the credentials for each kind of store, as a text for error messages."""
FROM_ENVIRONMENT: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("s3", "endpoint"): ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ("s3", "region"): ("AWS_REGION", "AWS_DEFAULT_REGION"),
    ("gs", "endpoint"): ("STORAGE_EMULATOR_HOST",),
    ("gs", "project"): ("GOOGLE_CLOUD_PROJECT",),
    ("abfs", "account"): ("AZURE_STORAGE_ACCOUNT_NAME",),
    ("abfs", "endpoint"): ("AZURE_STORAGE_ENDPOINT",),
    ("hdfs", "user"): ("HADOOP_USER_NAME",),
}
"""The environment variables that give an option which the user left out. The first variable that is set counts."""


def complete_options(place: StoreLocation, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the given options, completed from environment variables and defaults. Raises PlaceRefused."""
    known = (*KNOWN[place.scheme], *COMMON)
    for name in given:
        if name not in known:
            secret = any(part in name.lower() for part in ("key", "secret", "token", "password", "credential"))
            hint = (
                f"a secret is not given as an option, which `ps` shows; set {SECRETS[place.scheme]}"
                if secret
                else f"{place.scheme} has the options {', '.join(known)}"
            )
            raise PlaceRefused(f"the store option {name}: {hint}")
    found = dict(COMMON)
    for name in KNOWN[place.scheme]:
        for variable in FROM_ENVIRONMENT.get((place.scheme, name), ()):
            if os.environ.get(variable):
                found.setdefault(name, os.environ[variable])
    found.update(given)
    for name in ("timeout_s", "tries", "replication"):
        if not found.get(name, "1").isdecimal() or int(found.get(name, "1")) < 1:
            raise PlaceRefused(f"the store option {name}={found[name]}: it is a whole number from 1")
    if "endpoint" in found and "://" not in found["endpoint"]:
        found["endpoint"] = f"http://{found['endpoint']}" if place.scheme == "gs" else f"https://{found['endpoint']}"
    return found


def is_set(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() in ("1", "true", "yes")


def azure_names(place: StoreLocation, options: Mapping[str, str]) -> tuple[str, str]:
    """Returns the account and the container of an Azure address. Raises PlaceRefused without an account."""
    container, _, host = place.authority.partition("@")
    account = host.partition(".")[0] or options.get("account", "")
    if not account:
        raise PlaceRefused(
            f"{place} names no account: write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/…, or set "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    return account, container
