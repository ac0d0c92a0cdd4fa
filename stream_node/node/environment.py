"""Finds environment variables named STREAM_NODE_… that nothing reads. The module `config` explains the settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stream_service.names import near_names

PREFIX = "STREAM_NODE_"
OTHERS = frozenset(
    PREFIX + name
    for name in (
        *("ADDRESS", "FRAMING", "INDEX_SERVICE", "SERVICE", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"),
        *("CHANNEL_LISTENER", "IDENTITY", "PEER", "TOKEN", "TOKEN_FILE"),
        *(
            "CACHE_DIR",
            "CARDINAL",
            "CI_RUN",
            "EXPORT_FAILPOINT",
            "EXPORT_LEDGER",
            "FAILPOINT",
            "COMPILE",
            "SEED",
            "SYNC_DELAY_MS",
        ),
    )
)
"""The variables that the command line, the demo, the tests and CI read. All other known ones are settings of a node."""
OF_CONTAINERS = re.compile(
    PREFIX + r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?|NAME|ENV_\w+)"
)
"""Matches the variables that Kubernetes and container links set for a service with the name stream-node."""


def unknown_variables(environment: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Returns an error text for each variable that nothing reads. settings: their names, such as `log_level`."""
    known = {PREFIX + name.upper() for name in settings} | OTHERS
    unknown = [name for name in sorted(environment) if name.startswith(PREFIX) and name not in known]
    return [_told(name, known) for name in unknown if not OF_CONTAINERS.fullmatch(name)]


def _told(name: str, known: Iterable[str]) -> str:
    near = near_names(name, known)
    return f"unknown variable {name} in the environment; " + (f"there is {near}" if near else "nothing reads it")
