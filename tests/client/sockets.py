"""Ports and listeners for tests of what is not there, or is no node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def unused_address() -> str:
    """`host:port` where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "{}:{}".format(*probe.getsockname())


@contextmanager
def listener() -> Iterator[tuple[str, socket.socket]]:
    """A listening socket, and its address; what it does with connections is the test's business."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield "{}:{}".format(*listening.getsockname()), listening
