"""Nodes of a cluster as processes, and users that push and pull through all of them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from stream_client import ClientError, PushNotStored, blocking
from stream_node.node.process import NodeProcess
from tests.support.postgres import PostgresServer

PATIENCE_S = 60.0


class Nodes:
    """Nodes of one cluster, named n0, n1 and so on. A context manager, which kills them at its end."""

    def __init__(self, server: PostgresServer, database: str, folder: Path, count: int, **settings: object) -> None:
        self._server, self._database = server, database
        environment = {f"STREAM_NODE_{name.upper()}": str(value) for name, value in settings.items()}
        self.all = [
            NodeProcess(
                folder / f"n{number}" / "data",
                arguments=("--database", server.url_of(database), "--cluster", f"n{number}"),
                environment=environment,
            )
            for number in range(count)
        ]
        self._stack = ExitStack()
        for number in range(count):
            (folder / f"n{number}").mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        for node in self.all:
            self._stack.enter_context(node)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def wait_shared(self, members: int) -> None:
        """Returns when so many members own shards, and every shard has an owner among them."""
        wait_for(lambda: len(self.owners()) == members and "" not in self.owners())

    def owners(self) -> dict[str, int]:
        """The number of shards of each owner, as the database has it."""
        counts: dict[str, int] = {}
        for line in self.ask("SELECT '=' || convert_from(owner, 'UTF8') FROM cluster_shards").splitlines():
            owner = line.removeprefix("=")
            counts[owner] = counts.get(owner, 0) + 1
        return counts

    def ask(self, query: str) -> str:
        """What psql prints for a query on the database of the cluster."""
        return self._server.ask(query, self._database)


def wait_for(is_so: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.05)


def log_lines(node: NodeProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.log_file.read_text().splitlines() if line.startswith("{")]


class User(threading.Thread):
    """Runs a function with a client again and again until `end`. failure: why it ended before."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self._ended = threading.Event()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def work(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure


class Publisher(User):
    """Pushes numbers to one stream, each one after the confirm of the last one, through one node.

    confirmed: by index, the number. doubtful: the numbers whose confirm did not come.
    """

    def __init__(self, address: Callable[[], str], stream: str, *, patient: bool = True, pause_s: float = 0.0) -> None:
        """patient: whether the end of its connection is a failure. pause_s: between two pushes."""
        super().__init__(f"publisher of {stream}")
        self._pause_s = pause_s
        self._address = address
        self._stream = stream
        self._patient = patient
        self.confirmed: dict[int, int] = {}
        self.doubtful: set[int] = set()
        self.number = 0

    def work(self) -> None:
        while not self.is_over:
            try:
                with blocking.connect(self._address(), reconnect=None, answer_timeout_s=PATIENCE_S) as client:
                    stream = client.create(self._stream)
                    while not self.is_over:
                        self._push(stream)
                        time.sleep(self._pause_s)
            except (ClientError, OSError):
                if self._patient:
                    raise
                time.sleep(0.1)

    def _push(self, stream: Any) -> None:
        number = self.number
        self.number += 1
        try:
            index = stream.push(b"%d" % number)
        except PushNotStored:
            return
        except ClientError:
            self.doubtful.add(number)
            raise
        assert index not in self.confirmed, f"index {index} was given twice"
        self.confirmed[index] = number

    def wait(self, count: int) -> None:
        """Returns after so many further confirms."""
        wanted = len(self.confirmed) + count
        wait_for(lambda: len(self.confirmed) >= wanted or not self.is_alive())
        assert self.is_alive(), self.failure

    def check(self, stored: Sequence[bytes]) -> None:
        """Checks the contents of the stream, from index 0, against what was confirmed."""
        late = self.check_once(stored)
        assert not late, f"the order is wrong: {late} are stored behind later numbers"

    def check_once(self, stored: Sequence[bytes]) -> list[int]:
        """Checks the same, but for the order. Returns the numbers that are stored behind a later number."""
        numbers = [int(each) for each in stored]
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        assert not twice, f"stored twice: {twice}"
        for index, number in self.confirmed.items():
            assert numbers[index] == number, f"index {index} has {numbers[index]}, not {number}"
        unexplained = set(numbers) - set(self.confirmed.values()) - self.doubtful
        assert not unexplained, f"stored and never sent, or refused: {unexplained}"
        highest = accumulate(numbers, max)
        return [number for number, most in zip(numbers, highest, strict=True) if number < most]


class Follower(User):
    """Follows one stream through one node, up to the message `END`. data: the messages so far, with END."""

    END = b"the end"

    def __init__(self, address: str, stream: str) -> None:
        super().__init__(f"follower of {stream}")
        self._address = address
        self._stream = stream
        self.data: list[bytes] = []

    def work(self) -> None:
        with blocking.connect(self._address) as client:
            for message in client.create(self._stream).follow():
                assert message.index == len(self.data), f"{message.index} is not the next index"
                self.data.append(message.data)
                if message.data == self.END:
                    return

    def check(self, stored: Sequence[bytes]) -> None:
        """Checks that it gets all stored messages. The last thing that happens to the stream."""
        with blocking.connect(self._address) as client:
            client.create(self._stream).push(self.END)
        self.end()
        assert self.data == [*stored, self.END]


def rows(ask: Callable[[str], str], stream: str) -> list[bytes]:
    """The messages of partition 0 of a stream, read by psql. Checks that their indexes have no gap."""
    text = ask(
        "SELECT idx || ' ' || convert_from(data, 'UTF8') FROM messages JOIN streams ON id = stream_id "
        f"WHERE convert_from(name, 'UTF8') = '{stream}' ORDER BY idx"
    )
    found = [line.split(" ", 1) for line in text.splitlines()]
    assert [int(index) for index, _ in found] == list(range(len(found)))
    return [data.encode() for _, data in found]
