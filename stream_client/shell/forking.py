"""Ends the parent's clients in each child process that fork() makes.

Parent and child have the same connection. Without this, each would read the other's answers, and send the same pushes.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from stream_client.errors import ClientForked


class Forkable(Protocol):
    def forked(self, error: ClientForked) -> None:
        """Gives up the connection, sends nothing, and ends the client with this error. Called in the child only."""
        ...


_shells: WeakSet[Forkable] = WeakSet()


def watch_forks(shell: Forkable) -> None:
    """Makes each child process that is forked while the shell is in use call `Forkable.forked` of this shell."""
    _shells.add(shell)


def _in_child() -> None:
    shells = list(_shells)
    _shells.clear()
    for shell in shells:
        shell.forked(ClientForked(os.getppid()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
