"""A Spark Connect server on the loopback interface, and the command of declarative pipelines, as processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from spark_export.session import find_java_home

START_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 900.0
ROOT = Path(__file__).resolve().parents[2]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What Spark's own scripts need, and ours to be found from any folder."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        **(more or {}),
    }


def script(name: str) -> str:
    return str(Path(pyspark.__file__).parent / "bin" / name)


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Its address, `sc://…`. folder: for its log, and what Spark leaves where it is started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    log = folder / "connect.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [script("spark-submit"), "--master", "local[2,4]", "--class", server, *conf, "spark-internal"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _wait_until_open(port, process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_open(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        in_time = process.poll() is None and time.monotonic() < deadline_s
        assert in_time, log.read_text(errors="replace")[-2_000:]
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)


def run_pipeline(folder: Path, **more: str) -> None:
    """`spark-pipelines run` in that folder. more: environment variables."""
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [script("spark-pipelines"), "--remote", "local[2]", *conf, "run"],
        cwd=folder,
        env=environment(more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
