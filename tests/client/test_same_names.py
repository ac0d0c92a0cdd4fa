"""Goal: the blocking client has the names, the arguments and the results of the async one. Method: signatures."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from stream_client import blocking
from stream_client.blocking import consumers as blocking_consumers
from stream_client.blocking import correspondent as blocking_correspondent
from stream_client.blocking import positions as client_blocking
from stream_client.blocking import streams as blocking_streams
from stream_client.client import StreamClient
from stream_client.consume.consumer import Consumer, PartitionedConsumer
from stream_client.consume.follower import Follower
from stream_client.correspondent import Correspondent
from stream_client.positions import saved as client
from stream_client.publish import PartitionedPublisher, Publisher
from stream_client.share import leases as client_leases
from stream_client.share.shared import SharedConsumer
from stream_client.shell import async_shell as async_client
from stream_client.streams import PartitionedStream, Stream

PAIRS: list[tuple[type, type]] = [
    (StreamClient, blocking.StreamClient),
    (Stream, blocking_streams.Stream),
    (PartitionedStream, blocking_streams.PartitionedStream),
    (Publisher, blocking_streams.Publisher),
    (PartitionedPublisher, blocking_streams.PartitionedPublisher),
    (Follower, blocking_consumers.Follower),
    (Consumer, blocking_consumers.Consumer),
    (PartitionedConsumer, blocking_consumers.PartitionedConsumer),
    (SharedConsumer, blocking_consumers.SharedConsumer),
    (Correspondent, blocking_correspondent.Correspondent),
    (client.SavedIndexes, client_blocking.SavedIndexes),
    (client_leases.LeaseMember, client_blocking.LeaseMember),
]

ONE_SIDED = {
    StreamClient: {"ask_nowait", "call_later"},
    blocking.StreamClient: {"run"},
    SharedConsumer: {"is_held", "follow_leases"},
}
"""What has no counterpart: callbacks need a loop that calls them, `run` needs none; the rest is for the iteration."""


def public(of: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(of)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


def result(annotation: str) -> str:
    """What a method gives, without the words that say how it is waited for."""
    return re.sub(r"\b(?:AsyncIterator|Iterator|Listing|Messages|Driven|PositionListing)\b", "Items", annotation)


@pytest.mark.parametrize(("asynchronous", "blocks"), PAIRS, ids=lambda each: each.__name__)
def test_both_have_the_same_methods(asynchronous: type, blocks: type) -> None:
    ours, theirs = public(asynchronous), public(blocks)
    assert ours.keys() - ONE_SIDED.get(asynchronous, set()) == theirs.keys() - ONE_SIDED.get(blocks, set())


@pytest.mark.parametrize(("asynchronous", "blocks"), PAIRS, ids=lambda each: each.__name__)
def test_methods_have_the_same_arguments_and_results(asynchronous: type, blocks: type) -> None:
    ours, theirs = public(asynchronous), public(blocks)
    for name in sorted(ours.keys() & theirs.keys()):
        assert isinstance(ours[name], property) == isinstance(theirs[name], property), name
        if isinstance(ours[name], property):
            continue
        mine, other = inspect.signature(ours[name]), inspect.signature(theirs[name])
        if name != "letters":
            assert list(mine.parameters.values()) == list(other.parameters.values()), name
        if name != "messages":
            assert result(str(mine.return_annotation)) == result(str(other.return_annotation)), name
        assert not inspect.iscoroutinefunction(theirs[name]), name


def test_connect_has_the_same_arguments() -> None:
    ours, theirs = inspect.signature(async_client.connect), inspect.signature(blocking.connect)
    assert list(ours.parameters.values()) == list(theirs.parameters.values())
    for function in ("list_positions", "set_position"):
        mine, other = (inspect.signature(getattr(module, function)) for module in (client, client_blocking))
        assert list(mine.parameters) == list(other.parameters)
