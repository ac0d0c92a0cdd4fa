"""Goal: who may send to a worker of the operator, and what such a worker may do, is decided by the rules and audited.

Method: real nodes and sockets. Two clients with a certificate each are two tenants, of whom the rules allow one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam import local
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.protocol import ERROR
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.support.served import served

SAMPLES = "tests.stream_node.hosting.sample_workers"
ECHO = (local("echo"),)


async def test_without_rules_anybody_calls_a_worker(tmp_path: Path) -> None:
    async with served(tmp_path, worker=(f"{SAMPLES}:Echo@echo?greeting=hello+&times=2",)) as node:
        peer = await node.peer()
        assert (await peer.ask(ECHO, b"you")).payload == b"hello hello you"


@pytest.mark.parametrize("rights", [ALL_RIGHTS, Right.ROUTE])
async def test_who_may_route_to_its_address_calls_a_worker(tmp_path: Path, rights: Right) -> None:
    async with guarded(tmp_path, may(rights, "echo"), worker=(f"{SAMPLES}:Echo@echo",)) as node:
        peer = await node.running.peer()
        assert (await peer.ask(ECHO, b"hello")).payload == b"hello"


async def test_without_the_right_a_sender_is_refused_and_audited(tmp_path: Path) -> None:
    """Method: all other rights on every name, and this right on another name, do not help."""
    rules = may(ALL_RIGHTS & ~Right.ROUTE), may(Right.ROUTE, "echo-2", name="another worker")
    async with guarded(tmp_path, *rules, worker=(f"{SAMPLES}:Echo@echo",)) as node:
        peer = await node.running.peer()
        reason = ERROR.decode_response((await peer.ask(ECHO, b"hello")).payload).reason
        assert reason.endswith("access denied: route on 'echo' for anonymous: no rule allows it")
        (line,) = [each for each in node.audit() if each["event"] == "refused"]
        assert (line["identity"], line["right"], line["name"]) == ("anonymous", "route", "echo")
        assert node.refused() == {"route": 1}


async def test_a_class_declares_another_right(tmp_path: Path) -> None:
    rules = may(Right.ROUTE), may(Right.WRITE, "orders", name="writers")
    async with guarded(tmp_path, *rules, worker=(f"{SAMPLES}:Writers@writers",)) as node:
        peer = await node.running.peer()
        assert (await peer.ask((local("writers"),), b"hello")).payload == b"hello"
        node.allow(may(ALL_RIGHTS & ~Right.WRITE))
        peer = await node.running.peer()
        reason = ERROR.decode_response((await peer.ask((local("writers"),), b"hello")).payload).reason
        assert "write on 'orders'" in reason
