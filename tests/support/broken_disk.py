"""A disk that fails while a test says so: system calls of a node's process on its database end with the error chosen.

A shared library that the loader puts before the C library looks at each such call, and at a control file with one line
for each kind of call that is to fail: its name (`sync`, `write`, `read`, `room`), the error's number, and how the path
of the file ends. What was written before a failed sync stays in the page cache, as it does on real disks.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess

SOON = {"STREAM_NODE_ERROR_DELAY_S": "0.05"}
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* The error that this call on this file is to end with, or 0. */
static int fault(const char *call, int fd) {
    const char *control = getenv("BROKEN_DISK");
    if (!control) return 0;
    FILE *lines = fopen(control, "r");
    if (!lines) return 0;
    char link[64], path[4096], kind[16], ending[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    int number, found = 0;
    const char *gone = " (deleted)";
    if (length > 0) {
        path[length] = 0;
        /* A file without a name any more counts under the one it had. */
        ssize_t rest = length - (ssize_t)strlen(gone);
        if (rest > 0 && !strcmp(path + rest, gone)) path[length = rest] = 0;
        while (!found && fscanf(lines, "%15s %d %255s", kind, &number, ending) == 3) {
            size_t size = strlen(ending);
            if (!strcmp(kind, call) && (size_t)length >= size && !strcmp(path + length - size, ending)) found = number;
        }
    }
    fclose(lines);
    return found;
}

#define BROKEN(type, name, call, parameters, arguments)                                  \
    type name parameters {                                                               \
        static type (*real) parameters;                                                  \
        if (!real) real = (type (*) parameters) dlsym(RTLD_NEXT, #name);                 \
        int number = fault(call, fd);                                                    \
        if (number) { errno = number; return -1; }                                       \
        return real arguments;                                                           \
    }

/* These return the error in place of setting errno. */
#define BROKEN_ROOM(name, offset)                                                        \
    int name(int fd, offset at, offset size) {                                           \
        static int (*real)(int, offset, offset);                                         \
        if (!real) real = (int (*)(int, offset, offset)) dlsym(RTLD_NEXT, #name);        \
        int number = fault("room", fd);                                                  \
        return number ? number : real(fd, at, size);                                     \
    }

BROKEN_ROOM(posix_fallocate, off_t)
BROKEN_ROOM(posix_fallocate64, off64_t)
BROKEN(int, fsync, "sync", (int fd), (fd))
BROKEN(int, fdatasync, "sync", (int fd), (fd))
BROKEN(ssize_t, write, "write", (int fd, const void *data, size_t size), (fd, data, size))
BROKEN(ssize_t, pwrite, "write", (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
BROKEN(ssize_t, pwrite64, "write", (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
BROKEN(ssize_t, read, "read", (int fd, void *data, size_t size), (fd, data, size))
BROKEN(ssize_t, pread, "read", (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
BROKEN(ssize_t, pread64, "read", (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
"""

LOG = "streams.sqlite-wal"
FILE = "streams.sqlite"


class BrokenDisk:
    """Made by the fixture `broken_disk`. environment: for the process whose disk this is."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "faults"
        library = folder / "broken_disk.so"
        source = folder / "broken_disk.c"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "BROKEN_DISK": str(self._control)}

    def fail(self, call: str, ending: str, error: int = errno.EIO) -> None:
        """From now on such calls on files whose path ends so fail. call: sync, write, read or room (reserving it)."""
        line = f"{call} {error} {ending}\n"
        before = self._control.read_text() if self._control.exists() else ""
        # Written beside and renamed, so that the process never reads half a line.
        beside = self._control.with_suffix(".new")
        beside.write_text(before + line)
        beside.rename(self._control)

    def mend(self) -> None:
        """Nothing fails any more."""
        self._control.unlink(missing_ok=True)


@pytest.fixture
def broken_disk(tmp_path_factory: pytest.TempPathFactory) -> BrokenDisk:
    if shutil.which("cc") is None:
        pytest.skip("faults of a disk are made by a small C library, and there is no C compiler (cc)")
    if not Path("/proc/self/fd").exists():
        pytest.skip("the library that makes faults knows a file's name from /proc, which is on Linux only")
    return BrokenDisk(tmp_path_factory.mktemp("broken_disk"))


def node_on(disk: BrokenDisk, tmp_path: Path, **environment: str) -> NodeProcess:
    """A node whose disk this is. It tells a failed push soon."""
    return NodeProcess(tmp_path / "data", environment={**disk.environment, **SOON, **environment})
