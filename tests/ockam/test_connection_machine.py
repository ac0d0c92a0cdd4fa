"""Goal: a connection's machine is in the state that its table says, and its invariants hold in any order of events.

Method: the whole table, compared with what may happen in each state; then random steps of a connection, in the order in
which its worker makes them, against a plain account of the bytes that wait. Time is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.transport.connection_machine import (
    BACKLOG_BYTES_HARD,
    LINGER_QUIET_S,
    LINGER_S_MAX,
    TRANSITIONS,
    ConnectionLimits,
    ConnectionMachine,
    TransportEvent,
    TransportState,
)
from ockam.transport.frames import FrameWriter
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY

US = local("us")
SOFT_BYTES = 2_000
ELSEWHERE = Origin("tcp", "peer:1")
READS = {TransportState.OPENING, TransportState.OPEN, TransportState.HELD_BACK}


def machine(wire: Wire | None = None, limits: ConnectionLimits | None = None) -> ConnectionMachine:
    return ConnectionMachine(
        wire,
        US,
        limits or ConnectionLimits(),
        share_bytes=lambda most_bytes: min(most_bytes, SOFT_BYTES),
        origin=lambda wire: Origin("tcp", "peer:2", frame_bytes_max=wire.send_bytes_max),
    )


def frame(payload: bytes, wire: Wire = HEAD) -> bytes:
    return FrameWriter(wire).encode([Message((US, local("worker")), (local("me"),), payload)], lambda error: None)[1]


def refuse(error: FrameTooLarge) -> None:
    pytest.fail(str(error))


def order(to: ConnectionMachine, state: TransportState) -> None:
    """Bring a machine into one of the states that the node orders."""
    if state is TransportState.NOT_READING:
        to.stop_reading()
    elif state is TransportState.DRAINING:
        to.close_when_sent()
    else:
        assert state is TransportState.CLOSED
        to.close("shutdown")


def fill(opened: ConnectionMachine) -> None:
    opened.backlog.add(bytes(SOFT_BYTES + 1))
    assert opened.must_hold_back()


REACH: dict[TransportState, Callable[[], ConnectionMachine]] = {}
"""How a connection comes into each state."""


def reaches(state: TransportState) -> Callable[[Callable[[], ConnectionMachine]], Callable[[], ConnectionMachine]]:
    def note(way: Callable[[], ConnectionMachine]) -> Callable[[], ConnectionMachine]:
        REACH[state] = way
        return way

    return note


@reaches(TransportState.OPENING)
def opening() -> ConnectionMachine:
    return machine()


@reaches(TransportState.OPEN)
def opened() -> ConnectionMachine:
    made = machine()
    assert made.receive_opening(HEAD.hello + frame(b"x"), 0.0) == (HEAD.hello, frame(b"x"))
    return made


@reaches(TransportState.HELD_BACK)
def held_back() -> ConnectionMachine:
    made = opened()
    fill(made)
    return made


@reaches(TransportState.PEER_CLOSED)
def peer_closed() -> ConnectionMachine:
    made = opened()
    made.reading_ended("closed_by_peer", 0.0)
    return made


@reaches(TransportState.NOT_READING)
def not_reading() -> ConnectionMachine:
    made = opened()
    made.stop_reading()
    return made


@reaches(TransportState.DRAINING)
def draining() -> ConnectionMachine:
    made = opened()
    made.close_when_sent()
    return made


@reaches(TransportState.CLOSED)
def closed() -> ConnectionMachine:
    made = opened()
    made.close("shutdown")
    return made


def happen(event: TransportEvent, to: ConnectionMachine) -> None:
    """Make the event happen by the call that a worker makes."""
    if event is TransportEvent.OPENED:
        to.receive_opening(HEAD.hello + frame(b"x"), 0.0)
    elif event is TransportEvent.BACKLOG_HIGH:
        fill(to)
    elif event is TransportEvent.BACKLOG_LOW:
        to.backlog.take()
        to.backlog.note_sent(to.backlog.size_bytes)
        assert not to.must_hold_back()
    elif event is TransportEvent.READING_ENDED:
        to.reading_ended("closed_by_peer", 0.0)
    elif event is TransportEvent.STOP_READING:
        to.stop_reading()
    elif event is TransportEvent.CLOSE_WHEN_SENT:
        to.close_when_sent()
    else:
        to.close("shutdown")


@pytest.mark.parametrize("state", TransportState)
def test_every_state_is_reached(state: TransportState) -> None:
    made = REACH[state]()
    assert made.state is state
    made.check()


# What cannot happen, since the machine compares the backlog with its state before it tells the table.
NEVER = {(TransportState.OPEN, TransportEvent.BACKLOG_LOW), (TransportState.HELD_BACK, TransportEvent.BACKLOG_HIGH)}


@pytest.mark.parametrize("event", TransportEvent)
@pytest.mark.parametrize("state", TransportState)
def test_the_whole_table(state: TransportState, event: TransportEvent) -> None:
    """Every entry is what the calls do; where there is none, the machine refuses the call as our mistake."""
    made = REACH[state]()
    expected = TRANSITIONS[state].get(event)
    if expected is not None:
        if event is TransportEvent.OPENED and state is not TransportState.OPENING:
            # A hello that came while the node stopped is still read to its end.
            made = REACH[TransportState.OPENING]()
            order(made, state)
        happen(event, made)
        assert made.state is expected
        made.check()
    elif (state, event) in NEVER:
        made.must_hold_back()
        assert made.state is state
    elif event is not TransportEvent.BACKLOG_LOW:
        with pytest.raises(AssertionError):
            happen(event, made)
        assert made.state is state


def test_a_connection_ends_only_forward() -> None:
    """No event brings a connection back to reading, and nothing leads out of CLOSED."""
    for state, row in TRANSITIONS.items():
        for event, after in row.items():
            assert state in READS or after not in READS, (state, event)
    assert set(TRANSITIONS[TransportState.CLOSED].values()) == {TransportState.CLOSED}
    assert TRANSITIONS.keys() == set(TransportState)
    for order in (TransportEvent.STOP_READING, TransportEvent.CLOSE_WHEN_SENT, TransportEvent.CLOSE):
        assert all(order in row for row in TRANSITIONS.values())


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
def test_a_node_that_we_called_is_sent_messages_before_its_hello(wire: Wire) -> None:
    called = machine(wire)
    assert called.state is (TransportState.OPENING if wire.hello else TransportState.OPEN)
    pieces = called.encode([Message((US, local("worker")), (local("me"),), b"x")], refuse)
    assert b"".join(pieces) == frame(b"x", wire)
    if wire.hello:
        with pytest.raises(RemoteProtocolError, match="opened with nothing"):
            called.receive_opening(b"", 0.0)
        assert called.receive_opening(wire.hello + b"more", 0.0) == (b"", b"more")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("broken", "closed_by_peer", "closed_by_peer"),
        ("broken", None, "broken"),
        ("slow_consumer", "closed_by_peer", "slow_consumer"),
        (None, "undecodable", "undecodable"),
        (None, None, "drained"),
    ],
)
def test_the_reason_that_is_counted(first: str | None, second: str | None, told: str) -> None:
    made = opened()
    if second is not None:
        made.reading_ended(second, 0.0)
    if first is not None:
        made.close(first)
        made.close("shutdown")
    made.end()
    assert made.end_reason == told


def test_a_frame_has_its_time_from_its_first_byte_on_and_is_excused_for_ours() -> None:
    made = machine(limits=ConnectionLimits(frame_s=10.0, idle_s=60.0))
    assert made.read_deadline_s(5.0) == 65.0
    made.receive_opening(HEAD.hello, 5.0)
    assert made.frame_deadline_s == math.inf
    whole = frame(b"payload")
    made.receive_opening(whole[:8], 6.0)
    made.receive_data(whole[:8], 6.0)
    assert made.frame_deadline_s == 16.0
    made.receive_data(whole[8:10], 12.0)
    assert made.read_deadline_s(12.0) == 16.0
    made.excuse(2.0)
    assert made.read_timeout(18.0).kind == "slow_frame"
    assert made.read_timeout(30.0).kind == "idle"
    # The next frame begins with the end of this one.
    messages, failure = made.receive_data(whole[10:] + whole[:1], 13.0)
    assert ([message.payload for message in messages], failure) == ([b"payload"], None)
    assert made.frame_deadline_s == 23.0
    made.receive_data(whole[1:], 14.0)
    assert made.frame_deadline_s == math.inf


def test_the_sending_side_stays_open_while_answers_go_out_but_not_for_ever() -> None:
    silent = opened()
    silent.reading_ended("closed_by_peer", 100.0)
    assert silent.linger_until_s() == 100.0
    asked = opened()
    asked.receive_data(frame(b"x"), 100.0)
    asked.reading_ended("closed_by_peer", 101.0)
    assert asked.linger_until_s() == 101.0 + LINGER_QUIET_S
    asked.sent_at_s = 101.5
    assert asked.linger_until_s() == 101.5 + LINGER_QUIET_S
    asked.sent_at_s = 1_000.0
    assert asked.linger_until_s() == 101.0 + LINGER_S_MAX


def test_a_peer_beyond_the_hard_bound_is_a_slow_consumer() -> None:
    made = opened()
    made.backlog.size_bytes = BACKLOG_BYTES_HARD
    assert not made.is_slow_consumer
    made.backlog.forward([Message((US,), (), b"x", ELSEWHERE)])
    assert made.is_slow_consumer, "the answers of other nodes count"


class Model:
    """A machine, the worker's steps around it, and a plain account of what it holds."""

    def __init__(self, wire: Wire | None) -> None:
        self.machine = machine(wire)
        self.now_s = 0.0
        self.unsent = [len(self.machine.backlog.chunks[0])] if self.machine.backlog.chunks else []
        self.sending_bytes = 0
        self.forwarded: list[bytes] = []
        self.got: list[bytes] = []
        self.input = (b"" if wire is LEGACY else HEAD.hello) + b"".join(
            frame(bytes([number]) * number, wire or HEAD) for number in range(40)
        )

    def queue(self, data: bytes) -> None:
        if data and self.machine.state is not TransportState.CLOSED:
            self.machine.backlog.add(data)
            self.unsent.append(len(data))

    def pump(self) -> None:
        """Forward what there is room for, as the worker does behind every send."""
        while run := self.machine.take_forwarded():
            self.forwarded = self.forwarded[len(run) :]
            self.queue(b"".join(self.machine.encode(run, refuse)))

    def read(self, size_bytes: int) -> None:
        made = self.machine
        if made.state not in READS or made.state is TransportState.HELD_BACK:
            return
        chunk, self.input = self.input[:size_bytes], self.input[size_bytes:]
        if not chunk:
            made.reading_ended("closed_by_peer", self.now_s)
            return
        if made.state is TransportState.OPENING:
            reply, chunk = made.receive_opening(chunk, self.now_s)
            self.queue(reply)
        if made.state is TransportState.OPEN and chunk:
            messages, failure = made.receive_data(chunk, self.now_s)
            assert failure is None
            self.got += [message.payload for message in messages]
            made.must_hold_back()

    def receive(self, size_bytes: int) -> None:
        """A message of a worker of the node."""
        if self.machine.writer is not None and self.machine.state is not TransportState.CLOSED:
            message = Message((US, local("worker")), (local("me"),), bytes(size_bytes))
            self.queue(b"".join(self.machine.encode([message], refuse)))

    def forward(self, size_bytes: int) -> None:
        """A message of another peer."""
        if self.machine.writer is not None and self.machine.state is not TransportState.CLOSED:
            message = Message((US, local("worker")), (local("me"),), bytes(size_bytes), ELSEWHERE)
            self.machine.backlog.forward([message])
            self.forwarded.append(message.payload)
            self.pump()

    def send(self, share: int) -> None:
        """The socket takes a part of what waits."""
        made = self.machine
        if not self.sending_bytes and made.state is not TransportState.CLOSED:
            self.sending_bytes = len(made.backlog.take())
            assert self.sending_bytes == sum(self.unsent)
            self.unsent = []
        sent_bytes = min(self.sending_bytes, share)
        made.backlog.note_sent(sent_bytes)
        self.sending_bytes -= sent_bytes
        if made.state is not TransportState.CLOSED and made.backlog.size_bytes <= made.soft_bytes():
            self.pump()
            if made.state in (TransportState.OPEN, TransportState.HELD_BACK):
                made.must_hold_back()

    def check(self) -> None:
        made = self.machine
        made.check()
        assert made.backlog.size_bytes == sum(self.unsent) + self.sending_bytes
        assert [message.payload for message in made.backlog.forwarded] == self.forwarded
        assert made.is_full == (bool(self.forwarded) or made.backlog.size_bytes > SOFT_BYTES)
        assert self.got == [bytes([number]) * number for number in range(len(self.got))]
        if self.forwarded and made.state is not TransportState.CLOSED:
            # They wait only for room that is not there.
            assert made.backlog.size_bytes > SOFT_BYTES


ORDERS = {"stop": TransportState.NOT_READING, "drain": TransportState.DRAINING, "close": TransportState.CLOSED}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 300)),
        st.tuples(st.just("receive"), st.integers(0, 1_500)),
        st.tuples(st.just("forward"), st.integers(0, 1_500)),
        st.tuples(st.just("send"), st.sampled_from([1, 500, 5_000, 100_000])),
        st.tuples(st.sampled_from(sorted(ORDERS)), st.integers(0, 3)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("wire", [None, HEAD, LEGACY], ids=["accepted", "called-head", "called-legacy"])
@given(steps=STEPS)
def test_any_order_of_events_keeps_the_invariants(wire: Wire | None, steps: list[tuple[str, int]]) -> None:
    model = Model(wire)
    for name, size in steps:
        model.now_s += 0.1
        if name == "read":
            model.read(size)
        elif name == "receive":
            model.receive(size)
        elif name == "forward":
            model.forward(size)
        elif name == "send":
            model.send(size)
        elif size == 0:  # Seldom, or no run would be long.
            order(model.machine, ORDERS[name])
        model.check()
    assert model.machine.end() == len(model.forwarded)
    assert model.machine.state is TransportState.CLOSED
    assert model.machine.backlog.size_bytes == 0
    model.machine.check()


def test_bytes_that_are_counted_wrong_are_found() -> None:
    """The check of the invariant is itself checked."""
    made = opened()
    made.backlog.add(b"12345")
    made.check()
    made.backlog.size_bytes += 1
    with pytest.raises(AssertionError):
        made.check()
    lost = opened()
    lost.backlog.forward([Message((US,), (), b"waits behind nothing", ELSEWHERE)])
    with pytest.raises(AssertionError):
        lost.check()
