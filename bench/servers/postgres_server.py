"""PostgreSQL servers for the bench and for tests: a primary, and standbys that copy it. Each has its own folder."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from bench.peers.servers import POSTGRES_USER, family_cpu_seconds

PATIENCE_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_programs() -> Path | None:
    """The folder of the server's programs; None if they are not installed. Debian keeps them out of PATH."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *sorted(glob.glob("/usr/lib/postgresql/*/bin"))])
    found = shutil.which("initdb", path=places)
    if found is None or shutil.which("postgres", path=places) is None:
        return None
    return Path(found).resolve().parent


class PostgresServer:
    """One server on a port of its own, in a folder of its own. A context manager.

    settings: lines of postgresql.conf. copy_of: the primary of which this server is a standby; None: a new server.
    under: the folder in which the server makes its own folder; None: that for temporary files.
    """

    def __init__(
        self,
        settings: dict[str, str] | None = None,
        copy_of: PostgresServer | None = None,
        *,
        under: Path | None = None,
    ) -> None:
        programs = find_programs()
        assert programs is not None, "PostgreSQL is installed"
        self._programs = programs
        self.port = free_port()
        self.settings = {"max_connections": "50", **(settings or {})}
        self._copy_of = copy_of
        self._folder = tempfile.TemporaryDirectory(
            prefix="pg" if under is None else ".bench-", dir=under, ignore_cleanup_errors=True
        )
        self.place = Path(self._folder.name).resolve()
        self.data = self.place / "data"
        # The server refuses to run as root.
        owner = pwd.getpwnam(POSTGRES_USER) if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        self._user: dict[str, Any] = {"user": owner.pw_uid, "group": owner.pw_gid} if os.getuid() == 0 else {}
        os.chown(self.place, owner.pw_uid, owner.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://someone@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Self:
        try:
            if self._copy_of is None:
                self._initialize()
            else:
                source = ("-h", "127.0.0.1", "-p", str(self._copy_of.port), "-U", "someone")
                self._run("pg_basebackup", *source, "-D", str(self.data), "-R", "-X", "stream", "--no-sync")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._folder.cleanup()

    def _initialize(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", "someone", "-A", "trust", "--no-sync")

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        settings = [argument for name, value in self.settings.items() for argument in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self.data), "-k", "", "-h", "127.0.0.1"]
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port), *settings], stdout=log, stderr=log, cwd=self.place, **self._user
            )
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, (self.place / "log").read_text()[-2000:]
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills the server and all its processes at once, as a machine dies. Its files stay."""
        if self._process is None:
            return
        family = self._family()
        for pid in family:
            with_signal(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # The connections of a process are open until it has ended.
        deadline_s = time.monotonic() + PATIENCE_S
        while any(map(_runs, family)):
            assert time.monotonic() < deadline_s, "a killed process runs"
            time.sleep(0.005)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stops the server and all its processes where they are; the kernel still answers for them."""
        for pid in self._family():
            with_signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._family():
            with_signal(pid, signal.SIGCONT)

    def promote(self) -> None:
        """Makes a standby the primary."""
        self._run("pg_ctl", "promote", "-D", str(self.data), "-w")

    def ask(self, statement: str, database: str = "postgres") -> str:
        """Returns the rows that psql prints for a statement, without headings and lines around them."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "someone", "-d", database)
        return self._run("psql", *where, "-X", "-A", "-t", "-c", statement).strip()

    def cpu_seconds(self) -> float:
        """The processor time of the server and all its processes, in seconds."""
        assert self._process is not None, "the server runs"
        return family_cpu_seconds(self._process.pid)

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(command, check=False).returncode == 0

    def _family(self) -> list[int]:
        assert self._process is not None, "the server runs"
        pid = self._process.pid
        if self._process.poll() is not None:
            return []
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True,
            text=True,
            cwd=self.place,
            check=False,
            **self._user,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
        return str(done.stdout)


def _runs(pid: int) -> bool:
    """Whether a process runs. A process that has ended does not, even if its parent has not noticed the end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def with_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
