"""Goal: under loss, duplicates, reordering and crashes, no nonce is used twice under one key, and an idempotent
publisher stores each message once, in order.

Method: the client's core, a node between that loses, doubles and reorders, and a whole node with streams behind a
channel, in virtual time; every use of AES-GCM is recorded by key and nonce. A seed decides everything.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ockam.actors.address import local
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.channel import noise, transport
from ockam.identity.channel.admission_machine import ChannelLimits
from ockam.identity.channel.trust_list import TrustList
from ockam.identity.channel.workers.channel import ChannelWorker
from ockam.identity.channel.workers.channels import SecureChannels
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire_head import HEAD
from stream_client.core.channel_connection import ChannelConnection, ChannelSettings
from stream_client.core.client_core import ClientCore
from stream_client.core.pushes import Push
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import ChannelSilent
from stream_client.shell.base_shell import CHECK_INTERVAL_S
from stream_node.node.config import Config
from stream_node.node.services import Services, stored_streams
from stream_storage.sqlite.database import FILE_NAME, Database
from tests.ockam.identity.channel.samples import NOW_S, ephemeral, identity
from tests.support.storage.inline_runner import InlineRunner
from tests.support.virtual_time import run_seeded

FIRST_SEED = int(os.environ.get("STREAM_NODE_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + 8)
SOAK_SEEDS = range(FIRST_SEED + 8, FIRST_SEED + 400)
MESSAGES = 60
VIRTUAL_TIMEOUT_S = 3_000.0
WAY = local("TCP_way")


class Ledger:
    """Every encryption of a run: which nonce was used under which key, and that none was used twice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uses: set[tuple[bytes, bytes]] = set()
        for module in (transport, noise):
            monkeypatch.setattr(module, "AESGCM", lambda key: Noted(self, key))


class Noted:
    """A cipher that fails when it is told to use a nonce a second time under its key, by whatever object."""

    def __init__(self, ledger: Ledger, key: bytes) -> None:
        self._ledger, self._key = ledger, bytes(key)
        self._cipher = AESGCM(key)

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes | None) -> bytes:
        # The derivation of the next key encrypts zeros under the last nonce, on both sides: the same bytes each time.
        if nonce != transport._REKEY_NONCE:
            assert (self._key, nonce) not in self._ledger.uses, "a nonce was used twice under one key"
            self._ledger.uses.add((self._key, nonce))
        else:
            assert data == bytes(32)
        return self._cipher.encrypt(nonce, data, associated)

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes | None) -> bytes:
        return self._cipher.decrypt(nonce, data, associated)


class Outcome(msgspec.Struct, frozen=True):
    """What happened."""

    encrypted: int
    handshakes: int
    crashes: int
    restarts: int
    lost: int
    doubled: int
    dropped: dict[str, int]


class Way(Worker):
    """The client's connection as its node sees it: what is routed to it leaves through the bad network."""

    def __init__(self, world: World, node: Node) -> None:
        self._world = world
        self._node = node

    def handle(self, message: Message) -> None:
        # A node that has died sends nothing more.
        if self._world.node is self._node:
            self._world.carry(lambda: self._world.to_client(message))


class World:
    """One client and one node, which dies and comes again, with a bad network between them."""

    def __init__(self, seed: int, directory: Path, ledger: Ledger) -> None:
        self.rng = random.Random(seed)
        self._directory = directory
        self._ledger = ledger
        # With several pushes under way, a client relies on TCP for their order. So either the network does everything
        # and one push is under way; or many are, and messages are lost only with their connection or channel.
        self.is_wild = self.rng.random() < 0.6
        self._drop = self.rng.choice((0.0, 0.05, 0.2)) if self.is_wild else 0.0
        self._double = self.rng.choice((0.0, 0.1)) if self.is_wild else 0.0
        self._delay_s = self.rng.choice((0.0, 0.01, 0.3)) if self.is_wild else 0.0
        self._bursts = self.is_wild and self.rng.random() < 0.5
        self._window = 1 if self.is_wild else 25
        self._burst_until_s = 0.0
        self._numbers = 0
        self.node: Node | None = None
        self._nursery: trio.Nursery | None = None
        self.lost = self.doubled = self.crashes = self.restarts = 0
        self.dropped: Counter[str] = Counter()
        settings = ChannelSettings(
            identity("initiator"),
            frozenset((identity("node").identifier,)),
            (local("secure_channel"),),
            now_s=lambda: NOW_S,
            ephemeral=lambda: ephemeral(f"{seed} {self._number()}"),
            new_id=lambda: f"{self._number():016x}",
        )
        self.connection = ChannelConnection(settings)
        self.core = ClientCore(connection=self.connection)
        self.connection.on_outgoing = lambda: self._outgoing.set()
        self._outgoing = trio.Event()
        self._is_dead = False
        self._origin = Origin("tcp", "client:1")

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def run(self) -> Outcome:
        with trio.move_on_after(VIRTUAL_TIMEOUT_S) as patience:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._live_and_die)
                nursery.start_soon(self._keep_connected)
                nursery.start_soon(self._check)
                await self._publish()
                nursery.cancel_scope.cancel()
        assert not patience.cancelled_caught, "the publisher still waits: something was lost for good"
        return Outcome(
            encrypted=len(self._ledger.uses),
            handshakes=self.connection.handshakes,
            crashes=self.crashes,
            restarts=self.restarts,
            lost=self.lost,
            doubled=self.doubled,
            dropped=self.dropped,
        )

    def carry(self, deliver: Callable[[], None]) -> None:
        """Delivers later, never or twice. Sometimes everything is lost for a while."""
        assert self._nursery is not None
        now_s = trio.current_time()
        if self._bursts and self.rng.random() < 0.01:
            self._burst_until_s = now_s + self.rng.choice((1.0, 5.0))
        if now_s < self._burst_until_s or self.rng.random() < self._drop:
            self.lost += 1
            return
        if not self.is_wild:
            deliver()
            return
        copies = 2 if self.rng.random() < self._double else 1
        self.doubled += copies - 1
        for _ in range(copies):
            self._nursery.start_soon(self._deliver, deliver)

    async def _deliver(self, deliver: Callable[[], None]) -> None:
        await trio.sleep(round(self.rng.random() * self._delay_s, 2))
        deliver()

    def to_client(self, message: Message) -> None:
        frame = FrameWriter(HEAD).encode([message], lambda error: pytest.fail(str(error)))[1]
        if self.core.connection.framing is not None:
            self.core.receive_data(frame)
            self.core.check()

    def _to_node(self, message: Message) -> None:
        if self.node is not None:
            self.node.send(Message(message.onward_route, (WAY, *message.return_route), message.payload, self._origin))

    async def _keep_connected(self) -> None:
        """Sends what the core has, each frame by itself, over one connection after the other."""
        while True:
            self.core.connected(HEAD)
            self.core.receive_data(HEAD.hello)
            reader = FrameReader(HEAD, HERE)
            is_first, self._is_dead = True, False
            with trio.move_on_after(self.rng.choice((5.0, 60.0, 1e9))):
                while not self._is_dead:
                    data = self.core.connection.data_to_send()
                    if data and is_first:
                        data, is_first = data.removeprefix(HEAD.hello), False
                    for message in reader.feed(data) if data else ():
                        self.carry(lambda message=message: self._to_node(message))  # type: ignore[misc]
                    if not self.connection.outgoing_bytes:
                        self._outgoing = trio.Event()
                        await self._outgoing.wait()
            self.core.disconnected()

    async def _check(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            if self.core.check_progress():
                self._is_dead = True
                self._outgoing.set()
            self.core.check()

    async def _publish(self) -> None:
        """Pushes through an idempotent publisher, a few at a time, until all are confirmed."""
        request = self.core.create("s")
        while not request.done or request.error is not None:
            # Before the first channel, a listener that does not answer fails the request.
            if request.done:
                assert isinstance(request.error, ChannelSilent), request.error
                request = self.core.create("s")
            await trio.sleep(0.1)
        (handle,) = self.core.streams.handles(request)
        queue = self.core.open_queue(handle, SequenceMachine(b"publisher", 0, None))
        pushes: list[Push] = []
        for number in range(MESSAGES):
            while len(queue.pushes) >= self._window:
                await trio.sleep(0.05)
            pushes.append(queue.push_keyed(b"%d" % number, None, ()))
            await trio.sleep(self.rng.choice((0.0, 0.0, 0.02, 0.5)))
        while queue.pushes:
            await trio.sleep(0.5)
        assert not (errors := {str(push.error) for push in pushes if push.error is not None}), errors
        self.indexes = [push.index for push in pushes]

    async def _live_and_die(self) -> None:
        while True:
            database = Database.open(self._directory)
            try:
                async with trio.open_nursery() as nursery:
                    await self._live(nursery, database)
                    self.node = None
                    nursery.cancel_scope.cancel()
            finally:
                database.close()
            self.restarts += 1

    async def _live(self, nursery: trio.Nursery, database: Database) -> None:
        """A node for a while. Its channels are gone when it dies, as those of a process would be."""
        node = Node(nursery)
        runner = InlineRunner(database, nursery, batches=node)
        services = Services(node, runner, Config(data_dir=str(self._directory), block_node=False))
        services.start(stored_streams(database))
        channels = SecureChannels(
            node,
            nursery,
            lambda now_s: identity("node"),
            TrustList(None, [str(identity("initiator"))]),
            limits=ChannelLimits(peer_handshakes_max=4, handshake_s_max=5.0),
            now_s=lambda: NOW_S,
            new_id=lambda: f"{self._number():016x}",
            ephemeral=lambda: ephemeral(f"node {self._number()} {self.rng.random()}"),
        )
        channels.start()
        node.register([WAY], lambda: Way(self, node))
        self.node = node
        until_s = trio.current_time() + self.rng.choice((3.0, 20.0, 1e9))
        while trio.current_time() < until_s:
            await trio.sleep(self.rng.choice((0.5, 3.0)))
            channels.check()
            if self.rng.random() < 0.15:
                self._crash_a_channel(node)
        self.dropped.update(channels.statistics().dropped)

    def _crash_a_channel(self, node: Node) -> None:
        """Lets the worker of a channel fail on its next message, in the middle of its work."""
        workers = [cell.worker for cell in node._cells.values() if isinstance(cell.worker, ChannelWorker)]
        if not workers:
            return
        worker = self.rng.choice(workers)
        name = self.rng.choice(("_hand_on", "_send", "_finish_handshake"))
        original = getattr(worker, name)

        def fails(*arguments: Any) -> Any:
            # The work is done, so nonces are used, and then the worker fails.
            original(*arguments)
            self.crashes += 1
            raise RuntimeError("the seed wants a crash")

        setattr(worker, name, fails)


def stored(directory: Path) -> list[bytes]:
    """The data of every stored message in the order of indexes, read without any code of the node."""
    with contextlib.closing(sqlite3.connect(directory / FILE_NAME)) as database:
        return [bytes(row[0]) for row in database.execute("SELECT data FROM messages ORDER BY idx")]


def run(seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    directory.mkdir()
    world = World(seed, directory, Ledger(monkeypatch))
    outcome = run_seeded(seed, world.run)
    # Exactly once and in order: the indexes of the confirms, and what is stored.
    assert world.indexes == list(range(MESSAGES)), f"replay: STREAM_NODE_SEED={seed}"
    assert stored(directory) == [b"%d" % number for number in range(MESSAGES)], f"replay: STREAM_NODE_SEED={seed}"
    assert outcome.encrypted > 2 * MESSAGES
    return outcome


def test_seeded_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [run(seed, tmp_path / str(seed), monkeypatch) for seed in SEEDS]
    # The runs are not all alike, and the network and the crashes did something.
    assert max(outcome.handshakes for outcome in outcomes) > 2
    assert sum(outcome.crashes for outcome in outcomes) > 0
    assert sum(outcome.restarts for outcome in outcomes) > 0
    assert sum(outcome.doubled for outcome in outcomes) > 0
    assert sum(outcome.dropped.get("replayed", 0) for outcome in outcomes) > 0


@pytest.mark.soak
def test_many_seeded_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SOAK_SEEDS:
        run(seed, tmp_path / str(seed), monkeypatch)


def test_the_ledger_notices_a_channel_that_is_started_again_with_its_old_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: the one mistake that must never be made is found by the check of the runs above."""
    Ledger(monkeypatch)
    transport.Sealer(bytes(32)).seal(b"first")
    with pytest.raises(AssertionError, match="used twice"):
        transport.Sealer(bytes(32)).seal(b"second")
