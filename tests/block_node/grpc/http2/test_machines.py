"""Goal: the machines below the door keep their invariants under any cut of the bytes, and say the same for each.

Method: bytes only. A conversation is fed whole, byte by byte and at random cuts; the table of calls is walked whole.
"""

from __future__ import annotations

from contextlib import suppress

import h2.config
import h2.connection
import h2.events
import h2.settings
import hyperframe.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.grpc.http2.call_machine import TRANSITIONS, CallInput, CallMachine, CallProgress
from block_node.grpc.http2.http2_machine import CallArrived, CallLost, CallOpened, ConnectionFailed, Http2Machine
from block_node.grpc.http2.limits import Flood, FloodGuard, Http2Limits
from block_node.grpc.http2.message_reader import MessageBudget, MessageReader, prefix_of_message
from block_node.grpc.http2.status import CallRefused, GrpcStatus, decode_message, encode_message, read_timeout
from tests.block_node.grpc.http2.raw_client import framed, pbj_headers

END = (h2.events.TrailersReceived, h2.events.StreamReset)
REQUEST = {b":path": b"/a/b"}


def conversation() -> bytes:
    """What a client sends: settings, two calls, messages of several frames, a reset, PINGs."""
    client = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    client.initiate_connection()
    for stream_id in (1, 3):
        client.send_headers(stream_id, pbj_headers("/test.Test/echo"))
    client.send_data(1, framed(b"one") + framed(b"")[:2])
    client.ping(b"12345678")
    client.send_data(3, framed(bytes(1000))[:700])
    client.send_data(1, framed(b"")[2:] + framed(b"three"), end_stream=True)
    client.reset_stream(3, 8)
    return client.data_to_send()


def feed(cuts: list[int]) -> tuple[list[str], list[bytes]]:
    """Feeds the conversation, cut at these places. Returns what happened, and the messages of the first call."""
    machine = Http2Machine(Http2Limits(), MessageBudget(1 << 20), 0.0)
    data, happened, messages = conversation(), [], []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for event in machine.receive(data[start:end], 1.0):
            if isinstance(event, CallOpened):
                event.call.reader.bytes_max = 10_000
                happened.append(f"opened {event.call.stream_id}")
            elif isinstance(event, CallLost):
                happened.append(f"lost {event.call.stream_id}")
            elif isinstance(event, CallArrived):
                while event.call.reads and (message := event.call.reader.next()) is not None:
                    messages.append(message)
                machine.absorbed(event.call, 1.0)
                if event.is_end:
                    happened.append(f"ended {event.call.stream_id}")
            machine.check()
    return happened, messages


WHOLE = feed([])


def test_a_conversation_that_comes_whole() -> None:
    assert WHOLE == (["opened 1", "opened 3", "ended 1", "lost 3"], [b"one", b"", b"three"])


def test_a_conversation_that_comes_byte_by_byte() -> None:
    assert feed(list(range(1, len(conversation())))) == WHOLE


def test_no_data_frame_is_written_out_for_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cost 0.65 µs of processor time for an item of 220 bytes."""
    monkeypatch.setattr(hyperframe.frame.DataFrame, "__repr__", None)
    assert feed([]) == WHOLE


@given(st.sets(st.integers(1, len(conversation()) - 1), max_size=8))
def test_a_conversation_that_is_cut_anywhere(cuts: set[int]) -> None:
    assert feed(sorted(cuts)) == WHOLE


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_taken_or_end_the_connection(data: bytes, after: bool) -> None:
    machine = Http2Machine(Http2Limits(), MessageBudget(1 << 20), 0.0)
    # Nothing else is raised, whatever comes.
    with suppress(ConnectionFailed):
        machine.receive(conversation()[:24] + data if after else data, 1.0)
    machine.check()
    machine.lose("over", 2.0)
    assert not machine.calls


def opened_call(machine: Http2Machine, window_bytes: int = 65_535) -> tuple[h2.connection.H2Connection, CallMachine]:
    """A client, and the call that it has opened. window_bytes: what it lets the answer have."""
    client = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    client.initiate_connection()
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
    client.increment_flow_control_window(1 << 24)
    client.send_headers(1, pbj_headers("/test.Test/echo"))
    [event] = machine.receive(client.data_to_send(), 0.0)
    assert isinstance(event, CallOpened)
    event.call.reader.bytes_max = 10_000
    machine.begin(event.call, "identity")
    client.receive_data(b"".join(machine.out))
    machine.note_sent(machine.unsent_bytes, 0.0)
    return client, event.call


LIMITS = Http2Limits(message_s_max=30.0, send_s_max=30.0, ping_s=1e9)


@given(
    st.lists(st.integers(0, 70_000), min_size=1, max_size=8),
    st.sampled_from([16_384, 16_500, 1 << 18]),
    st.lists(st.integers(9_000, 100_000), min_size=1, max_size=4),
    st.lists(st.integers(9_000, 200_000), min_size=1, max_size=4),
)
def test_h2_reads_the_frames_that_the_machine_writes(
    sizes: list[int], frame_bytes: int, windows: list[int], taken: list[int]
) -> None:
    """The machine writes DATA frames itself. Method: h2 is the peer, which refuses a frame that is too large, and one
    beyond a window. It opens its windows in steps, and the socket takes any number of bytes."""
    machine = Http2Machine(Http2Limits(unsent_bytes_max=100_000), MessageBudget(1 << 20), 0.0)
    client, call = opened_call(machine, window_bytes=0)
    client.update_settings({h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_bytes})
    # h2 would refuse a large frame that comes together with the acknowledgement of this setting.
    client.max_inbound_frame_size = frame_bytes
    machine.receive(client.data_to_send(), 0.0)
    machine.begin(call, "identity")
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    machine.send(call, [memoryview(piece) for piece in pieces], 0.0)
    machine.finish(call, GrpcStatus.OK)
    received, step = bytearray(), 0
    while call.state is not CallProgress.LINGERING or machine.out:
        client.increment_flow_control_window(windows[step % len(windows)], call.stream_id)
        machine.receive(client.data_to_send(), 0.0)
        machine.pump(0.0)
        machine.check()
        data = b"".join(machine.out)[: taken[step % len(taken)]]
        machine.note_sent(len(data), 0.0)
        events = client.receive_data(data)
        received += b"".join(event.data for event in events if isinstance(event, h2.events.DataReceived))
        step += 1
    assert received == b"".join(pieces)


@given(st.integers(0, 9_000), st.integers(0, 255), st.booleans(), st.integers(200, 20_000))
def test_a_data_frame_with_padding_is_read_as_one_without(size: int, padding: int, is_last: bool, step: int) -> None:
    """Frames without padding are cut out of the buffer by the machine, others by h2."""
    for pad_length in (None, padding):
        machine = Http2Machine(Http2Limits(), MessageBudget(1 << 20), 0.0)
        client, call = opened_call(machine)
        call.reader.bytes_max = size
        client.send_data(call.stream_id, framed(bytes(size)), end_stream=is_last, pad_length=pad_length)
        data = client.data_to_send()
        for start in range(0, len(data), step):
            machine.receive(data[start : start + step], 0.0)
        assert call.reader.next() == bytes(size)
        assert call.peer_ended is is_last


def test_a_publisher_without_a_pause_is_never_late() -> None:
    """Each read ends within a message, as at full speed. The time of one message is not that of the next one."""
    machine = Http2Machine(LIMITS, MessageBudget(1 << 20), 0.0)
    client, call = opened_call(machine)
    data, at = framed(bytes(1000)) * 300, 0
    for second in range(200):
        client.send_data(1, data[at : at + 1005 if second else 500])
        at += 1005 if second else 500
        machine.receive(client.data_to_send(), float(second))
        while call.reader.next() is not None:
            pass
        assert call.reader.missing_bytes
        machine.absorbed(call, float(second))
        assert machine.tick(float(second)) == []
        client.receive_data(b"".join(machine.out))
        machine.note_sent(machine.unsent_bytes, float(second))
    # The one that stays incomplete is late.
    [lost] = machine.tick(231.0)
    assert isinstance(lost, CallLost)
    assert (lost.status, lost.reason) == (GrpcStatus.DEADLINE_EXCEEDED, "a message was not complete in time")


def test_no_message_is_late_while_nobody_takes_it() -> None:
    machine = Http2Machine(LIMITS, MessageBudget(1 << 20), 0.0)
    client, call = opened_call(machine)
    client.send_data(1, framed(bytes(1000))[:500])
    machine.receive(client.data_to_send(), 0.0)
    assert call.reader.next() is None
    machine.absorbed(call, 0.0)
    machine.absorbed(call, 1.0, is_held=True)
    assert machine.tick(1000.0) == []
    machine.absorbed(call, 1000.0)
    assert machine.tick(1029.0) == []
    assert len(machine.tick(1031.0)) == 1


@pytest.mark.parametrize("has_finished", [False, True])
def test_what_a_peer_never_takes_is_forgotten(has_finished: bool) -> None:
    """An answer can be large, its window is opened by its reader, and an open call is never idle."""
    machine = Http2Machine(LIMITS, MessageBudget(1 << 20), 0.0)
    client, call = opened_call(machine, window_bytes=10)
    machine.send(call, [bytes(100)], 0.0)
    if has_finished:
        machine.finish(call, GrpcStatus.OK)
    machine.pump(0.0)
    assert call.pending_bytes == 90
    # It takes some, and then nothing more.
    client.increment_flow_control_window(10, 1)
    machine.receive(client.data_to_send(), 20.0)
    machine.pump(20.0)
    assert machine.next_tick_s() == 50.0
    assert machine.tick(49.0) == []
    [lost] = machine.tick(50.0)
    assert isinstance(lost, CallLost)
    assert lost.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert call.pending_bytes == 0
    machine.pump(50.0)
    ends = [each for each in client.receive_data(b"".join(machine.out)) if isinstance(each, END)]
    assert len(ends) == 1, "the peer is told"
    machine.check()


def test_a_call_whose_limit_passes_with_that_of_its_connection_is_told() -> None:
    """A node that was starved of processor time sees both at once."""
    machine = Http2Machine(LIMITS, MessageBudget(1 << 20), 0.0)
    _, call = opened_call(machine, window_bytes=10)
    machine.send(call, [bytes(100)], 0.0)
    machine.pump(0.0)
    assert machine.tick(0.0) == []
    with pytest.raises(ConnectionFailed):
        machine.tick(30.0)
    # Its handler may not take the call for one that goes on and takes everything.
    assert call.may_send
    [lost] = machine.lose("gone", 30.0)
    assert isinstance(lost, CallLost)


@pytest.mark.parametrize("state", list(CallProgress))
@pytest.mark.parametrize("happened", list(CallInput))
def test_each_state_takes_each_input(state: CallProgress, happened: CallInput) -> None:
    call = CallMachine(1, REQUEST, 100, MessageReader("identity", MessageBudget(0)))
    call.state = state
    changed = call.take(happened)
    assert call.state is TRANSITIONS.get((state, happened), state)
    assert changed is ((state, happened) in TRANSITIONS)
    call.check()


def test_each_state_is_reached_and_leads_to_the_end() -> None:
    reached = {CallProgress.OPEN}
    for _ in CallProgress:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(CallProgress)
    assert all(TRANSITIONS[state, CallInput.RESET] is CallProgress.CLOSED for state in reached - {CallProgress.CLOSED})


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 40))
def test_messages_come_out_as_they_went_in(messages: list[bytes], step: int) -> None:
    budget = MessageBudget(1 << 20)
    reader = MessageReader("identity", budget)
    reader.bytes_max = 300
    data = b"".join(prefix_of_message(len(each)) + each for each in messages)
    found, absorbed = [], 0
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        while (message := reader.next()) is not None:
            found.append(message)
        absorbed += reader.take_absorbed()
    assert found == messages
    assert absorbed == len(data)
    assert reader.is_between
    assert reader.close() == 0
    assert budget.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.just(0), st.integers(1, 1 << 17))), max_size=40))
def test_the_eldest_of_the_messages_that_fill_the_budget_goes_on(steps: list[tuple[int, int]]) -> None:
    budget = MessageBudget(1 << 18)
    held: dict[MessageReader, int] = {}
    readers = [MessageReader("identity", budget) for _ in range(4)]
    for which, more_bytes in steps:
        reader = readers[which]
        if not more_bytes:
            budget.release(reader)
            held.pop(reader, None)
        elif reader not in held or budget.may_go_on(reader):
            held[reader] = held.get(reader, 0) + more_bytes
            budget.hold(reader, held[reader])
        assert budget.held_bytes == sum(held.values())
        assert all(map(budget.may_go_on, list(held)[:1]))
        # Each of the younger ones has passed the limit by what it was promised before at the most.
        assert sum(list(held.values())[1:]) < (1 << 18) + 4 * (1 << 17)


def test_a_message_that_may_not_go_on_is_not_late_and_goes_on_when_there_is_room() -> None:
    budget, told = MessageBudget(100_000), []
    elder = MessageReader("identity", budget)
    elder.bytes_max = 200_000
    elder.feed(framed(bytes(200_000))[:150_000])
    assert elder.next() is None
    machine = Http2Machine(LIMITS, budget, 0.0)
    client, call = opened_call(machine)
    call.reader.bytes_max = 200_000
    call.reader.when_room = lambda: told.append("room")
    window_bytes = 0
    for data in (framed(bytes(200_000))[:65_000], bytes(20_000)):
        client.send_data(1, data)
        machine.receive(client.data_to_send(), 0.0)
        assert call.reader.next() is None
        machine.absorbed(call, 0.0)
        client.receive_data(b"".join(machine.out))
        machine.note_sent(machine.unsent_bytes, 0.0)
        window_bytes = client.local_flow_control_window(1)
    assert window_bytes < 65_535
    assert machine.tick(1000.0) == []
    assert not told
    elder.close()
    assert told == ["room"]
    machine.absorbed(call, 1000.0)
    client.receive_data(b"".join(machine.out))
    assert client.local_flow_control_window(1) == 65_535
    assert machine.tick(1029.0) == []
    [lost] = machine.tick(1031.0)
    assert isinstance(lost, CallLost)
    assert budget.held_bytes == 0


def test_all_windows_together_are_bounded() -> None:
    """A thousand held publishers could else each have a whole window of bytes here."""
    budget = MessageBudget(1 << 20)
    machines = [Http2Machine(LIMITS, budget, 0.0) for _ in range(20)]
    calls = [opened_call(machine)[1] for machine in machines]
    for machine, call in zip(machines, calls, strict=True):
        machine.widen(call, 1 << 19, 0.0)
        machine.widen(call, 1 << 16, 0.0)
    wider = [call.window_bytes - 65_535 for call in calls]
    assert sum(wider) <= 1 << 20
    # Who comes later gets some, too; who leaves gives it back.
    assert all(wider)
    for machine in machines:
        machine.lose("gone", 0.0)
        machine.lose("gone", 0.0)
    assert budget.window_bytes == 0


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"400m", 0.4), (b"5u", 5e-6), (b"99999999n", 0.1)]
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert read_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"-1S", b"1s", b"123456789S", b"1.5S"])
def test_what_is_no_timeout_is_refused(value: bytes) -> None:
    with pytest.raises(CallRefused) as raised:
        read_timeout(value)
    assert raised.value.status is GrpcStatus.INTERNAL


@given(st.text(max_size=100))
def test_texts_of_headers_are_ascii_and_come_back(text: str) -> None:
    encoded = encode_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert decode_message(encoded) == text


@given(st.floats(0.0, 1e7), st.booleans())
def test_a_machine_that_is_asked_at_its_own_time_has_a_later_one_afterwards(began_s: float, drained: bool) -> None:
    """A clock that stands at that time would else ask for ever: found by the simulation, in virtual time."""
    machine = Http2Machine(Http2Limits(idle_s_max=45.0, ping_s=30.1, ping_answer_s=9.7), MessageBudget(1), began_s)
    if drained:
        machine.drain(began_s)
    with suppress(ConnectionFailed):
        for _ in range(4):
            due_s = machine.next_tick_s()
            machine.tick(due_s)
            if machine.is_done:
                break
            assert machine.next_tick_s() > due_s


def test_a_guard_counts_by_the_second() -> None:
    guard = FloodGuard(Http2Limits(pings_max=3), 0.0)
    for second in range(5):
        guard.now_s = float(second)
        for _ in range(3):
            guard.judge(6, 0, 8)
    guard.now_s = 4.5
    with pytest.raises(Flood, match="PING"):
        guard.judge(6, 0, 8)
