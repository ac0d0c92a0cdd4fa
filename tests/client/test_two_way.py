"""Goal: routed messages are the Elixir workers' bytes, and find their way there and back. Method: the worked example of
facts/ockam.md §6.3, any bytes, and conversations against a real server through every shell.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import Address, local
from stream_client import NEW, RequestTimeout, RoutedMessage, StreamNotFound, UnexpectedAnswer, blocking
from stream_client.blocking import SavedIndexes
from stream_client.correspondent import decode_routed, encode_routed
from tests.client.shells import Tools, World

ECHOER, ME = local("echoer"), local("me")

EXAMPLE = (
    b"\x0aping_topic"
    b"\x22"
    b"\x01"
    b"\x01\x00\x06echoer"
    b"\x01\x00\x02me"
    b"\x12hello over streams"
)  # fmt: skip

addresses = st.builds(Address, st.integers(0, 255), st.binary(max_size=20))
routes = st.lists(addresses, max_size=4).map(tuple)
messages = st.builds(RoutedMessage, routes, routes, st.binary(max_size=300), st.text(max_size=20))


def test_the_worked_example() -> None:
    routed = RoutedMessage((ECHOER,), (ME,), b"hello over streams", "ping_topic")
    assert encode_routed(routed) == EXAMPLE
    assert decode_routed(EXAMPLE) == routed


@given(messages)
def test_every_routed_message_comes_back(routed: RoutedMessage) -> None:
    assert decode_routed(encode_routed(routed)) == routed


@given(
    st.one_of(
        st.binary(max_size=60),
        st.builds(lambda at, new: EXAMPLE[:at] + new, st.integers(0, len(EXAMPLE)), st.binary(max_size=3)),
    )
)
def test_other_bytes_are_no_routed_message_or_one_that_is_written_so(data: bytes) -> None:
    try:
        routed = decode_routed(data)
    except UnexpectedAnswer:
        return
    assert decode_routed(encode_routed(routed)) == routed


@contextmanager
def echoer(address: str, name: str, messages_max: int) -> Iterator[None]:
    """Somebody else, who answers that many messages of the stream `name`, each once, and resumes where it stopped."""

    def answer() -> None:
        with blocking.connect(address) as client:
            me = client.correspondent(name)
            with me.inbox.consumer(SavedIndexes(client, "echoer")) as consumer:
                for number, routed in enumerate(me.routed(consumer.messages()), start=1):
                    if routed.onward_route == (ECHOER,):
                        me.reply(routed, routed.payload.upper(), return_route=(ECHOER,))
                    if number == messages_max:
                        return

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()


def test_a_request_gets_its_answer(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            me = await client.correspondent()
            for payload in (b"hello", b"again"):
                answer = await me.request(world.name, (ECHOER,), payload)
                assert (answer.payload, answer.return_route, answer.return_stream) == (
                    payload.upper(),
                    (ECHOER,),
                    world.name,
                )
            # An answer that comes too late, and what is no routed message at all, is passed over.
            with pytest.raises(RequestTimeout):
                await me.request(world.name, (local("nobody"),), b"ignored", timeout_s=0.05)
            await me.inbox.push(b"\xff no routed")
            await me.send(me.inbox.name, (local("stranger"),), b"nobody waits")
            assert (await me.request(world.name, (ECHOER,), b"more")).payload == b"MORE"
            assert me.strays == 2

    with echoer(world.address, world.name, 4):
        world.run(scenario)


def test_answers_come_to_an_inbox_that_was_made_again(world: World) -> None:
    """Claim: a party whose inbox was deleted gets the next answer in the new one. Method: another client deletes it
    between two requests, and makes it again."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client, tools.connect() as other:
            me = await client.correspondent(f"{world.name} in")
            for payload in (b"one", b"two"):
                assert (await me.request(world.name, (ECHOER,), payload)).payload == payload.upper()
            await (await other.get_stream(me.inbox.name)).delete()
            await other.create(me.inbox.name)
            # The end of the old inbox may be told to the first of them.
            with suppress(StreamNotFound):
                assert (await me.request(world.name, (ECHOER,), b"three")).payload == b"THREE"
            assert (await me.request(world.name, (ECHOER,), b"four")).payload == b"FOUR"

    with echoer(world.address, world.name, 4):
        world.run(scenario)


def test_a_request_is_in_doubt_without_an_inbox(world: World) -> None:
    """Claim: a request is stored, also if its answer cannot be read. Method: somebody else, who gets the second request
    and deletes the inbox, while the client waits there for the answer to the first one."""

    def delete() -> None:
        with blocking.connect(world.address) as client:
            there = client.correspondent(world.name)
            requests = there.routed(there.inbox.follow())
            next(requests)
            client.get_stream(next(requests).return_stream).delete()

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            me = await client.correspondent()
            with pytest.raises(RequestTimeout):
                await me.request(world.name, (ECHOER,), b"one", timeout_s=0.05)
            with pytest.raises(StreamNotFound) as caught:
                await me.request(world.name, (ECHOER,), b"two")
            assert caught.value.in_doubt

    other = threading.Thread(target=delete, daemon=True)
    other.start()
    world.run(scenario)
    other.join()


def test_messages_wait_for_a_party_that_is_away(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            me = await client.correspondent(world.name + " mine")
            for number in range(3):
                await me.send(world.name, (ECHOER,), b"letter %d" % number, return_route=(ME,))
            with echoer(world.address, world.name, 3):
                pass
            positions = tools.saved_indexes(client, "me")
            async with me.inbox.consumer(positions) as consumer:
                answers = [routed async for routed in me.routed(consumer.messages(stop_at_end=True))]
            assert answers == [
                RoutedMessage((ME,), (ECHOER,), b"LETTER %d" % number, world.name) for number in range(3)
            ]
            stray = me.routed(me.inbox.follow(NEW, stop_at_end=True))
            assert [routed async for routed in stray] == []
            with pytest.raises(ValueError, match="names no stream"):
                await me.reply(RoutedMessage((), (), b"", ""), b"")

    world.run(scenario)
