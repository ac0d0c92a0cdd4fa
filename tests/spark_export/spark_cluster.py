"""A standalone Spark cluster on the loopback interface: a master and workers, in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from spark_export.session import find_java_home

START_TIMEOUT_S = 300.0
MASTER_URL = re.compile(r"spark://127\.0\.0\.1:\d+")


class SparkCluster:
    """A context manager. `url` is its master's; `conf` is given to `spark-submit` beside it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.url = ""
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
        }
        self.conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(find_java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def __enter__(self) -> Self:
        try:
            master = self._start("master", "Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._wait_for(master, MASTER_URL)
            for number in range(self._workers):
                work = self.folder / f"work-{number}"
                sizes = ("--cores", "1", "--memory", "1024M", "--work-dir", str(work))
                log = self._start(f"worker-{number}", "Worker", "--host", "127.0.0.1", *sizes, self.url)
                self._wait_for(log, re.compile("Successfully registered with master"))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)

    def executors(self) -> list[int]:
        """The processes that work below the workers' folders."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                cwd, command = os.readlink(process / "cwd"), (process / "cmdline").read_bytes()
            except OSError:
                continue
            if cwd.startswith(str(self.folder)) and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(process.name))
        return found

    def _start(self, name: str, role: str, *arguments: str) -> Path:
        log = self.folder / f"{name}.log"
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(program), f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            )
        return log

    def _wait_for(self, log: Path, pattern: re.Pattern[str]) -> str:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (found := pattern.search(log.read_text(errors="replace"))):
            assert time.monotonic() < deadline_s, log.read_text(errors="replace")[-2_000:]
            assert all(process.poll() is None for process in self._processes), log.read_text(errors="replace")[-2_000:]
            time.sleep(0.1)
        return found[0]
