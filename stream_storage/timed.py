"""Appends of messages that have a time each, such as copies of messages of another node."""

from __future__ import annotations

from collections.abc import Sequence

from stream_storage.contract import Append, Record


def timed_appends(stream_id: int, records: Sequence[Record]) -> list[Append]:
    """Returns the appends that store consecutive messages with their own times, keys and headers, one for each run of
    messages with the same time. `Log.append` stores all of them in one call, or nothing."""
    appends: list[Append] = []
    start, count = 0, len(records)
    while start < count:
        first_index, _, time_us, _, _ = records[start]
        end = start + 1
        while end < count and records[end][2] == time_us:
            end += 1
        run = records[start:end]
        assert run[-1][0] == first_index + len(run) - 1, "the indexes follow each other"
        keys = [record[3] for record in run]
        headers = [record[4] for record in run]
        appends.append(
            Append(
                stream_id,
                first_index,
                time_us,
                [record[1] for record in run],
                keys if any(key is not None for key in keys) else None,
                headers if any(each is not None for each in headers) else None,
            )
        )
        start = end
    return appends


def find_falls(records: Sequence[Record], last_time_us: int) -> list[int]:
    """Returns the indexes of the messages whose time is lower than that of the message before."""
    falls = []
    for record in records:
        if record[2] < last_time_us:
            falls.append(record[0])
        last_time_us = record[2]
    return falls
