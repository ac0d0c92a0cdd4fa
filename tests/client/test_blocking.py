"""Goal: what only the blocking client must do. Method: child processes, signals, and sockets of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import pytest

from ockam.actors.address import split_host_port
from stream_client import BytesLike, HeadersLike, blocking
from stream_client.blocking import SavedIndexes
from stream_node.node.process import NodeProcess
from tests.client.members import wait_for
from tests.client.sockets import listener

REPOSITORY = Path(__file__).parents[2]
T = TypeVar("T")

WITHOUT_LOOPS = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"trio", "anyio", "sniffio", "structlog", "sqlalchemy"}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Refuse())
from stream_client.blocking import LeaseMember, SavedIndexes
from stream_client import blocking
from stream_client import FIRST, Header, RequestRefused

with blocking.connect(sys.argv[1]) as client:
    stream = client.create("without loops")
    stream.push(b"hello", key=b"k", headers=[Header("a", b"b")])
    with stream.consumer(SavedIndexes(client, "c")) as consumer:
        print([message.data for message in consumer.messages(stop_at_end=True)])
print("asyncio" in sys.modules)
"""

WAITING = """
import sys
from stream_client import blocking

with blocking.connect(sys.argv[1]) as client:
    stream = client.create("waits for ever")
    try:
        print("waiting", flush=True)
        for message in stream.follow():
            print("a message", flush=True)
    except KeyboardInterrupt:
        print("interrupted; stored at", stream.push(b"after the interrupt"), flush=True)
        raise
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def test_it_needs_neither_trio_nor_anyio(node: NodeProcess) -> None:
    done = subprocess.run(
        python(WITHOUT_LOOPS, node.address), capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[b'hello']\nFalse\n", "")


def test_an_interrupt_ends_a_wait_at_once_and_the_client_goes_on(node: NodeProcess) -> None:
    with subprocess.Popen(
        python(WAITING, node.address), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=30)
    assert output == "interrupted; stored at 0\n"
    assert "KeyboardInterrupt" in errors
    assert child.returncode != 0


def interrupted(call: Callable[[], object], after_s: float) -> float:
    """Raise KeyboardInterrupt in the main thread during a call; how long the call went on behind that."""
    sent_at: list[float] = []

    def interrupt() -> None:
        sent_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after_s, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    ended = time.monotonic()
    timer.join()
    return ended - sent_at[0]


# Between two attempts, the interrupt may fall into the moment in which a socket has just been made.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_every_wait_can_be_interrupted() -> None:
    with listener() as (address, listening), blocking.connect(address, answer_timeout_s=None) as client:
        connection, _ = listening.accept()
        with connection:
            assert interrupted(client.create, 0.05) < 2
        listening.close()
        # Nobody is there to connect to: the pauses between attempts can be interrupted too.
        assert interrupted(client.create, 0.05) < 2


def test_what_a_slow_publisher_has_pushed_is_sent_between_pushes(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client, blocking.connect(node.address) as other:
        stream = client.create("slow publisher")
        reader = other.create("slow publisher")
        with stream.publisher() as publisher:
            publisher.push(b"first")
            deadline_s = time.monotonic() + 30
            while not reader.pull():
                assert time.monotonic() < deadline_s
                # So slowly, the window does not fill, which would send the messages, too.
                time.sleep(0.1)
                publisher.push(b"more")


def test_what_push_many_has_pushed_is_sent_before_the_next_message_is_there(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client, blocking.connect(node.address) as other:
        stream = client.create("slow messages")
        reader = other.create("slow messages")

        def messages() -> Iterator[bytes]:
            yield b"first"
            deadline_s = time.monotonic() + 30
            while not reader.pull():
                assert time.monotonic() < deadline_s
                # So slowly, the window does not fill, which would send the messages, too.
                time.sleep(0.1)
                yield b"more"

        with stream.publisher() as publisher:
            publisher.push_many(messages())


def test_what_is_told_without_waiting_leaves_before_the_client_ends(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client:
        SavedIndexes(client, "last words").save_nowait("s", {0: 5})
    with blocking.connect(node.address) as client:
        saved = SavedIndexes(client, "last words")
        # A busy node may read what this client asks before what the other one has sent last.
        wait_for(lambda: saved.get("s") == 5)


def test_answers_that_came_between_calls_are_found_by_the_next(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client:
        stream = client.create("between calls")
        publisher = stream.publisher()
        pushes = [publisher.push(b"%d" % number) for number in range(3)]
        stream.pull()
        assert [push.result() for push in pushes] == [0, 1, 2]
        publisher.close()


def test_one_thread_at_a_time(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client:
        stream = client.create("threads")
        waiting = threading.Thread(target=lambda: stream.pull_page(0, wait_s=1.0))
        waiting.start()

        def interfere() -> None:
            while waiting.is_alive():
                stream.info()

        with pytest.raises(RuntimeError, match="one thread at a time"):
            interfere()
        waiting.join()
        assert stream.push(b"x") == 0


def test_a_large_answer_and_a_large_push_cross(node: NodeProcess) -> None:
    """Both directions are full at once; neither waits for the other."""
    with blocking.connect(node.address) as client:
        stream = client.create("large")
        data = os.urandom(1_000_000)
        with stream.publisher(window=8) as publisher:
            for _ in range(16):
                publisher.push(data)
            page = stream.pull_page(0, wait_s=5.0)
        assert [len(each.data) for each in page.messages]
        assert sum(len(each.data) for each in stream.follow(stop_at_end=True)) == 16_000_000


def test_a_connection_that_dies_in_the_middle_of_a_frame_is_made_again(node: NodeProcess) -> None:
    """A proxy passes on some bytes each way, then hangs up, anywhere in a frame."""
    stop = threading.Event()

    def serve(cuts: list[int]) -> None:
        while cuts:
            connection, _ = listening.accept()
            with connection, socket.create_connection(split_host_port(node.address)) as inner:
                # On a slow machine the client also asks whether HTTP or TLS is spoken here (`identify`).
                if connection.recv(1, socket.MSG_PEEK) in b"G\x16":
                    continue
                cut, passed = cuts.pop(0), 0
                for each in (connection, inner):
                    each.settimeout(0.02)
                while passed < cut and not stop.is_set():
                    for source, target in ((connection, inner), (inner, connection)):
                        try:
                            data = source.recv(max(1, cut - passed))
                        except TimeoutError:
                            continue
                        target.sendall(data)
                        passed += len(data)

    with listener() as (address, listening):
        proxy = threading.Thread(target=serve, args=([40, 90, 170, 260, 10**9],))
        proxy.start()
        try:
            with blocking.connect(address) as client:
                stream = client.create("cut")
                with stream.publisher(idempotent=True) as publisher:
                    indexes = publisher.push_many([b"%d" % number for number in range(10)])
                assert indexes == list(range(10))
                assert [each.data for each in stream.pull()] == [b"%d" % number for number in range(10)]
                assert client.statistics().connections == 5
        finally:
            stop.set()
            proxy.join()


class OwnPositions:
    """Positions of a program: no more than `Positions` asks for."""

    def __init__(self) -> None:
        self.saved: dict[int, int] = {}

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        return [self.saved.get(partition, 0) for partition in partitions]

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        self.saved.update(indexes)

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        self.saved.update(indexes)


class NotedIndexes(SavedIndexes):
    """A program's own form of the positions at the node."""

    noted: ClassVar[list[Mapping[int, int]]] = []

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        self.noted.append(indexes)
        super().save(stream_name, indexes)


def test_a_program_keeps_positions_itself(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client:
        stream = client.create("own positions")
        for number in range(3):
            stream.push(b"%d" % number)
        own, noted = OwnPositions(), NotedIndexes(client, "noted")
        for positions in (own, noted):
            with stream.consumer(positions) as consumer:
                assert [each.data for each in consumer.messages(stop_at_end=True)] == [b"0", b"1", b"2"]
        assert own.saved == noted.noted[-1] == {0: 3}
        assert SavedIndexes(client, "noted").get("own positions") == 3


def test_an_event_loop_of_the_thread_does_not_end_a_client(node: NodeProcess) -> None:
    """Goal: a notebook can use the blocking client, and a function can keep it when its loop has ended."""
    with contextlib.ExitStack() as opened:

        async def cell() -> blocking.Stream:
            return opened.enter_context(blocking.connect(node.address)).create("in a notebook")

        stream = asyncio.run(cell())
        assert stream.pull() == []
        assert stream.push(b"after the loop") == 0


def test_a_generator_that_is_closed_closes_its_client(node: NodeProcess) -> None:
    clients: list[blocking.StreamClient] = []

    def numbers() -> Generator[int, None, None]:
        with blocking.connect(node.address) as client:
            clients.append(client)
            yield client.create("closed generator").push(b"x")

    generator = numbers()
    assert next(generator) == 0
    generator.close()
    assert repr(clients[0]) == f"<StreamClient of {node.address}, closed>"


def test_the_end_of_a_block_passes_on_every_exception(node: NodeProcess) -> None:
    for error in (StopIteration(), StopAsyncIteration(), KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)) as raised, blocking.connect(node.address):
            raise error
        assert raised.value is error


def test_what_is_one_object_of_the_async_client_is_one_object(node: NodeProcess) -> None:
    with blocking.connect(node.address) as client:
        parts = client.create_partitioned("one object each", 2)
        stream = parts.partitions[1]
        assert client.session is client.session is stream.session
        assert stream is parts.get_partition(1) is parts.partitions[1]
        again = blocking.Stream(stream.session, stream.handle)
        assert again != stream
        assert stream in {stream: again}
        client.session.answer_timeout_s = 7.0
        assert stream.session.answer_timeout_s == 7.0


def test_a_program_can_make_streams_and_consumers_and_derive_from_them(node: NodeProcess) -> None:
    class Counted(blocking.Stream, Generic[T]):
        """A stream that counts its pushes."""

        pushes: int

        def __init__(self, stream: blocking.Stream) -> None:
            super().__init__(stream.session, stream.handle)
            self.pushes = 0

        def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> int:
            self.pushes += 1
            return super().push(data, key=key, headers=headers)

    with blocking.connect(node.address) as client:
        stream = Counted[int](blocking.StreamClient(client.session).create("made by hand"))
        assert stream.push(b"a") == 0
        assert (stream.pushes, stream.name, Counted.__doc__) == (1, "made by hand", "A stream that counts its pushes.")
        parts = blocking.PartitionedStream([stream])
        with (
            blocking.Consumer(stream, "one", page_messages=5) as one,
            blocking.PartitionedConsumer(parts.partitions, SavedIndexes(client, "all")) as all_of_them,
            blocking.SharedConsumer(parts.partitions, "shared") as shared,
        ):
            assert [message.data for message in one.messages(stop_at_end=True)] == [b"a"]
            assert [message.data for _, message in all_of_them.messages(stop_at_end=True)] == [b"a"]
            assert [message.data for _, message in shared.messages(stop_at_end=True)] == [b"a"]
