"""Goal: whatever order crashes, stops, restarts and messages come in, each worker of a tree ends as its `Restarts` say.

Method: Hypothesis draws a tree of workers of both kinds and a list of steps. A worker that awaits may hang, so that it
is stopped in the middle, with messages behind that one. A model of some eighty lines, without tasks, mailboxes and
callbacks, takes the same steps; after each, the node's tree, counts and handled messages must be the model's. The clock
is virtual, and jumps to each restart that the model expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import local
from ockam.actors.async_worker import AsyncWorker
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Restarts, Worker

POLICIES = (
    Restarts(),
    Restarts("never"),
    Restarts("on_crash"),
    Restarts("always", 1, 5.0),
    Restarts("on_crash", 2, 1.0),
    Restarts("always", 0, 5.0),
)
STEP_S = 0.00137
"""The time between two steps. No sum of waits and delays, which are multiples of 0.05, makes up for it."""
DELAYS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0)


@dataclass(frozen=True)
class Plan:
    """A worker that is to be started, and the children that it starts whenever it starts."""

    name: str
    awaits: bool
    restarts: Restarts
    children: tuple[Plan, ...]

    def all(self) -> list[Plan]:
        return [self, *(each for child in self.children for each in child.all())]


@st.composite
def plans(draw: st.DrawFn, depth: int = 2, name: str = "w") -> Plan:
    count = draw(st.integers(0, 2)) if depth else 0
    children = tuple(draw(plans(depth=depth - 1, name=f"{name}{i}")) for i in range(count))
    return Plan(name, draw(st.booleans()), draw(st.sampled_from(POLICIES)), children)


Handled = list[tuple[str, bytes]]


def factory_of(plan: Plan, handled: Handled) -> Callable[[], Worker]:
    """Makes workers that note what they handle, and that crash or stop where a message says so."""

    class Both(Worker):
        def started(self) -> None:
            for child in plan.children:
                self.start_child([local(child.name)], factory_of(child, handled), child.restarts)

        def note(self, payload: bytes) -> None:
            handled.append((plan.name, payload))
            if payload == b"crash":
                raise RuntimeError("told to crash")
            if payload == b"stop":
                self.stop("told to stop")

    class Awaiting(AsyncWorker, Both):
        async def handle(self, message: Message) -> None:
            self.note(message.payload)
            if message.payload == b"hang":
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()

    class Called(Both):
        def handle(self, message: Message) -> None:
            self.note(message.payload)

    return Awaiting if plan.awaits else Called


@dataclass
class Model:
    """What a worker and its children are expected to do. due_s: when it starts again; None: it runs.
    is_hanging: whether it never ends with its message, so that it can only be stopped in the middle."""

    plan: Plan
    world: World
    parent: Model | None
    due_s: float | None = None
    is_hanging: bool = False
    order: int = 0
    crashes: int = 0
    crashed_s: float = 0.0
    restarted_s: list[float] = field(default_factory=list)
    restarts: int = 0
    reason: str = ""
    waiting: list[bytes] = field(default_factory=list)
    children: list[Model] = field(default_factory=list)

    def start(self) -> None:
        self.due_s = None
        self.children = [Model(each, self.world, self) for each in self.plan.children]
        for child in self.children:
            child.start()

    def put(self, payload: bytes) -> None:
        self.waiting.append(payload)
        if self.due_s is None:
            self.work()

    def work(self) -> None:
        stops = False
        while self.waiting and not self.is_hanging:
            payload = self.waiting.pop(0)
            self.world.handled.append((self.plan.name, payload))
            if payload == b"crash":
                self.world.crashes += 1
                return self.end("RuntimeError('told to crash')", is_crash=True)
            self.is_hanging = payload == b"hang" and self.plan.awaits
            # A worker with callbacks still handles the messages that it was given together with this one.
            stops = stops or payload == b"stop"
            if stops and self.plan.awaits:
                break
        return self.end("told to stop", is_crash=False) if stops else None

    def end(self, reason: str, *, is_crash: bool) -> None:
        policy, now_s = self.plan.restarts, self.world.now_s
        self.children = []
        self.reason = reason
        wanted = policy.when == "always" or (policy.when == "on_crash" and is_crash)
        recent = [each for each in self.restarted_s if each > now_s - policy.within_s]
        gave_up = wanted and policy.most is not None and len(recent) >= policy.most
        if wanted and not gave_up:
            self.restarted_s = [*recent, now_s]
            self.crashes = 0 if now_s - self.crashed_s > 60 else self.crashes
            self.crashed_s = now_s
            self.due_s = now_s + DELAYS_S[min(self.crashes, 7)]
            self.crashes += 1
            self.world.orders += 1
            self.order = self.world.orders
            return
        self.world.given_up += gave_up
        if self.parent is None:
            self.world.root = None
            return
        self.parent.children.remove(self)
        if gave_up:
            self.world.crashes += 1
            self.parent.end(f"ChildFailed('{self.plan.name} was given up: ", is_crash=True)

    def all(self) -> list[Model]:
        return [self, *(each for child in self.children for each in child.all())]

    def shown(self) -> object:
        state = "running" if self.due_s is None else "restarting"
        children = [child.shown() for child in self.children]
        return self.plan.name, state, len(self.waiting), self.restarts, self.reason[:30], children


@dataclass
class World:
    """The whole tree of the model, and what is counted."""

    now_s: float = 0.0
    root: Model | None = None
    handled: Handled = field(default_factory=list)
    crashes: int = 0
    restarts: int = 0
    given_up: int = 0
    orders: int = 0

    def find(self, name: str) -> Model | None:
        return next((each for each in (self.root.all() if self.root else ()) if each.plan.name == name), None)

    def next_due(self) -> Model | None:
        waiting = [each for each in (self.root.all() if self.root else ()) if each.due_s is not None]
        return min(waiting, key=lambda each: (each.due_s, each.order), default=None)

    def restart_due(self) -> None:
        while (model := self.next_due()) is not None and (model.due_s or 0.0) <= self.now_s:
            self.restarts += 1
            model.restarts += 1
            model.start()
            model.work()


def shown(node: Node) -> list[object]:
    def each(state: object) -> object:
        address, _, life, waiting, restarts, reason, children = (
            getattr(state, name) for name in ("address", "kind", "state", "waiting", "restarts", "reason", "children")
        )
        return str(address), life, waiting, restarts, reason[:30].replace('"', "'"), [each(child) for child in children]

    return [each(state) for state in node.tree()]


STEPS = st.one_of(
    st.tuples(st.sampled_from(("crash", "crash", "stop", "work", "hang", "unregister")), st.integers(0, 6)),
    st.tuples(st.just("wait"), st.sampled_from((0.05, 0.15, 0.5, 2.0, 6.0, 70.0))),
)


async def follow(plan: Plan, steps: list[tuple[str, float]], clock: trio.testing.MockClock) -> None:
    world, handled = World(), Handled()
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.register([local(plan.name)], factory_of(plan, handled), restarts=plan.restarts)
        world.root = Model(plan, world, None)
        world.root.start()
        for step, value in steps:
            # No two restarts are due at one moment: which of two tasks runs first is nobody's promise.
            clock.jump(STEP_S)
            await trio.testing.wait_all_tasks_blocked()
            world.now_s = trio.current_time()
            world.restart_due()
            if step == "wait":
                end_s = world.now_s + value
                while (due := world.next_due()) is not None and (due.due_s or 0.0) <= end_s:
                    clock.jump(max(0.0, (due.due_s or 0.0) - trio.current_time()) + 1e-6)
                    world.now_s = trio.current_time()
                    await trio.testing.wait_all_tasks_blocked()
                    world.restart_due()
                clock.jump(max(0.0, end_s - trio.current_time()))
            else:
                named = plan.all()
                name = named[int(value) % len(named)].name
                model = world.find(name)
                if step == "unregister":
                    node.unregister(local(name))
                    if model is not None and model.parent is not None:
                        model.parent.children.remove(model)
                    elif model is not None:
                        world.root = None
                else:
                    assert node.send(Message((local(name),), (), step.encode())) == (model is not None)
                    if model is not None:
                        model.put(step.encode())
            await trio.testing.wait_all_tasks_blocked()
            assert shown(node) == ([world.root.shown()] if world.root else [])
            statistics = node.statistics()
            assert (statistics.crashes, statistics.restarts, statistics.given_up) == (
                world.crashes,
                world.restarts,
                world.given_up,
            )
            assert sorted(handled) == sorted(world.handled)
        nursery.cancel_scope.cancel()


@given(plans(), st.lists(STEPS, min_size=4, max_size=25), st.random_module())
def test_any_order_of_crashes_and_stops_ends_as_the_policies_say(
    plan: Plan, steps: list[tuple[str, float]], random: object
) -> None:
    clock = trio.testing.MockClock()
    trio.run(follow, plan, steps, clock, clock=clock)
