"""Goal: on a file system without locks, a start says that, and not that another program holds the database.

Method: the running command, under which the C library says of every lock by `fcntl` what such a file system says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#define WITHOUT_LOCKS(name) \\
    int name(int descriptor, int command, ...) { \\
        va_list rest; va_start(rest, command); void *given = va_arg(rest, void *); va_end(rest); \\
        if (command == F_SETLK || command == F_SETLKW) { errno = ENOLCK; return -1; } \\
        return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, #name))(descriptor, command, given); \\
    }
WITHOUT_LOCKS(fcntl)
WITHOUT_LOCKS(fcntl64)
"""


def test_a_file_system_without_locks_is_told_as_one(tmp_path: Path) -> None:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")
    source, library = tmp_path / "no_locks.c", tmp_path / "no_locks.so"
    source.write_text(NO_LOCKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    for verb in ("serve", "verify"):
        command = [sys.executable, "-m", "stream_node", verb, "--data-dir", str(tmp_path / "data")]
        if verb == "verify":
            # Only its database is needed.
            (tmp_path / "data" / "streams.sqlite").touch()
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "held by another program" in done.stderr) == (1, False), done.stderr
        assert f"the file system of {tmp_path / 'data'} has no locks (No locks available)" in done.stderr
