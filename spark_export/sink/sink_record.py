"""Keeps the progress of a query, or of a write with a `writeId`, in the node's index service.

The progress is a set of saved indexes under a client id that only this query uses. Each partition that the query writes
has a saved index: no message of an uncommitted batch is before it, so a search for such messages begins there. A save
never lowers a saved index, so a late save from a failed task has no effect.
"""

from __future__ import annotations

from index_service.extensions import FENCED_SAVE, FencedSave, SaveStatus
from spark_export.errors import BadAnswer
from spark_export.source.node import list_partitions, list_streams
from spark_export.source.options import WriteOptions
from spark_export.source.plan import Place, StreamEnds, by_place
from stream_client.blocking import StreamClient, list_positions, set_position
from stream_client.core.service_route import INDEX_SERVICE

MARK = "committed batches"
"""The stream name whose saved index, in partition 0, is the number of the next batch to commit."""


def load_record(client: StreamClient, client_id: str) -> dict[Place, int]:
    found = list_positions(client, client_id=client_id)
    return {(each.stream_name, each.partition): each.index for each in found}


def save_place(client: StreamClient, client_id: str, place: Place, index: int) -> None:
    """Saves an index of a query for a partition, unless a higher index is saved. Raises ClientErrors, BadAnswer."""
    request = FencedSave(1, client_id, *place, index, None)
    if client.session.ask(INDEX_SERVICE, FENCED_SAVE, request).status is not SaveStatus.OK:
        raise BadAnswer(f"the node did not save position {index} of {place[0]}/{place[1]} for {client_id}")


def commit_batch(client: StreamClient, client_id: str, batch: int, written: set[Place]) -> None:
    """Records that a batch is stored, and saves the next index of each written partition. The call can be repeated."""
    # The batch number is saved first. If this process ends between the saves, the other indexes are only too low.
    save_place(client, client_id, (MARK, 0), batch + 1)
    record = load_record(client, client_id)
    places = {place for place in {*record, *written} if place[0] != MARK}
    for stream in sorted({stream for stream, _ in places}):
        for each in list_partitions(client, stream):
            place = (stream, each.partition)
            saved = record.get(place, 0)
            if place in places and saved > each.next_index:
                # The stream was deleted and created again, and only this request lowers an index.
                set_position(client, client_id, *place, each.next_index)
            elif place in places and saved < each.next_index:
                save_place(client, client_id, place, each.next_index)


def count_partitions(client: StreamClient, stream: str) -> int:
    """Returns the number of partitions of a stream, which is created if it is missing."""
    found = list_partitions(client, stream)
    if not found:
        client.create(stream)
    return max((each.partition + 1 for each in found), default=1)


def find_ends(client: StreamClient, options: WriteOptions, is_any: bool) -> dict[Place, StreamEnds]:
    """Returns the partitions that a write can reach, and creates its stream. is_any: rows name their streams."""
    found = []
    if options.stream is not None:
        found = list_partitions(client, options.stream)
        if options.partitions is not None or not found:
            client.create_partitioned(options.stream, options.partitions or 1)
            found = list_partitions(client, options.stream)
    if is_any:
        found = list(list_streams(client))
    return by_place(found)
