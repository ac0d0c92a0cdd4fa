"""Authorizer: the gate of a node that obeys rules. It answers refused messages, counts them, and audits them.

The rules decide by the identity of the connection through which a message came (`ockam.actors.message.Origin`). A
worker that does not say what its messages demand (`FindDemand`) takes only those of this node's own workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from ockam.actors.message import HERE, Message, Origin, reply_to
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.gate import DENIED
from ockam.identity.identity import Identity
from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.rules.rights import ALL_RIGHTS, NO_RIGHT, NOTHING, SOMETHING, Demand, Right, rights_text
from ockam.identity.rules.rules import Decision, Rules
from ockam.log_rate import LogRate
from ockam.protocol import ProtocolError, find_name
from ockam.transport.connection import Connection

DELAYED_ANSWERS_MAX = 10_000
"""The most answers to refused pushes that wait for `answer_delay_s`. Further answers are sent at once."""
ACTS = Right.CREATE | Right.DELETE | Right.ADMIN | Right.OPERATE

logger = structlog.get_logger(__name__)


class Frequent(NamedTuple):
    """The kind of message that a worker gets most, such as pushes. The gate decides once about many of them.

    tags: the payload of such a message begins with one of these bytes.
    right, name: the right that it demands on this name. A number compares ten times as fast as a `Right`."""

    tags: tuple[bytes, ...]
    right: int
    name: str


FindDemand: TypeAlias = Callable[[Message], Demand | list[Demand] | None]
"""The method `demand` of a worker to which other peers can send messages. It returns the right that the sender of this
message needs; a list: the sender needs all of these rights; None: the message is refused, whatever the rules allow.
Raises ProtocolError if the message cannot be decoded; then the worker refuses it itself. Such a worker may have a
`Frequent` as its attribute `frequent`."""


class AccessStatistics(msgspec.Struct, frozen=True):
    """The statistics of the rules.

    rules: the number of rules in force. refused: the refused messages since the start, by the right that was missing.
    refused_by_rule: those that a rule forbids, by the name of the rule.
    reloads, reloads_failed: how often new rules came into force, and how often new rules were not valid.
    audit_failed: the number of lines that could not be written to the audit log."""

    rules: int
    refused: dict[str, int]
    refused_by_rule: dict[str, int]
    reloads: int
    reloads_failed: int
    audit_failed: int


class Authorizer:
    """Decides about every message that reaches a worker, and about forwarding. rules: the rules in force.

    answer_delay_s: the delay of the answer to a refused push, which a real publisher sends again at once."""

    def __init__(self, node: Node, rules: Rules, audit: Audit, *, answer_delay_s: float = 0.0) -> None:
        self._node = node
        self.rules = rules
        self.audit = audit
        self._answer_delay_s = answer_delay_s
        self._delayed = 0
        self._lines = LogRate()
        self._last_origin = HERE
        self._last_grants = rules.grants(HERE.identity)
        self._refused: Counter[str] = Counter()
        self._refused_by_rule: Counter[str] = Counter()
        self._reloads = self._reloads_failed = 0

    # The gate of a node, see `ockam.identity.gate.Gate`.

    def admit(self, worker: Worker, run: Sequence[Message]) -> Sequence[Message]:
        origin = run[0].origin
        # Nearly all runs are pushes of one publisher, or answers of this node's own workers to one connection. These
        # two are decided as a whole.
        if (origin is HERE or origin.is_node) and getattr(worker, "demand", None) is None:
            if not [message for message in run if message.origin is not origin]:
                return run
        else:
            frequent: Frequent | None = getattr(worker, "frequent", None)
            if frequent is not None:
                tags, right, name = frequent
                # Most runs come from the connection of the run before.
                if origin is not self._last_origin:
                    self._last_origin, self._last_grants = origin, self.rules.grants(origin.identity)
                if self._last_grants.rights_on(name) & right and not [
                    message for message in run if message.origin is not origin or not message.payload.startswith(tags)
                ]:
                    return run
        admitted = [message for message in run if self._is_admitted(worker, message)]
        return run if len(admitted) == len(run) else admitted

    def holds(self, origin: Origin, rights: int, name: str) -> bool:
        return bool(self.rules.grants(origin.identity).rights_on(name) & int(rights))

    def find_next(self, origin: Origin, rights: int, name: str) -> str | None:
        return self.rules.grants(origin.identity).find_next(rights, name)

    def find_forward_refusal(self, origin: Origin, destination: str) -> str | None:
        decision = self._decide(origin, Demand(Right.FORWARD, destination), "")
        return None if decision.allowed else DENIED + decision.reason

    def decide(self, origin: Origin, demand: Demand, request: str, *, is_act: bool) -> Decision:
        """Decides about a request that came in another protocol, such as HTTP. Counts and audits a refusal.

        request: its name in the audit log. is_act: whether the use of an administrative right is audited."""
        return self._decide(origin, demand, request, acts=ACTS if is_act else NO_RIGHT)

    def note_tls_refused(self, peer: str, identity: Identity, reason: str) -> None:
        self.audit.refused(Entry("tls_refused", str(identity), peer, reason=reason))

    def note_http_refused(self, peer: str, identity: Identity, request: str, reason: str) -> None:
        self.audit.refused(Entry("http_refused", str(identity), peer, request=request, reason=reason))

    # What the operator changes.

    def replace_rules(self, rules: Rules) -> Callable[[Identity], bool]:
        """Replaces the rules. Returns a function that tells whether the rules for an identity have changed.

        The caller closes the connections of such identities: the old rules have allowed requests that wait there."""
        before, self.rules = self.rules, rules
        self._last_origin = HERE
        self._last_grants = rules.grants(HERE.identity)
        self._reloads += 1
        self._node.note_new_rules()
        return lambda identity: before.grants(identity).rules != rules.grants(identity).rules

    def note_bad_rules(self) -> None:
        self._reloads_failed += 1

    def statistics(self) -> AccessStatistics:
        return AccessStatistics(
            rules=len(self.rules),
            refused=dict(self._refused),
            refused_by_rule=dict(self._refused_by_rule),
            reloads=self._reloads,
            reloads_failed=self._reloads_failed,
            audit_failed=self.audit.failed,
        )

    # One message.

    def _is_admitted(self, worker: Worker, message: Message) -> bool:
        # Messages of the node itself pass to a worker without demands.
        origin = message.origin
        ask: FindDemand | None = getattr(worker, "demand", None)
        if ask is None and origin.is_node:
            return True
        if isinstance(worker, Connection):
            return self._may_pass(worker, message)
        # A worker of the operator and its children have one identity, and need no right to talk to each other.
        if origin is worker.origin and origin is not HERE:
            return True
        # A message that cannot be decoded needs only some right: its worker answers with an error.
        demand: Demand | list[Demand] | None = None
        if ask is not None:
            try:
                demand = ask(message)
            except ProtocolError:
                demand = SOMETHING
        if demand is NOTHING:
            return True
        if demand is None:
            decision = Decision(False, None, "this address takes messages of the node itself only")
            self._note_refusal(message, "address", str(message.onward_route[0]), decision.reason)
        else:
            decision = self._decide_all(origin, demand, find_name(message.payload) or "")
        if not decision.allowed:
            self._answer(worker, message, DENIED + decision.reason)
        return decision.allowed

    def _may_pass(self, connection: Connection, message: Message) -> bool:
        # Messages of the node itself may leave, and so may answers to requests that this node has forwarded.
        # Another member of the cluster (`link`) decides itself about the messages that it gets.
        if message.origin.is_node or connection.link is not None or self._is_answer(connection, message):
            return True
        # This node has made the connection, so the sender needs the right to forward messages to its other end.
        if connection.open_requests is not None:
            return self.find_forward_refusal(message.origin, connection.peer) is None
        # A worker of the operator answers the peers that have called this node.
        if message.origin.kind == "local":
            return True
        reason = "messages between peers are not passed on"
        self._note_refusal(message, "forward", str(connection.own_address), reason)
        return False

    def _is_answer(self, connection: Connection, message: Message) -> bool:
        """Whether a message answers the peer on this connection: it comes from a node that this peer has called."""
        # This node writes the first hop of the return route, so the sender cannot choose it.
        source = self._node.find_worker(message.return_route[0]) if message.return_route else None
        if not isinstance(source, Connection) or source.open_requests is None:
            return False
        return source.open_requests.is_sender(connection.own_address)

    def _decide_all(self, origin: Origin, demand: Demand | list[Demand], request: str) -> Decision:
        if isinstance(demand, Demand):
            return self._decide(origin, demand, request)
        refused = next((each for each in demand if not self.rules.allows(origin.identity, each)), None)
        if refused is not None:
            return self._decide(origin, refused, request)
        # The node acts for the sender at another node, where nobody sees who has caused it. So each use of a right is
        # audited.
        decisions = [self._decide(origin, each, request, acts=ALL_RIGHTS) for each in demand]
        return decisions[-1]

    def _decide(self, origin: Origin, demand: Demand, request: str, *, acts: Right = ACTS) -> Decision:
        allowed = self.rules.allows(origin.identity, demand)
        if allowed and not demand.rights & acts:
            return Decision(True, None, "")
        # Only refusals and administrative acts need the name of the rule that decided, which takes longer to find.
        decision = self.rules.decide(origin.identity, demand)
        entry = Entry(
            "admitted" if allowed else "refused",
            identity=str(origin.identity),
            peer=origin.peer,
            right=rights_text(demand.rights),
            name=demand.name or "",
            rule=decision.rule.name if decision.rule is not None else "",
            request=request,
            reason=decision.reason,
        )
        if not allowed:
            self._count(entry, origin)
        # A request for which one of several rights is enough changes nothing.
        elif int(demand.rights).bit_count() == 1 and not origin.is_node:
            self.audit.admitted(entry, origin.party)
        return decision

    def _note_refusal(self, message: Message, right: str, name: str, reason: str) -> None:
        origin, request = message.origin, find_name(message.payload) or ""
        entry = Entry("refused", str(origin.identity), origin.peer, right, name, request=request, reason=reason)
        self._count(entry, origin)

    def _count(self, entry: Entry, origin: Origin) -> None:
        self._refused[entry.right] += 1
        if entry.rule:
            self._refused_by_rule[entry.rule] += 1
        what = {"right": entry.right, "name": entry.name, "reason": entry.reason}
        self._lines.log(logger.warning, "access_refused", **origin.who, **what)
        self.audit.refused(entry, origin.party)

    def _answer(self, worker: Worker, message: Message, reason: str) -> None:
        """Answers a refused message in its own protocol. A refused push is answered after a delay."""
        try:
            payload = worker.denied_payload(message, reason)
        except ProtocolError:
            return
        if payload is None or not message.return_route:
            return
        answer = reply_to(message, message.onward_route[0], payload)
        frequent: Frequent | None = getattr(worker, "frequent", None)
        # A real publisher sends a refused push again at once, so its answer waits. The number of waiting answers is
        # bounded.
        is_push = frequent is not None and message.payload.startswith(frequent.tags)
        if not is_push or not self._answer_delay_s or self._delayed >= DELAYED_ANSWERS_MAX:
            self._node.send(answer)
            return

        def send() -> None:
            self._delayed -= 1
            self._node.send(answer)

        self._delayed += 1
        self._node.call_later(self._answer_delay_s, send)
