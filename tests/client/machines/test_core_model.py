"""Goal: the core's invariants hold after every event, in whatever order events come. Method: random events, no I/O."""

from __future__ import annotations

from enum import Enum
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ockam.actors.address import tcp
from ockam.actors.message import Message
from ockam.protocol import error_payload, failed_payload
from stream_client.core.calls import Call
from stream_client.core.client_core import ClientCore
from stream_client.core.conversation import CoreConversation
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.push_queue import PushQueue
from stream_client.core.pushes import Push
from stream_client.core.states_machine import (
    TRANSITIONS,
    CallState,
    ConnectionState,
    CoreEvent,
    RouteState,
    after,
)
from stream_client.errors import ClientError
from stream_service.extensions import LIST, PUSH_BATCH, ListResponse
from stream_service.protocol import PULL, PUSH, PullResponse
from tests.client.machines.far_end import FarEnd, is_create
from tests.support.examples import examples

LOST = failed_payload("no way to store:1: refused")
ENTITIES = (ConnectionState, RouteState, CallState)
NUMBERS = st.integers(0, 1_000)


class CoreModel(RuleBasedStateMachine):
    """A client through another node, whose node answers, refuses, loses the route and forgets, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.core = ClientCore(via=(tcp("store:1"),))
        self.core.service_route.on_lost = lambda first: None
        self.far: FarEnd | None = None
        self.unanswered: list[Message] = []
        self.creates: list[Call] = []
        self.handles: list[PartitionHandle] = []
        self.queues: list[PushQueue] = []
        self.calls: list[Call] = []
        self.pushes: list[Push] = []
        self.conversations: list[CoreConversation] = []
        self.changes = 0

    @rule()
    def connect(self) -> None:
        self.far, self.unanswered = FarEnd(self.core), []

    @precondition(lambda self: self.far is not None)
    @rule()
    def disconnect(self) -> None:
        self.core.disconnected()
        self.far = None

    @rule(partitions=st.integers(1, 3))
    def create(self, partitions: int) -> None:
        request = self.core.create(f"s{partitions}", partitions)
        self.creates.append(request)
        request.when_done(lambda: self.handles.extend(() if request.error else self.core.streams.handles(request)))

    @rule(partition=st.integers(0, 3))
    def find(self, partition: int) -> None:
        self.handles += self.core.find_handles("s3", [partition])

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, data=st.binary(max_size=3))
    def push(self, number: int, data: bytes) -> None:
        self.pushes.append(self.handles[number % len(self.handles)].queue.push(data))

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def open_queue(self, number: int) -> None:
        handle = self.handles[number % len(self.handles)]
        if handle.gone is None:
            queue = self.core.open_queue(handle)
            self.pushes.append(queue.push(b"q"))
            if number % 2:
                self.core.streams.close_queue(handle, queue)

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def pull(self, number: int) -> None:
        handle = self.handles[number % len(self.handles)]
        if handle.gone is None:
            self.calls.append(self.core.pull(handle, 0, 1))

    @precondition(lambda self: self.calls)
    @rule(number=NUMBERS)
    def forget(self, number: int) -> None:
        self.core.calls.forget(self.calls[number % len(self.calls)])

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        self.core.streams.drop(self.handles[number % len(self.handles)])

    @rule(ends_at_once=st.booleans())
    def converse(self, ends_at_once: bool) -> None:
        """ends_at_once: the conversation is ended from inside the first change that it is told of."""
        conversation = self.core.converse("block_publish")
        self.conversations.append(conversation)

        def changed() -> None:
            self.changes += 1
            if ends_at_once:
                self.core.end_conversation(conversation)

        conversation.on_change = changed

    @precondition(lambda self: self.conversations)
    @rule(number=NUMBERS, ends=st.booleans())
    def say(self, number: int, ends: bool) -> None:
        conversation = self.conversations[number % len(self.conversations)]
        if conversation.is_open:
            conversation.send(b"\x05hello\x00")
        if ends:
            self.core.end_conversation(conversation)

    @precondition(lambda self: self.far is not None)
    @rule(number=NUMBERS, kind=st.sampled_from(["answer", "answer", "answer", "refuse", "lose", "forget", "garble"]))
    def reply(self, number: int, kind: str) -> None:
        assert self.far is not None
        self.unanswered += self.far.sent()
        if not self.unanswered:
            return
        asked = self.unanswered.pop(number % len(self.unanswered))
        if kind == "refuse":
            self.far.refuse(asked)
        elif kind == "lose":
            self.far.answer(asked, LOST)
        elif kind == "garble":
            self.far.answer(asked, b"\x04what\x00")
        elif kind == "answer":
            self.answer(asked)

    @rule()
    def check_progress(self) -> None:
        self.core.check_progress()

    @rule()
    def ask_route(self) -> None:
        self.core.service_route.ask()

    @rule()
    def give_up(self) -> None:
        self.core.fail_all(ClientError("it lasts too long"))

    def answer(self, asked: Message) -> None:
        assert self.far is not None
        if LIST.is_in(asked.payload):
            self.far.answer(asked, LIST.encode_response(ListResponse(0, [], False)))
        elif is_create(asked):
            self.far.answer_create(asked)
        elif PUSH.is_in(asked.payload):
            request_id = PUSH.decode_request(asked.payload).request_id
            if request_id % 2:
                self.far.confirm(asked, 0)
            else:
                # This also tells the client that it may send batches. The count says too much.
                self.far.confirm_many(asked, 1 + request_id % 3, 0)
        elif PUSH_BATCH.is_in(asked.payload):
            self.far.confirm_many(asked, len(PUSH_BATCH.decode_request(asked.payload).messages), 0)
        elif PULL.is_in(asked.payload):
            self.far.answer(asked, PULL.encode_response(PullResponse(0, [])))
        else:
            self.far.answer(asked, error_payload("nobody listens"))

    @invariant()
    def holds(self) -> None:
        self.core.check()

    def teardown(self) -> None:
        """With a node that answers everything, nothing stays without an end; and a closed client stays closed."""
        self.connect()
        assert self.far is not None
        for _ in range(50):
            self.core.check_progress()
            for asked in self.far.sent():
                self.answer(asked)
            self.core.check()
        assert all(each.done for each in chain(self.creates, self.pushes))
        assert all(call.done or call.state is CallState.DONE for call in self.calls)
        assert all(each.is_open or each.is_closed for each in self.conversations)
        self.core.close()
        self.core.check()
        self.core.connected()
        self.core.receive_data(b"\x01anything")
        self.core.disconnected()
        self.core.check()
        assert self.core.connection.data_to_send() == b""


TestCoreModel = CoreModel.TestCase
TestCoreModel.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("states", ENTITIES)
def test_every_state_is_in_the_table_and_can_be_reached(states: type[Enum]) -> None:
    first, *_ = states
    rows = {state: row for state, row in TRANSITIONS.items() if isinstance(state, states)}
    assert set(rows) == set(states)
    reached = {first}
    for _ in states:
        reached |= {to for state in reached for to in rows[state].values()}  # type: ignore[index]
    assert reached == set(states)
    assert {type(to) for row in rows.values() for to in row.values()} == {states}


def test_an_event_that_a_state_does_not_have_is_a_mistake() -> None:
    assert after(CallState.HELD, CoreEvent.SENT) is CallState.SENT
    with pytest.raises(AssertionError, match=r"SENT does not happen in CallState\.DONE"):
        after(CallState.DONE, CoreEvent.SENT)
