"""Simulates producers, from a random seed: blocks, forks and reorgs, as messages that arrive in disorder.

Some messages arrive late, some twice, and some are lost at first and sent again. Every consumer must end with the same
heaviest chain, in whatever order the messages arrive: each fork is lighter than the chain and no longer than the reorg
threshold, and every lost message is sent again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from cardinal_streams.application import Application, Prefix
from cardinal_streams.errors import SimulationError
from cardinal_streams.limits import HASH_BYTES
from cardinal_streams.machines.events import Start
from cardinal_streams.message.messages import Record
from cardinal_streams.payload import Payload
from cardinal_streams.produce.producer import ReorgChannel

SIMULATED = Application(
    "simulated",
    "sim-blocks",
    (
        Prefix(pattern="a/", topic="sim-accounts", schema="ASCII text", check=lambda value: value.decode("ascii")),
        Prefix(pattern="l/", topic="sim-logs", schema="ASCII text", check=lambda value: value.decode("ascii")),
        Prefix(pattern="s/", topic="sim-state", schema="ASCII text", check=lambda value: value.decode("ascii")),
    ),
    reorg_threshold=8,
)
# The path of the sub batch that each block has.
SUB_BATCH_PATH = "s/"
GENESIS = Start(bytes(HASH_BYTES), 0, 0)


class Randomness(Protocol):
    """The methods of `random.Random` that the simulation uses. The caller sets the seed."""

    def random(self) -> float: ...

    def randint(self, a: int, b: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a simulation. All rates are probabilities from 0 to 1."""

    blocks: int = 100  # of the chain, without forks
    keys: int = 2  # updates under each prefix in a block
    fork_rate: float = 0.2  # that a fork begins at a block
    fork_blocks_max: int = 4  # in one fork
    deep_reorgs: int = 1  # reorgs beyond the threshold
    producers: int = 1  # each of them sends every block
    duplicate_rate: float = 0.1  # that a message arrives twice, on the channel of a reorg too
    loss_rate: float = 0.05  # that a message is lost and sent again later
    delay_max: int = 100  # how many later messages can overtake one that is neither lost nor repeated


class SentRecord(msgspec.Struct, frozen=True):
    """One message of a simulation, with the topic on which it arrives."""

    topic: str
    record: Record


class Simulation(msgspec.Struct, frozen=True):
    """A simulation: the messages in the order of arrival, and the chain that results from them."""

    steps: list[SentRecord]
    chain: list[Payload]  # the final chain of a consumer that begins at `GENESIS`
    contents: dict[bytes, dict[str, bytes]]  # the keys and values of each block, by its hash
    blocks_off_chain: int


def simulate(randomness: Randomness, options: SimulationOptions) -> Simulation:
    """Makes a simulation. Raises `SimulationError` for options that are invalid or contradict each other."""
    _check(options)
    world = _World(randomness, options)
    return Simulation(_disordered(randomness, options, world.sent), world.chain, world.contents, world.off_chain)


class _World:
    """The growing chain of a simulation."""

    def __init__(self, randomness: Randomness, options: SimulationOptions) -> None:
        self.chain: list[Payload] = []
        self.contents: dict[bytes, dict[str, bytes]] = {}
        self.off_chain = 0
        # The messages in the order of sending; on a reorg's channel each with the number of its producer, whose
        # messages arrive in order, on other topics with None.
        self.sent: list[tuple[SentRecord, int | None]] = []
        self._randomness = randomness
        self._options = options
        self._producers = [SIMULATED.producer() for _ in range(options.producers)]
        reorg_every = options.blocks // (options.deep_reorgs + 1) + 1
        depth = SIMULATED.reorg_threshold + 2
        while len(self.chain) < options.blocks:
            if self._randomness.random() < options.fork_rate:
                self._fork(min(options.blocks - len(self.chain), reorg_every - len(self.chain) % reorg_every))
            self.chain.append(self._block(self._tip(), 5))
            self._send(self.chain[-1])
            if len(self.chain) % reorg_every == 0 and len(self.chain) > depth:
                self._reorg(depth)

    def _fork(self, blocks_max: int) -> None:
        """Adds a fork after the last block of the chain."""
        # The fork has few blocks, each lighter than the chain's block with the same number, so that it never wins.
        at = self._tip()
        for _ in range(self._randomness.randint(1, min(blocks_max, self._options.fork_blocks_max))):
            block = self._block(at, self._randomness.randint(0, 4))
            self._send(block)
            self.off_chain += 1
            at = _start_at(block)

    def _reorg(self, depth: int) -> None:
        removed = self.chain[-depth:]
        del self.chain[-depth:]
        self.off_chain += depth
        ancestor = self._tip()
        new: list[Payload] = []
        at = ancestor
        for _ in range(depth + 1):
            new.append(self._block(at, 5))
            at = _start_at(new[-1])
        self.chain += new
        for index in range(len(self._producers)):
            self._send_reorg(index, ancestor, new, removed[-1].weight)

    def _send_reorg(self, index: int, ancestor: Start, new: list[Payload], removed_weight: int) -> None:
        channel = ReorgChannel(self._producers[index], ancestor.hash, ancestor.number, removed_weight)
        for topic, records in channel.begin().items():
            self.sent += [(SentRecord(topic, record), index if topic == channel.topic else None) for record in records]
        for block in new:
            records = channel.add_block(block)
            for id_ in block.sub_batches.values():
                records += channel.send_sub_batch(block.hash, id_, (), self._state_of(block))
            self.sent += [(SentRecord(channel.topic, record), index) for record in records]
        self.sent += [(SentRecord(channel.topic, record), index) for record in channel.complete()]

    def _send(self, block: Payload) -> None:
        for producer in self._producers:
            made = [producer.add_block(block)]
            made += [
                producer.send_sub_batch(block.hash, id_, (), self._state_of(block))
                for id_ in block.sub_batches.values()
            ]
            for outgoing in made:
                for topic, records in outgoing.items():
                    self.sent += [(SentRecord(topic, record), None) for record in records]

    def _block(self, parent: Start, bonus: int) -> Payload:
        number = parent.number + 1
        name = self._randomness.randbytes(HASH_BYTES)
        text = name.hex()[:8]
        updates = {
            f"{prefix}/{text}/{index}": f"{prefix} {number}.{index}".encode()
            for prefix in ("a", "l")
            for index in range(self._options.keys)
        }
        block = Payload(
            hash=name,
            number=number,
            parent=parent.hash,
            weight=10 * number + bonus,
            updates=updates,
            sub_batches={SUB_BATCH_PATH: self._randomness.randbytes(HASH_BYTES)},
        )
        self.contents[name] = updates | self._state_of(block)
        return block

    def _state_of(self, block: Payload) -> dict[str, bytes]:
        return {f"s/{block.hash.hex()[:8]}/{index}": b"state %d" % index for index in range(self._options.keys)}

    def _tip(self) -> Start:
        return _start_at(self.chain[-1]) if self.chain else GENESIS


def _start_at(block: Payload) -> Start:
    return Start(block.hash, block.number, block.weight)


def _disordered(
    randomness: Randomness, options: SimulationOptions, sent: list[tuple[SentRecord, int | None]]
) -> list[SentRecord]:
    """Returns the messages with some delayed and some repeated. On a reorg's channel, the messages of one producer stay
    in order, and a repetition follows at once."""
    late = options.delay_max
    mixed = _mixed(randomness, sent)

    def places() -> Iterator[tuple[int, SentRecord]]:
        for at, (step, producer) in enumerate(sent):
            if producer is not None:
                step = next(mixed[step.topic])
                yield at, step
                if randomness.random() < options.duplicate_rate:
                    yield at, step
                continue
            if randomness.random() < options.duplicate_rate:
                yield at + randomness.randint(0, 2 * late), step
            lost = late if randomness.random() < options.loss_rate else 0
            yield at + lost + randomness.randint(0, late), step

    return [step for _, step in sorted(places(), key=lambda place: place[0])]


def _mixed(randomness: Randomness, sent: list[tuple[SentRecord, int | None]]) -> dict[str, Iterator[SentRecord]]:
    """Returns the messages of each reorg's channel. On every second channel the producers write at the same time, and
    their messages are mixed. On the other channels they write one after another."""
    sections: dict[str, dict[int, list[SentRecord]]] = {}
    for step, producer in sent:
        if producer is not None:
            sections.setdefault(step.topic, {}).setdefault(producer, []).append(step)
    found: dict[str, Iterator[SentRecord]] = {}
    for index, (topic, by_producer) in enumerate(sections.items()):
        left = [each for steps in by_producer.values() for each in [iter(steps)] * len(steps)]
        for at in range(len(left) - 1, 0, -1) if index % 2 == 0 else ():
            other = randomness.randint(0, at)
            left[at], left[other] = left[other], left[at]
        found[topic] = map(next, left)
    return found


def _check(options: SimulationOptions) -> None:
    for name in ("fork_rate", "duplicate_rate", "loss_rate"):
        if not 0.0 <= getattr(options, name) <= 1.0:
            raise SimulationError(f"{name} is {getattr(options, name)}, not between 0 and 1")
    if min(options.blocks, options.keys, options.fork_blocks_max, options.producers) < 1:
        raise SimulationError("a simulation has at least 1 block, key, fork block and producer")
    if min(options.deep_reorgs, options.delay_max) < 0:
        raise SimulationError("deep reorgs and delays are not negative")
    if options.fork_blocks_max > SIMULATED.reorg_threshold:
        raise SimulationError(f"a fork has at most {SIMULATED.reorg_threshold} blocks, the threshold of reorgs")
    needed = (options.deep_reorgs + 1) * (SIMULATED.reorg_threshold + 3) if options.deep_reorgs else 0
    if options.blocks < needed:
        raise SimulationError(f"{options.deep_reorgs} deep reorgs need at least {needed} blocks")
