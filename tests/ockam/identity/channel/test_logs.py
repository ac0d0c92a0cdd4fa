"""Goal: no log line has a secret. Method: a failure whose local variables are keys, written as a node writes it."""

from __future__ import annotations

import json

import structlog

from ockam.identity.channel.transport import Sealer
from stream_node.node.logs import TRACEBACKS


def test_a_traceback_has_no_local_variables() -> None:
    key = bytes(range(100, 132))
    try:
        fail_with(key)
    except RuntimeError:
        event = {"event": "worker_crashed", "exc_info": True}
        line = structlog.processors.JSONRenderer()(None, "error", TRACEBACKS(None, "error", event))
    told = json.loads(line)["exception"]
    assert told[0]["exc_type"] == "RuntimeError"
    assert [frame["name"] for frame in told[0]["frames"]][-1] == "fail_with"
    assert key.hex() not in str(line)
    assert repr(key) not in str(line)
    assert "locals" not in str(line)


def fail_with(key: bytes) -> None:
    sealer = Sealer(key)
    raise RuntimeError("told to fail", sealer.nonce)
