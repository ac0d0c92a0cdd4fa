"""Goal: only a source that does not know generations of positions is asked for positions without them: a mirror would
keep a wrong generation. Method: a source that refuses the list with generations, for one reason and for another."""

from __future__ import annotations

from typing import Any, cast

import pytest

from index_service.extensions import (
    MARKED_POSITIONS,
    POSITIONS,
    MarkedPosition,
    PositionsRequest,
    PositionsResponse,
    SavedPosition,
)
from ockam.protocol import Protocol
from stream_node.fleet.mirror.mirror import RemoteNode, SourceRefused
from stream_node.fleet.mirror.stream_copier import StreamCopier

REQUEST = PositionsRequest(0, "s", None, None, 9)
WORDS = ("c", "s", 0, 5, 7, None)


class Source:
    """reason: why it refuses the list with generations."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def ask(self, to: object, protocol: Protocol[Any, Any], request: PositionsRequest) -> PositionsResponse:
        if protocol is MARKED_POSITIONS:
            raise SourceRefused(f"there:4000: {self.reason}")
        assert protocol is POSITIONS
        return PositionsResponse(0, [SavedPosition(*WORDS)], False)


async def listed(reason: str) -> tuple[list[MarkedPosition], bool]:
    source = cast(RemoteNode, Source(reason))
    return await StreamCopier._list_positions(cast(StreamCopier, None), source, REQUEST)


async def test_a_source_that_knows_no_generations_is_asked_without_them() -> None:
    found = await listed(f"{MARKED_POSITIONS.name} is not served here")
    assert found == ([MarkedPosition(*WORDS, created_us=0, generation=0)], False)


@pytest.mark.parametrize(
    "reason",
    [
        "a worker of this node does not answer; ask again",
        f"a worker of this node has answered with an error: this is not {MARKED_POSITIONS.name}",
    ],
)
async def test_a_source_that_fails_is_asked_again_later(reason: str) -> None:
    with pytest.raises(SourceRefused, match="worker of this node"):
        await listed(reason)
