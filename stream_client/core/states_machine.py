"""The states of the parts of a client's core, and every transition between them. Does no I/O.

One event often changes several parts: when a connection ends, the connection, the route to the service and each
unanswered call get new states. `TRANSITIONS` has, for each state, the events that can happen in it, and the state after
each event. Only a mistake in the core can cause an event that is missing there, and no peer can; `after` then raises
AssertionError.

The data that belongs to a state, such as a reason, is in the object that has the state. `ClientCore.check` compares
states and data. Streams, partitions and conversations have no states here: their routes and errors say what state they
are in. Single pushes have none either, since there are hundreds of thousands a second.
`sequence_machine` has a table for the pushes of an idempotent publisher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import TypeAlias, TypeVar


class _Member(Enum):
    """A state or an event. It is hashed by its identity: a normal Enum member computes its hash in Python from its
    name, with which each look-up in `TRANSITIONS` would take 1.5 times as long."""

    __hash__ = object.__hash__


class ConnectionState(_Member):
    """The states of the client's connection to its node (`ClientConnection`)."""

    DOWN = auto()
    """There is no connection. The client is connecting, or waits before the next attempt."""
    SILENT = auto()
    """There is a connection, but no bytes have arrived over it: the other side is perhaps not a node."""
    UP = auto()
    """There is a connection, and the first bytes from it are those of a node."""
    CLOSED = auto()
    """The client has ended. It ignores later connections and bytes."""


class RouteState(_Member):
    """The states of the route to the stream service over the current connection (`ServiceRoute`)."""

    UNREACHED = auto()
    """The service has never answered."""
    UNREACHED_LOST = auto()
    """The service has never answered, and a node on the route has reported that it cannot reach the next node."""
    REACHED = auto()
    """The service has answered, and neither the connection nor the route has been lost since."""
    GONE = auto()
    """The service has answered over an earlier connection. Either there is no connection now, or the service has not
    answered over the current one."""
    LOST = auto()
    """The service has answered, but later a node on the route has reported that it cannot reach the next node."""


class CallState(_Member):
    """The states of a request that expects an answer (`Call`)."""

    HELD = auto()
    """The request has not been sent over the current connection: there is no connection, or no known route."""
    SENT = auto()
    DONE = auto()
    """The request has its answer or an error, or its caller no longer waits."""


class CoreEvent(_Member):
    """An event that changes the states of the core's parts. Some events come from outside, the core causes others."""

    CONNECTED = auto()
    RECEIVED = auto()
    """For a connection: the first bytes have arrived, and they are those of a node. For the route to the service: the
    first message has arrived, from a node that has the services itself."""
    DISCONNECTED = auto()
    CLOSED = auto()
    ANSWERED = auto()
    """The stream service has answered the question whether it can be reached."""
    ROUTE_LOST = auto()
    SENT = auto()
    FINISHED = auto()


State: TypeAlias = ConnectionState | RouteState | CallState
S = TypeVar("S", ConnectionState, RouteState, CallState)

# The classes by their short names, for the table.
On, Conn, To, Call = CoreEvent, ConnectionState, RouteState, CallState
TransitionTable: TypeAlias = dict[State, dict[CoreEvent, State]]


def _table(events: Sequence[CoreEvent], rows: Mapping[State, Sequence[State | None]]) -> TransitionTable:
    """Returns the transitions of one part. rows: for each state, the next one after each of the events; None: the event
    does not happen in this state."""
    return {
        state: {event: following for event, following in zip(events, row, strict=True) if following is not None}
        for state, row in rows.items()
    }


TRANSITIONS: TransitionTable = {
    # ------------------------------------------------------------------------------------------ connection
    **_table(        (On.CONNECTED, On.RECEIVED, On.DISCONNECTED, On.CLOSED), {
        Conn.DOWN:   (Conn.SILENT,  None,        Conn.DOWN,       Conn.CLOSED),
        Conn.SILENT: (Conn.SILENT,  Conn.UP,     Conn.DOWN,       Conn.CLOSED),
        Conn.UP:     (Conn.SILENT,  Conn.UP,     Conn.DOWN,       Conn.CLOSED),
        # The shell notices the end of the client only at its next step. Until then it may still report connections
        # and bytes.
        Conn.CLOSED: (Conn.CLOSED,  Conn.CLOSED, Conn.CLOSED,     Conn.CLOSED),
    }),
    # -------------------------------------------------------------------------------- route to the service
    **_table(              (On.CONNECTED, On.RECEIVED,       On.ANSWERED, On.ROUTE_LOST,     On.DISCONNECTED), {
        To.UNREACHED:      (To.UNREACHED, To.REACHED,        To.REACHED,  To.UNREACHED_LOST, To.UNREACHED),
        To.UNREACHED_LOST: (To.UNREACHED, To.UNREACHED_LOST, To.REACHED,  To.UNREACHED_LOST, To.UNREACHED),
        To.REACHED:        (To.REACHED,   To.REACHED,        To.REACHED,  To.LOST,           To.GONE),
        # Only an answer of the service proves that the route works again, since a node without the service sends a
        # hello too.
        To.GONE:           (To.GONE,      To.GONE,           To.REACHED,  To.LOST,           To.GONE),
        To.LOST:           (To.GONE,      To.LOST,           To.REACHED,  To.LOST,           To.GONE),
    }),
    # ------------------------------------------------------------------------------------------------ call
    **_table(      (On.SENT,   On.DISCONNECTED, On.FINISHED), {
        Call.HELD: (Call.SENT, Call.HELD,       Call.DONE),
        Call.SENT: (Call.SENT, Call.HELD,       Call.DONE),
        Call.DONE: (None,      None,            Call.DONE),
    }),
}  # fmt: skip


def after(state: S, event: CoreEvent) -> S:
    following = TRANSITIONS[state].get(event)
    assert isinstance(following, type(state)), f"{event} does not happen in {state}"
    return following
