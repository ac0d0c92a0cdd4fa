"""Goal: the two doors of the client hand on the same names with the same members. Method: both lists, compared."""

from __future__ import annotations

import inspect

import stream_client
from stream_client import ClientError, ConnectionLost, StreamNotFound, blocking

# These exist once, since nothing in them waits; the async door lists them for both halves.
SHARED = {
    "FIRST",
    "LAST",
    "NEW",
    "Address",
    "BeforeIndex",
    "BeforeLike",
    "BeforeTime",
    "BytesLike",
    "ClientStatistics",
    "ConsumerArguments",
    "CopyResponse",
    "Framing",
    "FromEnd",
    "FromIndex",
    "FromTime",
    "Header",
    "HeadersLike",
    "OnEvent",
    "OnHole",
    "OnLink",
    "OwnIdentity",
    "Page",
    "Push",
    "Reconnect",
    "Retention",
    "RichMessage",
    "Route",
    "RoutedMessage",
    "SavedPosition",
    "SecureChannel",
    "StartLike",
    "Stopped",
    "StreamInfo",
    "StreamMessage",
    "Tls",
    "Token",
    "TruncateResponse",
}


def errors() -> set[str]:
    exported = {name: getattr(stream_client, name) for name in stream_client.__all__}
    return {name for name, value in exported.items() if inspect.isclass(value) and issubclass(value, Exception)}


def test_every_listed_name_exists_and_is_listed_in_order() -> None:
    for door in (stream_client, blocking):
        assert len(door.__all__) == len(set(door.__all__))
        for name in door.__all__:
            assert getattr(door, name) is not None


def test_the_blocking_door_has_the_names_of_the_async_one() -> None:
    assert set(blocking.__all__) == set(stream_client.__all__) - SHARED - errors() - {"blocking"}


def test_public_classes_have_the_same_public_members_in_both_halves() -> None:
    for name in blocking.__all__:
        ours, theirs = getattr(stream_client, name), getattr(blocking, name)
        if inspect.isclass(ours):
            assert _members(theirs) - {"send_lagging"} == {_blocking_name(each) for each in _members(ours)}, name
        elif name != "stop_on_signals":
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def _members(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def _blocking_name(name: str) -> str:
    return "close" if name == "aclose" else name


def test_a_program_can_combine_the_errors_with_each_other_and_with_its_own_classes() -> None:
    class Tagged:
        tag: str

        def __init_subclass__(cls, *, tag: str, **others: object) -> None:
            super().__init_subclass__(**others)
            cls.tag = tag

    class NotFoundNow(StreamNotFound, ConnectionLost):
        pass

    class Mine(ClientError, Tagged, retriable=True, tag="mine"):
        in_doubt = True

    assert (NotFoundNow.fault, NotFoundNow.retriable, NotFoundNow.in_doubt) == ("network", True, True)
    assert (Mine.fault, Mine.retriable, Mine.in_doubt, Mine.tag) == ("caller", True, True, "mine")
