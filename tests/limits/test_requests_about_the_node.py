"""Goal: requests about the node itself cannot fill its memory with tasks. Method: many of them in one segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ockam.actors import worker
from ockam.actors.address import local
from ockam.protocol import ERROR
from stream_node.care import trouble_service
from stream_node.care.trouble_service import TROUBLES, TroublesRequest
from stream_node.node import node_status
from stream_node.node.node_status import NODE_STATUS, NodeStatusRequest
from tests.support.served import served


@pytest.mark.parametrize(
    ("module", "request_bytes"),
    [
        (node_status, NODE_STATUS.encode_request(NodeStatusRequest(1))),
        (trouble_service, TROUBLES.encode_request(TroublesRequest(1))),
    ],
    ids=["status", "troubles"],
)
async def test_few_requests_about_the_node_are_answered_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, request_bytes: bytes
) -> None:
    """Claim: above the bound, a request is refused at once, and when the others are answered, there is room again."""
    monkeypatch.setattr(worker, "TASKS_MAX", 3)
    async with served(tmp_path) as running:
        peer = await running.peer()
        frame = peer.frame((local(module.ADDRESS),), request_bytes)
        for _ in range(2):
            await peer.stream.send_all(frame * 10)
            answers = [(await peer.receive()).payload for _ in range(10)]
            assert sum(map(ERROR.is_in, answers)) == 7
