"""Explains error numbers of the operating system in words with the next step. It handles no errors itself."""

from __future__ import annotations

import errno
import re
import socket

ERRORS = {
    errno.ECONNREFUSED: "nothing listens there; `stream-node serve` starts a node, --node says where one is",
    errno.EADDRINUSE: "it is in use by another program; stop that, or choose another port (0 picks a free one)",
    errno.EADDRNOTAVAIL: "this machine does not have that address; 127.0.0.1 is always there, 0.0.0.0 means all",
    errno.EHOSTUNREACH: "there is no way to that host",
    errno.ENETUNREACH: "there is no way to that network",
    errno.ETIMEDOUT: "it does not answer",
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "this is a folder, and a file is wanted",
    errno.ENOTDIR: "a part of this path is a file, and a folder is wanted",
    errno.EACCES: "this user may not do that",
    errno.EROFS: "the disk is mounted for reading only",
    errno.ENOSPC: "the disk is full",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    socket.EAI_NONAME: "there is no host of that name",
    socket.EAI_AGAIN: "the host's name cannot be looked up just now",
}
"""Explanations by error number, of the system and of the resolver of host names (EAI_…, negative on Linux)."""
_NUMBERED = re.compile(r"\[Errno (-?\d+)\] (.*?)(?:: ['\"](.*)['\"])?$")


def explain_system_error(text: str) -> str:
    """Returns the text, with a system error number at its end replaced by words. Returns any other text unchanged."""
    found = _NUMBERED.search(text)
    if found is None:
        return text
    number, said, file = found.groups()
    words = ERRORS.get(int(number), said[:1].lower() + said[1:])
    return text[: found.start()] + (words if file is None else f"{file}: {words}")
