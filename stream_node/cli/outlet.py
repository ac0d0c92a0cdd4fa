"""Finds out whether the reader of a pipe has taken a command's output. It writes nothing.
A consumer must not save a position behind messages that nobody read: `consume … | head -3` has processed three. On
Linux, a pipe of one page of memory is writable exactly while it is empty. Where the system cannot make such a pipe, and
where standard output is no pipe, all output counts as taken."""

from __future__ import annotations

import array
import contextlib
import os
import select
import stat
import sys

PIPE_BYTES = 4096
"""The size of the smallest pipe: one page of memory. With larger pages, the smallest pipe is larger, too."""


def take_singly() -> None:
    """If standard output is a pipe, makes the pipe so small that it is writable only while it is empty."""
    # The system refuses to shrink a pipe that already has more than a page in it; `output_taken` then proves less.
    with contextlib.suppress(OSError):
        if _is_pipe():
            import fcntl

            fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)


async def output_taken() -> None:
    """Waits until the reader of standard output's pipe has taken everything. Raises BrokenPipeError if it went away."""
    if not _is_pipe():
        return
    import fcntl
    import termios

    import trio

    outlet = sys.stdout.fileno()
    poll = select.poll()
    poll.register(outlet, select.POLLOUT)
    # Most readers are quick, and waiting in the event loop takes longer than they do.
    if not poll.poll(0):
        await trio.lowlevel.wait_writable(outlet)
    unread = array.array("i", [0])
    fcntl.ioctl(outlet, termios.FIONREAD, unread)
    if unread[0] and any(state & select.POLLERR for _, state in poll.poll(0)):
        raise BrokenPipeError("the reader of standard output is gone")


def _is_pipe() -> bool:
    return sys.platform == "linux" and stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
