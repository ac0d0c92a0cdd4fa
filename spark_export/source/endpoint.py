"""The address of a node or service in an option: it is the address itself, or the place where a process finds it.

Like `node_client`, this module uses only the standard library, because Spark sends it to workers.
"""

from __future__ import annotations

import os

from spark_export.errors import OptionError


def resolve_endpoint(endpoint: str) -> str:
    """Returns the address `host:port` of a node or service, perhaps from `env:NAME` or `file:PATH`. Raises OptionError.

    Each process that connects calls this function, so each executor can have its own address, and Spark's plans do not
    show it.
    """
    kind, separator, place = endpoint.partition(":")
    if kind == "env" and separator:
        value = os.environ.get(place)
        if not value:
            raise OptionError(f"endpoint env:{place}: this process has no environment variable {place}")
        return value.strip()
    if kind == "file" and separator:
        try:
            with open(place, encoding="utf-8") as opened:
                return opened.read().strip()
        except OSError as error:
            raise OptionError(f"endpoint file:{place}: {error}") from error
    return endpoint


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Splits `host:port` into host and port. An IPv6 host is written in brackets. Raises OptionError."""
    host, separator, port = endpoint.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"endpoint {endpoint!r}: write it as host:port, such as 127.0.0.1:4000")
    return host.strip("[]"), int(port)
