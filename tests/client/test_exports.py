"""Goal: the two doors of the client hand on the same names with the same members. Method: both lists, compared."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import stream_client
from stream_client import ClientError, ConnectionLost, StreamNotFound, blocking
from stream_client.blocking import driving
from stream_client.shell.dial import run_now

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


BY_HAND = {"stop_on_signals"}
ATTRIBUTES = {"address", "client_id", "handle", "inbox", "member_id", "session", "strays"}


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
        assert theirs.__doc__ == ours.__doc__ or (name in BY_HAND and theirs.__doc__), name
        if inspect.isclass(ours):
            # The objects of the async client get these attributes in their constructors.
            more = _members(theirs) - {_blocking_name(each) for each in _members(ours)}
            assert more <= ATTRIBUTES, name
            assert {_blocking_name(each) for each in _members(ours)} <= _members(theirs), name
        elif name != "stop_on_signals":
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_methods_of_the_blocking_client_return_no_coroutines() -> None:
    makers: list[Any] = [driving.blocking, driving.same]
    waits, same_as = (make(_members).__code__ for make in makers)
    for name in blocking.__all__:
        twin = getattr(blocking, name)
        for member in _members(twin) if inspect.isclass(twin) and issubclass(twin, driving.Twin) else ():
            wrapper = getattr(twin, member)
            while getattr(wrapper, "__code__", None) not in (None, waits, same_as) and hasattr(wrapper, "__wrapped__"):
                wrapper = wrapper.__wrapped__
            code = getattr(wrapper, "__code__", None)
            if code in (waits, same_as):
                assert (code is waits) == inspect.iscoroutinefunction(wrapper.__wrapped__), f"{name}.{member}"


def test_a_coroutine_that_waits_for_an_event_loop_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        run_now(asyncio.sleep(0))


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
