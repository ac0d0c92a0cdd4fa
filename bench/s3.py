"""A real S3 server on this machine, moto's, with its objects in memory. It shares the cores with its clients.

The server is written in Python, and needs about as much processor time for the bytes of an export as everything else
in the export together. So the processor time of the clients says more than their rate.
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


def is_possible() -> bool:
    """Whether moto's server and the extra `store` are installed."""
    return all(find_spec(name) is not None for name in ("moto", "flask", "obstore"))


class S3Server(NamedTuple):
    """A running server. endpoint: its address, as the URL of a client. pid: its process."""

    endpoint: str
    pid: int


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server with the bucket BUCKET. This process has its credentials during the `with` block."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            endpoint = process.stdout.readline().strip()
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
            yield S3Server(endpoint, process.pid)
        finally:
            process.kill()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
