"""Starts the processes of a parallel run of all tests as forks of one process that has imported all tests.

Each of these processes would spend five seconds of processor time on the import of nearly 700 files. `WorkerPopen`
takes the place of `subprocess.Popen` while pytest-xdist starts them; the first start waits for the import. A process
that takes the place of one that crashed is an interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.forked import ForkedPopen, serve_forks
from tests.support.prefork import ROOT


class WorkerPopen(ForkedPopen):
    """`subprocess.Popen` that forks the processes of pytest-xdist, and starts everything else as ever."""

    program = ("-m", "tests.support.forked_workers")

    @staticmethod
    def forked_arguments(args: Any) -> list[str] | None:
        """The program that execnet gives to an interpreter; None for another command line."""
        return args[3:] if args[:3] == [sys.executable, "-u", "-c"] else None

    @classmethod
    def close(cls) -> None:
        """Ends the process that forks; its forks go on."""
        if cls.nursery is not None:
            cls.nursery.close()


def main(number: int) -> NoReturn:
    """Imports all tests, and forks for each request that comes over the socket `number`."""
    pytest.main([str(ROOT / "tests"), "-qq", "--capture=no", "-p", "no:cacheprovider"], plugins=[Importer()])
    # Later collections in the forked processes need not look at what has been imported.
    gc.collect()
    gc.freeze()
    gc.disable()
    serve_forks(number, become_worker)


class Importer:
    """Plugin that imports all tests, with pytest's assertions in them, in place of the collection."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        paths = [path for name in ("conftest.py", "test_*.py") for path in sorted((ROOT / "tests").rglob(name))]
        # In a new checkout, most of the import is compilation, and another core compiles the last files meanwhile.
        helper = os.fork()
        if helper == 0:
            import_files(reversed(paths))
            os._exit(0)
        import_files(paths)
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)
        return True


def import_files(paths: Iterable[Path]) -> None:
    """Imports test modules. One whose import fails is imported again by the collection, which tells why."""
    for path in paths:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def become_worker(arguments: list[str]) -> NoReturn:
    """Turns this process into `python -u -c PROGRAM`."""
    sys.argv = ["-c"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(arguments[0], sys.modules["__main__"].__dict__)
    sys.exit()


if __name__ == "__main__":
    main(int(sys.argv[1]))
