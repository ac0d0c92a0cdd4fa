"""The states of everything that a client's core keeps, and every transition between them. Pure.

One event often concerns several things: when a connection ends, the connection, the route to the service, each
partition, each unanswered call and each conversation change their states together. `TRANSITIONS` has them side by
side: a row says what a state becomes by each event that may meet it there. If an event is missing in a row, the core
has made a mistake and `after` raises AssertionError; no peer can cause such an event.

The states say what is going on; the data that goes with a state (a route, a reason, the bytes to send) stays with the
object that has the state, and `ClientCore.check` compares the two. Single pushes have no row here: they are counted in
hundreds of thousands a second, and the numbers of idempotent ones have a table in `sequence_machine`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias, TypeVar


class _Member(Enum):
    """A state or an event, found in the table by its identity.

    Each request looks up its state and its event several times. The hash of an Enum is Python code over the member's
    name, with which each of these look-ups would take half as long again.
    """

    __hash__ = object.__hash__


class ConnectionState(_Member):
    """The states of the current connection of a core (`ClientConnection`)."""

    DOWN = auto()
    """There is no connection; the shell makes one, or waits before the next attempt."""
    SILENT = auto()
    """There is a connection that has brought no bytes: the other side may not be a node."""
    UP = auto()
    """There is a connection, and its first bytes are those of a node."""
    CLOSED = auto()
    """The client has ended. It ignores later connections and bytes."""


class RouteState(_Member):
    """The states of the route to the stream service over the current connection (`ServiceRoute`)."""

    UNREACHED = auto()
    """The service has never answered."""
    UNREACHED_LOST = auto()
    """The service has never answered, and a node on the route has reported that it cannot reach the next node."""
    REACHED = auto()
    """The service has answered, and neither the connection nor the route was lost since then."""
    GONE = auto()
    """The service was reached, over a connection that has ended since."""
    LOST = auto()
    """The service was reached, but then a node on the route reported that it cannot reach the next node."""


class StreamState(_Member):
    """The states of a stream in use: how its partitions are found again after a new connection (`StreamInUse`)."""

    NAMED = auto()
    """This client has not created the stream. It expects the partitions at the addresses that follow from their
    names."""
    CREATED = auto()
    """This client has created the stream, and creates it again if pushes wait for it."""
    CREATING = auto()
    """The request that creates the stream again is unanswered."""


class PartitionState(_Member):
    """The states of a partition in use (`PartitionHandle`)."""

    SEARCHED = auto()
    """The route to the partition is not known; pushes and requests to it are kept."""
    OPEN = auto()
    """The route to the partition is known; pushes and requests to it are sent at once."""
    DELETED = auto()
    """The partition has been deleted; every request to it fails."""


class CallState(_Member):
    """The states of a request that expects an answer (`Call`)."""

    HELD = auto()
    """The request is not on its way: there is no connection, or no route to its target."""
    SENT = auto()
    """The request has been sent over the current connection."""
    DONE = auto()
    """The request has its answer or an error, or its caller no longer waits."""


class ConversationState(_Member):
    """The states of a conversation with one service (`CoreConversation`)."""

    BROKEN = auto()
    """Nothing can be sent: there is no connection, or no route. Messages that were on their way are lost."""
    OPEN = auto()
    """Messages can be sent and received."""
    CLOSED = auto()
    """The program has ended the conversation, or the client has ended."""


class Event(_Member):
    """An event that changes states: it happens to the core, or the core causes it."""

    CONNECTED = auto()
    """The shell has made a connection."""
    HEARD = auto()
    """The first bytes of a node have arrived, or the first message from a node that has the services itself."""
    DISCONNECTED = auto()
    """The connection has ended."""
    CLOSED = auto()
    """The client has ended, or the program has ended one conversation."""
    ANSWERED = auto()
    """The stream service has answered the question whether it can be reached."""
    ROUTE_LOST = auto()
    """A node on the route has reported that it cannot reach the next node."""
    CREATED = auto()
    """The program has created the stream."""
    CREATE_SENT = auto()
    """The request that creates a stream again has been sent, or is kept until it can be sent."""
    CREATE_DONE = auto()
    """The request that creates a stream again has its answer, or has failed."""
    ROUTE_FOUND = auto()
    """The route to a stream-partition has become known."""
    ROUTE_DOUBTED = auto()
    """The route to a partition may have changed: the connection or the route to the service was lost, or no answers
    come."""
    DELETED = auto()
    """The stream-partition has been deleted at the node."""
    SENT = auto()
    """A request has been appended to the bytes to send."""
    FINISHED = auto()
    """A request has its answer, or has failed."""


State: TypeAlias = ConnectionState | RouteState | StreamState | PartitionState | CallState | ConversationState
S = TypeVar("S", ConnectionState, RouteState, StreamState, PartitionState, CallState, ConversationState)

TRANSITIONS: dict[State, dict[Event, State]] = {
    # ------------------------------------------------------------------------------------------- connection
    ConnectionState.DOWN: {
        Event.CONNECTED: ConnectionState.SILENT,
        Event.DISCONNECTED: ConnectionState.DOWN,
        Event.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.SILENT: {
        Event.CONNECTED: ConnectionState.SILENT,
        Event.HEARD: ConnectionState.UP,
        Event.DISCONNECTED: ConnectionState.DOWN,
        Event.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.UP: {
        Event.CONNECTED: ConnectionState.SILENT,
        Event.HEARD: ConnectionState.UP,
        Event.DISCONNECTED: ConnectionState.DOWN,
        Event.CLOSED: ConnectionState.CLOSED,
    },
    # The shell notices the end of the client only at its next step. Until then it may connect, lose and read a
    # connection.
    ConnectionState.CLOSED: {
        Event.CONNECTED: ConnectionState.CLOSED,
        Event.HEARD: ConnectionState.CLOSED,
        Event.DISCONNECTED: ConnectionState.CLOSED,
        Event.CLOSED: ConnectionState.CLOSED,
    },
    # ------------------------------------------------------------------------------------ route to the service
    RouteState.UNREACHED: {
        Event.CONNECTED: RouteState.UNREACHED,
        Event.HEARD: RouteState.REACHED,
        Event.ANSWERED: RouteState.REACHED,
        Event.ROUTE_LOST: RouteState.UNREACHED_LOST,
        Event.DISCONNECTED: RouteState.UNREACHED,
    },
    RouteState.UNREACHED_LOST: {
        Event.CONNECTED: RouteState.UNREACHED,
        Event.HEARD: RouteState.UNREACHED_LOST,
        Event.ANSWERED: RouteState.REACHED,
        Event.ROUTE_LOST: RouteState.UNREACHED_LOST,
        Event.DISCONNECTED: RouteState.UNREACHED,
    },
    RouteState.REACHED: {
        Event.CONNECTED: RouteState.REACHED,
        Event.HEARD: RouteState.REACHED,
        Event.ANSWERED: RouteState.REACHED,
        Event.ROUTE_LOST: RouteState.LOST,
        Event.DISCONNECTED: RouteState.GONE,
    },
    # Only an answer of the service proves that the route is back, since a node without the service greets too.
    RouteState.GONE: {
        Event.CONNECTED: RouteState.GONE,
        Event.HEARD: RouteState.GONE,
        Event.ANSWERED: RouteState.REACHED,
        Event.ROUTE_LOST: RouteState.LOST,
        Event.DISCONNECTED: RouteState.GONE,
    },
    RouteState.LOST: {
        Event.CONNECTED: RouteState.GONE,
        Event.HEARD: RouteState.LOST,
        Event.ANSWERED: RouteState.REACHED,
        Event.ROUTE_LOST: RouteState.LOST,
        Event.DISCONNECTED: RouteState.GONE,
    },
    # ------------------------------------------------------------------------------------------------- stream
    StreamState.NAMED: {
        Event.CREATED: StreamState.CREATED,
    },
    StreamState.CREATED: {
        Event.CREATED: StreamState.CREATED,
        Event.CREATE_SENT: StreamState.CREATING,
    },
    StreamState.CREATING: {
        Event.CREATED: StreamState.CREATING,
        Event.CREATE_DONE: StreamState.CREATED,
    },
    # ---------------------------------------------------------------------------------------------- partition
    PartitionState.SEARCHED: {
        Event.ROUTE_FOUND: PartitionState.OPEN,
        Event.ROUTE_DOUBTED: PartitionState.SEARCHED,
        Event.DELETED: PartitionState.DELETED,
    },
    PartitionState.OPEN: {
        Event.ROUTE_FOUND: PartitionState.OPEN,
        Event.ROUTE_DOUBTED: PartitionState.SEARCHED,
        Event.DELETED: PartitionState.DELETED,
    },
    PartitionState.DELETED: {
        Event.DELETED: PartitionState.DELETED,
    },
    # --------------------------------------------------------------------------------------------------- call
    CallState.HELD: {
        Event.SENT: CallState.SENT,
        Event.DISCONNECTED: CallState.HELD,
        Event.FINISHED: CallState.DONE,
    },
    CallState.SENT: {
        Event.SENT: CallState.SENT,
        Event.DISCONNECTED: CallState.HELD,
        Event.FINISHED: CallState.DONE,
    },
    CallState.DONE: {
        Event.FINISHED: CallState.DONE,
    },
    # ------------------------------------------------------------------------------------------- conversation
    ConversationState.BROKEN: {
        Event.CONNECTED: ConversationState.OPEN,
        Event.ANSWERED: ConversationState.OPEN,
        Event.ROUTE_LOST: ConversationState.BROKEN,
        Event.DISCONNECTED: ConversationState.BROKEN,
        Event.CLOSED: ConversationState.CLOSED,
    },
    ConversationState.OPEN: {
        Event.CONNECTED: ConversationState.OPEN,
        Event.ANSWERED: ConversationState.OPEN,
        Event.ROUTE_LOST: ConversationState.BROKEN,
        Event.DISCONNECTED: ConversationState.BROKEN,
        Event.CLOSED: ConversationState.CLOSED,
    },
    ConversationState.CLOSED: {
        Event.CLOSED: ConversationState.CLOSED,
    },
}  # fmt: skip


def after(state: S, event: Event) -> S:
    """Return the state that follows `state` after `event`. Raises AssertionError if the table has no such
    transition.
    """
    following = TRANSITIONS[state].get(event)
    assert isinstance(following, type(state)), f"{event} does not happen in {state}"
    return following
