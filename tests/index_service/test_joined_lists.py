"""Goal: positions that several workers keep are one list, in pages that fit the frame of its reader.

Method: a node on a real database whose other workers are played: the test has their pages ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from index_service.extensions import POSITIONS, PositionKey, PositionsRequest, PositionsResponse, SavedPosition
from index_service.limits import INDEX_MAX, PAGE_BYTES_MAX, TEXT_BYTES_MAX
from ockam.actors.address import Address, local
from ockam.actors.message import Message, Origin
from tests.index_service.index_node import IndexNode, index_node

WORKERS = 4
PARTITIONS = 240
LONG_NAME = "ü" * (TEXT_BYTES_MAX // 2)
LEGACY_FRAME_BYTES_MAX = 65_000


class OtherWorkers:
    """An `ockam.transport.forwarding.RemoteStreams` whose workers have every fourth partition, in own pages."""

    name = "w00"

    def __init__(self) -> None:
        saved = [SavedPosition(LONG_NAME, LONG_NAME, each, INDEX_MAX, 1, None) for each in range(PARTITIONS)]
        self.of_worker = [saved[first::WORKERS] for first in range(WORKERS)]

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        request = POSITIONS.decode_request(message.payload)
        on_done([POSITIONS.encode_response(self._page(saved, request)) for saved in self.of_worker])
        return True

    @staticmethod
    def _page(saved: Sequence[SavedPosition], request: PositionsRequest) -> PositionsResponse:
        following = [each for each in saved if request.after is None or each.partition > request.after.partition]
        # A page of one worker fits into every frame.
        page = following[: min(request.limit, 20)]
        return PositionsResponse(request.request_id, page, len(following) > len(page))

    def is_remote(self, stream: Address) -> bool:
        return False

    def send(self, stream: Address, message: Message) -> None:
        raise NotImplementedError

    def home_of(self, stream_name: str) -> Address:
        return local(stream_name)

    def served_since_s(self, stream: Address) -> float:
        return 0.0

    def owner_of(self, stream: Address) -> tuple[str, int]:
        return "", 0


async def ask(running: IndexNode, frame_bytes_max: int, after: PositionKey | None) -> bytes:
    request = PositionsRequest(1, None, None, after, 2**64 - 1)
    running.send(POSITIONS.encode_request(request), origin=Origin("tcp", frame_bytes_max=frame_bytes_max))
    (payload,) = await running.idle()
    return payload


@pytest.mark.parametrize("frame_bytes_max", [LEGACY_FRAME_BYTES_MAX, 16 * 1024 * 1024, 100])
async def test_a_joined_page_fits_the_frame_that_brings_it(tmp_path: Path, frame_bytes_max: int) -> None:
    bytes_max = max(min(frame_bytes_max, PAGE_BYTES_MAX), 4_000)
    async with index_node(tmp_path, remote_streams=OtherWorkers()) as running:
        found: list[int] = []
        after, more = None, True
        while more:
            payload = await ask(running, frame_bytes_max, after)
            assert len(payload) < bytes_max
            page = POSITIONS.decode_response(payload)
            found += [row.partition for row in page.positions]
            last, more = page.positions[-1], page.more
            after = PositionKey(last.client_id, last.stream_name, last.partition)
    assert found == list(range(PARTITIONS))
