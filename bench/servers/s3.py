"""A real S3 server on this machine: SeaweedFS if it is installed, else moto's, which has its objects in memory.

The server shares the cores with its clients. moto's server is written in Python, and needs about as much processor time
for the bytes of an export as everything else in the export together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from bench.servers import seaweedfs

BUCKET = "bench"
SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
KEYS = {CREDENTIALS["AWS_ACCESS_KEY_ID"]: CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}


def is_possible() -> bool:
    """Whether an S3 server and the extra `delta` are installed."""
    return name() is not None and find_spec("deltalake") is not None


def name() -> str | None:
    """The server that `running_s3` starts, or None if none is installed."""
    if seaweedfs.program() is not None:
        return "SeaweedFS"
    return "moto" if find_spec("moto") is not None and find_spec("flask") is not None else None


class S3Server(NamedTuple):
    """A running server. endpoint: its address, as the URL of a client. pid: its process."""

    endpoint: str
    pid: int


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server with the bucket BUCKET. This process has its credentials during the `with` block. Raises PeerFailed."""
    before = {each: os.environ.get(each) for each in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        with _seaweedfs() if name() == "SeaweedFS" else _moto() as server:
            urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")).close()
            yield server
    finally:
        for each, value in before.items():
            if value is None:
                del os.environ[each]
            else:
                os.environ[each] = value


@contextmanager
def _seaweedfs() -> Iterator[S3Server]:
    with seaweedfs.running_seaweedfs(KEYS) as server:
        yield S3Server(f"http://{server.address}", server.pid)


@contextmanager
def _moto() -> Iterator[S3Server]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield S3Server(process.stdout.readline().strip(), process.pid)
        finally:
            process.kill()
