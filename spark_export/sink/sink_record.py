"""Keeps the progress of a query, or of a write with a `writeId`, in the node's index service.

The progress is a set of saved indexes under a client id that only this query uses. Each partition that the query writes
has a saved index: no message of an uncommitted batch is before it, so a search for such messages begins there. The
saved index of partition 0 of the stream name `MARK` is the number of the next batch to commit. A save never lowers a
saved index, so a late save from a failed task has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_export.errors import BadAnswer
from spark_export.source.node_client import NodeConnection
from spark_export.source.node_wire import BareReader, optional, text, uint

SERVICE = b"stream_index_service"
MARK = "committed batches"
PAGE = 1_000
Place = tuple[str, int]


def load_record(node: NodeConnection, client_id: str) -> dict[Place, int]:
    """Returns the saved indexes of a client, by stream and partition. Raises as `NodeConnection.ask`."""
    found: dict[Place, int] = {}
    after: bytes | None = None
    while True:
        request = uint(1) + optional(None) + optional(text(client_id)) + optional(after) + uint(PAGE)
        reader = BareReader(node.ask(SERVICE, "node/index_list/1", request))
        reader.uint()
        count = reader.uint()
        for _ in range(count):
            client, stream, partition, index = reader.text(), reader.text(), reader.uint(), reader.uint()
            reader.u64()
            if reader.is_there():
                reader.text()
            found[stream, partition] = index
            after = text(client) + text(stream) + uint(partition)
        if not reader.is_there() or not count:
            return found


def save_place(node: NodeConnection, client_id: str, place: Place, index: int) -> None:
    """Saves an index of a client for a partition, unless a higher index is saved. Raises as `NodeConnection.ask`."""
    request = uint(1) + text(client_id) + text(place[0]) + uint(place[1]) + uint(index) + optional(None)
    reader = BareReader(node.ask(SERVICE, "node/index_save/1", request))
    reader.uint()
    if reader.uint() != 0:
        raise BadAnswer(f"the node did not save position {index} of {place[0]}/{place[1]} for {client_id}")


def lower_place(node: NodeConnection, client_id: str, place: Place, index: int) -> None:
    """Sets a saved index, even to a lower one, after the stream was deleted and created again."""
    request = uint(1) + text(client_id) + text(place[0]) + uint(place[1]) + optional(uint(index))
    node.ask(SERVICE, "node/index_set/1", request)


def next_batch(record: Mapping[Place, int]) -> int:
    """Returns the number of the next batch to commit; batches with lower numbers are stored completely."""
    return record.get((MARK, 0), 0)


def commit_batch(node: NodeConnection, client_id: str, batch: int, written: set[Place]) -> None:
    """Records that a batch is stored, and saves the next index of each written partition. The call can be repeated."""
    # The batch number is saved first. If this process ends between the saves, the other indexes are only too low.
    save_place(node, client_id, (MARK, 0), batch + 1)
    record = load_record(node, client_id)
    places = {place for place in {*record, *written} if place[0] != MARK}
    for stream in sorted({stream for stream, _ in places}):
        for each in node.list_partitions(stream):
            place = (stream, each.partition)
            saved = record.get(place, 0)
            if place in places and saved > each.next_index:
                lower_place(node, client_id, place, each.next_index)
            elif place in places and saved < each.next_index:
                save_place(node, client_id, place, each.next_index)


def find_bounds(node: NodeConnection, place: Place) -> tuple[int, int] | None:
    for each in node.list_partitions(place[0]):
        if each.partition == place[1]:
            return each.first_index, each.next_index
    return None


def count_partitions(node: NodeConnection, stream: str) -> int:
    """Returns the number of partitions of a stream. Creates a missing stream with one partition."""
    found = node.list_partitions(stream)
    if not found:
        node.create_stream(stream, 1)
    return max((each.partition + 1 for each in found), default=1)
