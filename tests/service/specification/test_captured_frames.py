"""Goal: whoever talked to the real Ockam stream service gets the same answers here.

Method: every frame that real clients sent (`tests/vectors/ockam`) is sent to a whole server, connection by connection,
in the captured order. Each answer must be, byte for byte, what the real service answered, but for DIFFERENCES.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import trio
import trio.testing

from index_service.protocol import INDEX, INDEX_PARTITIONED, Index, SaveIndex, SavePartitionIndex
from ockam.actors.address import Address, Route
from ockam.protocol import ERROR, Error
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_service.names import stream_address
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    PUSH,
    PullResponse,
    PushConfirm,
    Status,
    StreamCreated,
)
from tests.support.served import PATIENCE_S, Served, served, wait_until

VECTORS = Path(__file__).parents[2] / "vectors" / "ockam"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "vectors" / "ockam"
CAPTURES = ("head_calls", "head_client", "legacy_calls", "legacy_client")
WIRES: dict[str, Wire] = {"head": HEAD, "legacy": LEGACY}


class Answer(NamedTuple):
    onward_route: Route
    return_route: Route
    payload: bytes


class Difference(NamedTuple):
    """Where this node answers otherwise than the real service, and why.

    `expected(real, ours)` is what the real answer becomes here, or None where the difference has no place.
    """

    name: str
    reason: str
    expected: Callable[[Answer, Answer], Answer | None]


def _stream_address(real: Answer, ours: Answer) -> Answer | None:
    for protocol in (CREATE, CREATE_PARTITIONED):
        if protocol.is_in(real.payload) and protocol.is_in(ours.payload):
            init = protocol.decode_response(ours.payload)
            partition = 0 if isinstance(init, StreamCreated) else init.partition
            return real._replace(return_route=(stream_address(init.stream_name, partition),))
    return None


def _generated_name(real: Answer, ours: Answer) -> Answer | None:
    if not (CREATE.is_in(real.payload) and CREATE.is_in(ours.payload)):
        return None
    names = [CREATE.decode_response(answer.payload).stream_name for answer in (real, ours)]
    if all(name.startswith("generated_") and len(name) == len(names[0]) for name in names):
        return real._replace(payload=ours.payload)
    return None


def _error_text(real: Answer, ours: Answer) -> Answer | None:
    if not (ERROR.is_in(real.payload) and ERROR.is_in(ours.payload)):
        return None
    texts = [ERROR.decode_response(answer.payload).reason for answer in (real, ours)]
    if texts[0] == "Invalid request" and texts[1].startswith("Invalid request: "):
        return real._replace(payload=ours.payload)
    return None


def _unknown_index(real: Answer, ours: Answer) -> Answer | None:
    if not INDEX.is_in(real.payload):
        return None
    index = INDEX.decode_response(real.payload)
    if index.index is not None:
        return None
    return real._replace(payload=INDEX.encode_response(Index(index.client_id, index.stream_name, 0)))


DIFFERENCES = (
    Difference("stream address", "ours comes from name and partition, so that it survives a restart", _stream_address),
    Difference("generated name", "both services draw its digits at random", _generated_name),
    Difference("error text", "ours goes on after the real text, and says what is wrong", _error_text),
    Difference("unknown index", "the specification wants a record with index 0; peers treat none as 0", _unknown_index),
)


class Captured(msgspec.Struct, frozen=True):
    """One line of a capture."""

    connection: int
    direction: str
    length_prefix: str
    frame: str
    payload: str
    meaning: str


class Frame(NamedTuple):
    """One captured frame in the framing that it is replayed in."""

    connection: int
    from_client: bool
    raw: bytes


def captured(name: str, wire: Wire) -> list[Frame]:
    """The frames of a capture, written anew where its framing is not that one."""
    own_wire = WIRES[name.partition("_")[0]]
    lines = msgspec.convert(json.loads((VECTORS / f"{name}.json").read_text())["frames"], list[Captured])
    frames = []
    for line in lines:
        raw = bytes.fromhex(line.length_prefix + line.frame)
        if own_wire is not wire:
            raw = framed(wire, decoded(own_wire, raw))
        frames.append(Frame(line.connection, line.direction == "client_to_server", raw))
    return frames


def decoded(wire: Wire, raw: bytes) -> Answer:
    onward_route, return_route, at = wire.decode_routes(raw, wire.length_bytes, len(raw))
    return Answer(onward_route, return_route, wire.decode_payload(raw, wire.length_bytes, at, len(raw)))


def framed(wire: Wire, answer: Answer) -> bytes:
    body = wire.encode_routes(answer.onward_route, answer.return_route) + wire.encode_payload(answer.payload)
    return len(body).to_bytes(wire.length_bytes, "big") + body


class Line:
    """One connection of the captured session, made again."""

    def __init__(self, stream: trio.SocketStream, wire: Wire, answers: deque[bytes]) -> None:
        self.stream = stream
        self.answers = answers
        self._wire = wire
        self._hello = wire.hello
        self._unread = b""

    async def receive_hello(self) -> None:
        with trio.fail_after(PATIENCE_S):
            while len(self._unread) < len(self._hello):
                self._unread += bytes(await self.stream.receive_some())

    async def receive(self) -> bytes:
        """The next whole frame, its length in front."""
        width = self._wire.length_bytes
        with trio.fail_after(PATIENCE_S):
            while True:
                data = self._unread.removeprefix(self._hello)
                size = width + int.from_bytes(data[:width], "big")
                if len(data) >= width and len(data) >= size:
                    assert self._unread.startswith(self._hello)
                    self._hello, self._unread = b"", data[size:]
                    return data[:size]
                self._unread += bytes(await self.stream.receive_some())


class Replay:
    """One capture sent to a server.

    addresses: the real service's stream addresses and ours for the same streams, learnt from the Inits.
    found: how often each difference was seen.
    silence: awaited after connecting and after the hello. With it, a head client waits for the node's hello before it
    sends a frame, as the Elixir one does.
    """

    def __init__(
        self, server: Served, wire: Wire, frames: list[Frame], silence: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._server = server
        self._silence = silence
        self._wire = wire
        self._frames = frames
        self._lines: dict[int, Line] = {}
        self._unanswered: list[Line] = []
        self._saves = 0
        self.addresses: dict[Address, Address] = {}
        self.found: Counter[str] = Counter()
        self.compared = 0

    async def run(self) -> None:
        answers: dict[int, deque[bytes]] = defaultdict(deque)
        for frame in self._frames:
            if not frame.from_client:
                answers[frame.connection].append(frame.raw)
        for number in dict.fromkeys(frame.connection for frame in self._frames):
            stream = await self._server.connect()
            self._lines[number] = Line(stream, self._wire, answers[number])
        for line in self._lines.values():
            if self._silence is not None:
                await self._silence()
            await line.stream.send_all(self._wire.hello)
        if self._silence is not None:
            for line in self._lines.values():
                await line.receive_hello()
            await self._silence()
        for frame in self._frames:
            if frame.from_client:
                await self._send(self._lines[frame.connection], decoded(self._wire, frame.raw))
        await self._settle()
        assert not any(line.answers for line in self._lines.values()), "the real service answered more"

    async def _send(self, line: Line, sent: Answer) -> None:
        """Send it to the same stream here. The real publisher pushes without waiting; all else waits for its answer."""
        if not PUSH.is_in(sent.payload):
            await self._settle()
        onward_route = tuple(self.addresses.get(hop, hop) for hop in sent.onward_route)
        await line.stream.send_all(framed(self._wire, sent._replace(onward_route=onward_route)))
        self._unanswered += [line] * answers_to(sent.payload)
        if is_save(sent.payload):
            self._saves += 1
            await wait_until(lambda: self._server.statistics().services.index.saves == self._saves)
        elif not PUSH.is_in(sent.payload):
            await self._settle()

    async def _settle(self) -> None:
        """Take all answers that are due."""
        while self._unanswered:
            await self._compare(self._unanswered.pop(0))

    async def _compare(self, line: Line) -> None:
        """The next answer of both services on this connection."""
        ours = await line.receive()
        real_raw = line.answers.popleft()
        real, answer = decoded(self._wire, real_raw), decoded(self._wire, ours)
        expected = real._replace(return_route=tuple(self.addresses.get(hop, hop) for hop in real.return_route))
        for difference in DIFFERENCES:
            if framed(self._wire, expected) != ours:
                changed = difference.expected(expected, answer)
                if changed is not None and changed != expected:
                    expected = changed
                    self.found[difference.name] += 1
        assert framed(self._wire, expected) == ours, f"real: {real_raw.hex()}, ours: {ours.hex()}"
        self.addresses.update(zip(real.return_route, answer.return_route, strict=True))
        self.compared += 1


def answers_to(payload: bytes) -> int:
    """How many answers this gets: one a partition, none to a save, else one."""
    if CREATE_PARTITIONED.is_in(payload):
        return CREATE_PARTITIONED.decode_request(payload).partitions
    return 0 if is_save(payload) else 1


def is_save(payload: bytes) -> bool:
    if INDEX.is_in(payload):
        return isinstance(INDEX.decode_request(payload), SaveIndex)
    return INDEX_PARTITIONED.is_in(payload) and isinstance(
        INDEX_PARTITIONED.decode_request(payload), SavePartitionIndex
    )


async def replayed(
    name: str, wire: Wire, directory: Path, silence: Callable[[], Awaitable[None]] | None = None
) -> Replay:
    async with served(directory) as server:
        replay = Replay(server, wire, captured(name, wire), silence)
        await replay.run()
        return replay


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.parametrize("name", CAPTURES)
async def test_every_captured_client_frame_gets_the_answer_of_the_real_service(
    name: str, wire: Wire, tmp_path: Path
) -> None:
    """On both framings, whichever it was captured in."""
    replay = await replayed(name, wire, tmp_path)
    assert replay.compared == sum(not frame.from_client for frame in captured(name, wire)) > 0


@pytest.mark.parametrize("name", CAPTURES)
async def test_a_client_that_connects_and_speaks_much_later_gets_the_same_answers(
    name: str, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The clients of 2022 connect when they start and speak when they have something to say; the real services wait.
    Each connection is silent for an hour and more before its hello, and for an hour behind it."""
    mock_clock.rate = 1.0

    async def an_hour() -> None:
        await trio.lowlevel.checkpoint()
        mock_clock.jump(3_600)
        await trio.testing.wait_all_tasks_blocked(0.02)

    wire = WIRES[name.partition("_")[0]]
    replay = await replayed(name, wire, tmp_path, an_hour)
    assert replay.compared == sum(not frame.from_client for frame in captured(name, wire)) > 0


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
async def test_every_listed_difference_occurs(wire: Wire, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for name in CAPTURES:
        if name.startswith(wire.name):
            found += (await replayed(name, wire, tmp_path / name)).found
    assert set(found) == {difference.name for difference in DIFFERENCES}
    assert all(difference.reason for difference in DIFFERENCES)


@pytest.mark.parametrize("name", CAPTURES)
def test_our_copies_are_the_captures(name: str) -> None:
    shared = SHARED / f"{name}.json"
    if not shared.is_file():
        pytest.skip(f"no captures beside the repository ({shared})")
    assert json.loads(shared.read_text()) == json.loads((VECTORS / f"{name}.json").read_text())


def test_a_wrong_answer_would_be_noticed() -> None:
    """No difference covers another confirm, page, name or index than the real service gave."""
    routes = ((Address(0, b"me"),), (Address(0, b"stream"),))
    for real, wrong in (
        (PUSH.encode_response(PushConfirm(1, Status.OK, 0)), PUSH.encode_response(PushConfirm(1, Status.OK, 1))),
        (PULL.encode_response(PullResponse(1, [])), ERROR.encode_response(Error("Invalid request: no"))),
        (CREATE.encode_response(StreamCreated("a")), CREATE.encode_response(StreamCreated("b"))),
        (INDEX.encode_response(Index("c", "s", 1)), INDEX.encode_response(Index("c", "s", 0))),
        (INDEX.encode_response(Index("c", "s", None)), INDEX.encode_response(Index("c", "s", 1))),
        (ERROR.encode_response(Error("Invalid request")), ERROR.encode_response(Error("No"))),
    ):
        expected = Answer(*routes, real)
        for difference in DIFFERENCES:
            expected = difference.expected(expected, Answer(*routes, wrong)) or expected
        assert expected.payload != wrong
