"""Each case is run by each client. Those that are programs start once for all cases of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from block_node.publish.block_machine import PublishLimits
from tests.block_node.grpc.calls.block_door import block_door
from tests.block_node.grpc.conformance.meeting import Meet, Meeting
from tests.block_node.grpc.foreign.peers import KINDS, LIBRARIES, Program, opened_peer

PATIENCE_S = 180.0


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow if name in LIBRARIES else ()) for name in KINDS]
)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    made = Program(request.param, "identity")
    yield made
    made.close()


@pytest.fixture
def meet(request: pytest.FixtureRequest, tmp_path: Path, program: Program) -> Meet:
    """Opens a node of certain limits, and a client of it."""
    reason = getattr(request.function, "lacks", {}).get(program.name)
    if reason:
        pytest.skip(f"{program.name}: {reason}")

    @asynccontextmanager
    async def opened(limits: PublishLimits | None = None, **options: Any) -> AsyncIterator[Meeting]:
        async with (
            block_door(tmp_path, limits, patience_s=PATIENCE_S, **options) as door,
            opened_peer(program, door.port) as peer,
        ):
            yield Meeting(door, peer)

    return opened
