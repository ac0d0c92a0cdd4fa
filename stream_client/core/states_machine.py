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


class ConnectionState(Enum):
    """The states of the current connection of a core (`ClientConnection`)."""

    DOWN = auto()
    """There is no connection; the shell makes one, or waits before the next attempt."""
    SILENT = auto()
    """Connected, and nothing has come: the other side may be something else than a node."""
    UP = auto()
    """The first bytes were those of a node."""
    CLOSED = auto()
    """The client has ended. Later connections and bytes mean nothing to it."""


class RouteState(Enum):
    """The states of the route to the stream service over the current connection (`ServiceRoute`)."""

    UNREACHED = auto()
    """The service has never answered."""
    UNREACHED_LOST = auto()
    """The same, and a node between has said that it cannot reach the next one."""
    REACHED = auto()
    """The service has answered, and nothing speaks against its answering again."""
    GONE = auto()
    """The service was reached, over a connection that has ended since."""
    LOST = auto()
    """The service was reached, and a node between has said since that it cannot reach the next one."""


class StreamState(Enum):
    """The states of a stream in use: how its partitions are found again after a new connection (`StreamInUse`)."""

    NAMED = auto()
    """This client never created it. Its partitions are looked for at the addresses that their names give."""
    CREATED = auto()
    """This client created it, and creates it again where pushes wait for it."""
    CREATING = auto()
    """The request that creates it again is without an answer."""


class PartitionState(Enum):
    """The states of a partition in use (`PartitionHandle`)."""

    SEARCHED = auto()
    """Its route is not known just now; pushes and calls to it are kept."""
    OPEN = auto()
    """Its route is known; pushes and calls go out at once."""
    DELETED = auto()
    """It has been deleted, and everything that is asked of it fails."""


class CallState(Enum):
    """The states of a request that expects an answer (`Call`)."""

    HELD = auto()
    """It is not on its way: there is no connection, or no route to its target."""
    SENT = auto()
    """It has been sent over this connection."""
    DONE = auto()
    """It has its answer or an error, or nobody waits for it any more."""


class ConversationState(Enum):
    """The states of a conversation with one service (`CoreConversation`)."""

    BROKEN = auto()
    """Nothing can be sent: there is no connection, or no route. What was under way is lost."""
    OPEN = auto()
    """Messages go to the other side and come from it."""
    CLOSED = auto()
    """Its owner has ended it, or the client has ended."""


class Event(Enum):
    """An event that changes states: it happens to the core, or the core causes it."""

    CONNECTED = auto()
    """The shell has made a connection."""
    HEARD = auto()
    """Bytes of a node have come, or over a direct connection a message."""
    DISCONNECTED = auto()
    """The connection has ended."""
    CLOSED = auto()
    """The client has ended, or the owner of one thing has ended that."""
    ANSWERED = auto()
    """The stream service has answered the question whether it can be reached."""
    ROUTE_LOST = auto()
    """A node between has said that it cannot reach the next one."""
    CREATED = auto()
    """The program has created the stream."""
    CREATE_SENT = auto()
    """The request that creates a stream again has been made."""
    CREATE_DONE = auto()
    """That request has its answer, or has failed."""
    ROUTE_FOUND = auto()
    """The route to a stream-partition has become known."""
    ROUTE_DOUBTED = auto()
    """The route may have changed: the connection or the route to the service has ended, or it brings nothing."""
    DELETED = auto()
    """The stream-partition has been deleted at the node."""
    SENT = auto()
    """A request has been put into what goes out."""
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
