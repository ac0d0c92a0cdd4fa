"""Reads the headers of messages from the headers of a request: `Stream-Header-NAME: VALUE` is the header NAME."""

from __future__ import annotations

from starlette.requests import Request

from stream_client import Header
from stream_node.doors.http.problems import Problem

PREFIX = b"stream-header-"
"""The beginning of the names of such headers, in small letters, as every name arrives."""


def read_headers(request: Request) -> list[Header]:
    """Returns the headers for all messages of a request, in their order. Raises Problem for an empty name.
    A value has exactly the bytes that were sent. Names are in small letters: HTTP does not tell them from capital
    ones."""
    found: list[Header] = []
    for name, value in request.headers.raw:
        if not name.startswith(PREFIX):
            continue
        if name == PREFIX:
            raise Problem(400, "invalid-request", "a header of messages has a name: write Stream-Header-NAME: VALUE")
        found.append(Header(name[len(PREFIX) :].decode("ascii"), value))
    return found
