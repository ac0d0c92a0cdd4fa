"""Positions and leases for programs without an event loop: `positions.saved` and `share.leases`, without `await`.

For the consumers of `stream_client.blocking`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from index_service.extensions import SavedPosition
from stream_client.positions import saved as async_form
from stream_client.share.leases import LeaseMember as AsyncLeaseMember

T = TypeVar("T")


class BlockingRequester(Protocol):
    """The part of a blocking client that is needed here; `stream_client.blocking.StreamClient` has it."""

    @property
    def inner(self) -> async_form.Requester:
        """The same client in its async form."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that is made of `inner`'s calls."""
        ...


class SavedIndexes:
    """As `stream_client.positions.saved.SavedIndexes`."""

    def __init__(self, client: BlockingRequester, client_id: str) -> None:
        self._client = client
        self._inner = async_form.SavedIndexes(client.inner, client_id)
        self.client_id = client_id

    def __repr__(self) -> str:
        return repr(self._inner)

    def get(self, stream_name: str, partition: int = 0) -> int:
        """The saved index; 0 where none was saved. Raises ClientErrors of the client, and ProtocolError."""
        return self._client.run(self._inner.get(stream_name, partition))

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none. Raises ClientErrors of the client, and ProtocolError."""
        return self._client.run(self._inner.load(stream_name, partitions))

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition; they, or higher ones, are kept when this returns."""
        self._client.run(self._inner.save(stream_name, indexes))

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting; lost where there is no connection just now."""
        self._inner.save_nowait(stream_name, indexes)


class LeaseMember:
    """As `stream_client.share.leases.LeaseMember`. Leases are renewed inside the client's calls only."""

    def __init__(self, client: BlockingRequester, client_id: str, *, member_id: str | None = None) -> None:
        """member_id: unique among the members; a random one where none is given."""
        self._client = client
        self._inner = AsyncLeaseMember(client.inner, client_id, member_id=member_id)
        self.client_id = client_id
        self.member_id = self._inner.member_id

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def members(self) -> int:
        """How many share the stream, as far as the node has told; 0 before."""
        return self._inner.members

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None:
        """Begin to ask for partitions, and keep what is got. on_change: called when `check` has news."""
        self._inner.join(stream_name, partitions, on_change)

    def renew(self) -> None:
        """Ask for the leases now; this happens by itself as often as it must, while calls are made."""
        self._inner.renew()

    def check(self) -> tuple[set[int], set[int]]:
        """The partitions held now, and those of them that are asked back for others. Raises what ended membership."""
        return self._inner.check()

    def find_fence(self, partition: int) -> int | None:
        """The fence of the lease that is held now, by this process's clock; None where there is none."""
        return self._inner.find_fence(partition)

    def give_back(self, partition: int) -> None:
        """Somebody else may have it now; the node is told as soon as there is time."""
        self._inner.give_back(partition)

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none."""
        return self._client.run(self._inner.load(stream_name, partitions))

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition. One whose lease is over is not saved, and no longer held."""
        self._client.run(self._inner.save(stream_name, indexes))

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting."""
        self._inner.save_nowait(stream_name, indexes)

    def leave(self) -> None:
        """Give everything back and ask for no more. Safe to repeat."""
        self._client.run(self._inner.leave())

    def leave_nowait(self) -> None:
        """The same without waiting; where it does not arrive, the leases run out."""
        self._inner.leave_nowait()


def list_positions(
    client: BlockingRequester,
    *,
    stream_name: str | None = None,
    client_id: str | None = None,
    page_positions: int = async_form.LIST_PAGE,
) -> Iterator[SavedPosition]:
    """As `stream_client.positions.saved.list_positions`."""
    positions = async_form.list_positions(
        client.inner, stream_name=stream_name, client_id=client_id, page_positions=page_positions
    )
    while True:
        try:
            position = client.run(positions.__anext__())
        except StopAsyncIteration:
            return
        yield position


def set_position(
    client: BlockingRequester, client_id: str, stream_name: str, partition: int, index: int | None
) -> int | None:
    """As `stream_client.positions.saved.set_position`."""
    return client.run(async_form.set_position(client.inner, client_id, stream_name, partition, index))
