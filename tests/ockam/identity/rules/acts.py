"""Every act that a peer can ask of a node, with the right that it needs: a request for each protocol of each worker."""

from __future__ import annotations

from typing import NamedTuple

import bare
from block_node.backfill.protocol import BACKFILL, BackfillAsk
from block_node.protocol import PUBLISH, OpenRootSession, OpenSession
from block_node.protocol_reading import GET, STATUS, SUBSCRIBE, GetBlock, StatusRequest, Subscribe
from index_service.extensions import (
    FENCED_SAVE,
    LEASE,
    LOAD_POSITIONS,
    MARKED_POSITIONS,
    MARKED_SAVE,
    POSITIONS,
    SET_POSITION,
    FencedSave,
    LeaseRequest,
    LoadRequest,
    MarkedSave,
    PositionKey,
    PositionsRequest,
    SetRequest,
)
from index_service.fences import FENCES, FencesRequest
from index_service.protocol import (
    INDEX,
    INDEX_PARTITIONED,
    GetIndex,
    GetPartitionIndex,
    SaveIndex,
    SavePartitionIndex,
)
from ockam.actors.address import Address, local, tcp
from ockam.actors.forwarders import PREFIX, STATIC_PREFIX
from ockam.actors.forwarding_protocol import FORWARD, ForwardRequest
from ockam.identity.rules.rights import EVERY_NAME, STREAM_RIGHTS, Demand, Right, rights_text
from stream_node.care.trouble_service import TROUBLES, TroublesRequest
from stream_node.doors.http.endpoints import ENDPOINTS
from stream_node.fleet.mirror.protocol import MIRRORS, MirrorAction, MirrorRequest
from stream_node.forwarding.bidirectional import ENSURE_PUBLISHER, PublisherRequest
from stream_node.hosting.status import OWN_WORKERS, OwnWorkersRequest
from stream_node.node.node_connections import CLOSE, CONNECTIONS, CloseRequest, ConnectionsRequest
from stream_node.node.node_status import NODE_STATUS
from stream_node.node.node_status import NodeStatusRequest as NodeStatusRequest
from stream_service.appending import APPEND, COPY, AppendedMessage, AppendRequest, CopiedMessage, CopyRequest
from stream_service.bulk import BULK, BulkRead
from stream_service.extensions import (
    CUT_PULL,
    DELETE,
    DELETE_ALL,
    INFO,
    LIST,
    MARKED_PULL,
    PACKED_PULL,
    PUSH_BATCH,
    RETENTION,
    RICH_PULL,
    RICH_PUSH,
    TRACE,
    TRUNCATE,
    BeforeIndex,
    CutPull,
    DeleteAllRequest,
    DeleteRequest,
    FromIndex,
    InfoRequest,
    ListRequest,
    MarkedPull,
    PackedPull,
    PushBatch,
    Retention,
    RetentionRequest,
    RichPull,
    RichPush,
    TraceNotice,
    TruncateRequest,
)
from stream_service.mirroring import MIRROR, ROLE, BeMirror, BePrimary, MirrorPull, RoleRequest
from stream_service.names import GENERATED_PREFIX, stream_address
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    CREATE_PARTITIONS,
    PULL,
    PUSH,
    CreatePartitions,
    CreateStream,
    PullRequest,
    PushRequest,
)

ERROR, ERROR_CONFIRM, RICH_REFUSED, NOTHING = "error", "confirm with ERROR", "confirm with REFUSED", "nothing"
BATCH_REFUSED = "answer with REFUSED"
CHAIN = "blocks"
FAR = "127.0.0.1:9"
"""The address of another node to which peers may forward. Nothing listens there."""
OWN_WORKER = "tests.stream_node.hosting.sample_workers:Echo@echo"
"""A worker of the operator, as the setting `worker` names it."""
SOURCE = "source"
"""The name of a stream of that node, from which a stream here may be copied."""


class Act(NamedTuple):
    """One request. worker, does: who serves it, and what it asks for. rights: one of these is enough. name: the name on
    which the right is needed; None: any name. stream: the stream that must be there before. refusal: the form of the
    answer to a sender that may not do this. answered: whether a sender that may do this gets an answer. beside: what
    else the same request needs; each of these is an act of its own here."""

    worker: str
    does: str
    rights: Right
    name: str | None
    address: Address
    payload: bytes
    stream: str | None = None
    refusal: str = ERROR
    answered: bool = True
    beside: tuple[Demand, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.worker}: {self.does}"


def _stream(does: str, rights: Right, payload: bytes, refusal: str = ERROR, answered: bool = True) -> Act:
    name = "orders " + does
    return Act("stream", does, rights, name, stream_address(name, 0), payload, name, refusal, answered)


def _service(does: str, rights: Right, name: str | None, payload: bytes, stream: str | None = None) -> Act:
    return Act("stream service", does, rights, name, local("stream_service"), payload, stream)


def _index(
    does: str, payload: bytes, rights: Right = Right.INDEX, name: str | None = "app", refusal: str = ERROR
) -> Act:
    return Act("index service", does, rights, name, local("stream_index_service"), payload, None, refusal)


def _block(address: str, does: str, rights: Right, payload: bytes) -> Act:
    return Act(address, does, rights, CHAIN, local(address), payload)


def _mirrors(does: str, rights: Right, action: MirrorAction, name: str | None = "orders") -> Act:
    source = (FAR, SOURCE) if action is MirrorAction.ADD else ("", "")
    request = MirrorRequest(1, action, name or "", *source, False, 1 if action is MirrorAction.PROMOTE else 0)
    return Act("mirror", does, rights, name, local("mirror"), MIRRORS.encode_request(request))


def _each(act: Act) -> list[Act]:
    """An act by which a stream gets a source at another node, once for each of the rights that it needs."""
    needed = [
        Demand(Right.ADMIN, act.name),
        Demand(Right.CREATE, act.name),
        Demand(Right.FORWARD, f"{FAR}/{SOURCE}"),
        Demand(Right.READ, SOURCE),
    ]
    return [
        act._replace(rights=each.rights, name=each.name, beside=tuple(other for other in needed if other is not each))
        for each in needed
    ]


KEY = PositionKey("app", "orders", 0)
STORED = "stored"
"""The name of a forwarding address that stores messages, and must be there before."""
ACTS = (
    _service("list streams", STREAM_RIGHTS, None, LIST.encode_request(ListRequest(1, "", None, 10))),
    _service("create a stream", Right.CREATE, "new", CREATE.encode_request(CreateStream("new"))),
    _service(
        "create a stream without a name", Right.CREATE, GENERATED_PREFIX, CREATE.encode_request(CreateStream(None))
    ),
    _service(
        "create partitions (first name)",
        Right.CREATE,
        "parts",
        CREATE_PARTITIONED.encode_request(CreatePartitions("parts", 1)),
    ),
    _service(
        "create partitions (second name)",
        Right.CREATE,
        "more parts",
        CREATE_PARTITIONS.encode_request(CreatePartitions("more parts", 1)),
    ),
    _service("use a stream that exists", STREAM_RIGHTS, "there", CREATE.encode_request(CreateStream("there")), "there"),
    _service(
        "add a partition",
        Right.CREATE,
        "wider",
        CREATE_PARTITIONED.encode_request(CreatePartitions("wider", 2)),
        "wider",
    ),
    _stream("push", Right.WRITE, PUSH.encode_request(PushRequest(1, b"x")), ERROR_CONFIRM),
    _stream("push a batch", Right.WRITE, PUSH_BATCH.encode_request(PushBatch(1, [b"x"])), BATCH_REFUSED),
    _stream("push with a key", Right.WRITE, RICH_PUSH.encode_request(RichPush(1, b"x", b"k", [], None)), RICH_REFUSED),
    _stream("say the trace of a push", Right.WRITE, TRACE.encode_request(TraceNotice(1, "c1", "")), answered=False),
    _stream("pull", Right.READ, PULL.encode_request(PullRequest(1, 0, 1))),
    _stream("pull with times", Right.READ, RICH_PULL.encode_request(RichPull(1, FromIndex(0), 1, 0))),
    _stream("pull the beginnings", Right.READ, CUT_PULL.encode_request(CutPull(1, FromIndex(0), 1, 0, 10))),
    _stream("pull of one incarnation", Right.READ, MARKED_PULL.encode_request(MarkedPull(1, FromIndex(0), 1, 0, 0))),
    _stream("pull columns", Right.READ, PACKED_PULL.encode_request(PackedPull(1, FromIndex(0), 1, 0, 0))),
    _stream("bulk read", Right.READ, BULK.encode_request(BulkRead(1, 0, 1, 1000, True, True, True))),
    _stream("describe", STREAM_RIGHTS, INFO.encode_request(InfoRequest(1))),
    _stream("ask for the Init", STREAM_RIGHTS, CREATE.encode_request(CreateStream("orders ask for the Init"))),
    _stream("copy", Right.ADMIN, COPY.encode_request(CopyRequest(1, 1, [CopiedMessage(1, None, [], b"x")]))),
    _stream("append", Right.WRITE, APPEND.encode_request(AppendRequest(1, 1, None, [AppendedMessage(None, [], b"x")]))),
    _stream("read as a mirror", Right.READ, MIRROR.encode_request(MirrorPull(1, 0, 1000, 0, 0))),
    _stream("ask for the role", Right.ADMIN, ROLE.encode_request(RoleRequest(1, None, False))),
    *_each(_stream("make it a mirror", Right.ADMIN, ROLE.encode_request(RoleRequest(1, BeMirror(FAR, SOURCE), False)))),
    _stream("make it a primary", Right.ADMIN, ROLE.encode_request(RoleRequest(1, BePrimary(False), True))),
    _stream("set the retention", Right.ADMIN, RETENTION.encode_request(RetentionRequest(1, Retention(None, 1, None)))),
    _stream("truncate", Right.DELETE, TRUNCATE.encode_request(TruncateRequest(1, BeforeIndex(1)))),
    _stream("delete", Right.DELETE, DELETE.encode_request(DeleteRequest(1))),
    _stream("delete with positions", Right.DELETE, DELETE_ALL.encode_request(DeleteAllRequest(1, False))),
    _index("get", INDEX.encode_request(GetIndex("app", "orders"))),
    _index("save", INDEX.encode_request(SaveIndex("app", "orders", 5)), refusal=NOTHING),
    _index("get of a partition", INDEX_PARTITIONED.encode_request(GetPartitionIndex("app", "orders", 1))),
    _index(
        "save of a partition",
        INDEX_PARTITIONED.encode_request(SavePartitionIndex("app", "orders", 1, 5)),
        refusal=NOTHING,
    ),
    _index("save with an answer", FENCED_SAVE.encode_request(FencedSave(1, "app", "orders", 0, 5, None))),
    _index("save of an incarnation", MARKED_SAVE.encode_request(MarkedSave(1, "app", "orders", 0, 5, None, 0, 0))),
    _index("load", LOAD_POSITIONS.encode_request(LoadRequest(1, "app", "orders", [0], True))),
    _index(
        "list all incarnations", MARKED_POSITIONS.encode_request(PositionsRequest(1, None, None, None, 10)), name=None
    ),
    _index("list one client's", POSITIONS.encode_request(PositionsRequest(1, None, "app", None, 10))),
    _index("list all", POSITIONS.encode_request(PositionsRequest(1, None, None, None, 10)), name=None),
    _index("list fences", FENCES.encode_request(FencesRequest(1, "orders", None, 10)), name=None),
    _index("set", SET_POSITION.encode_request(SetRequest(1, KEY, 0))),
    _index("lease", LEASE.encode_request(LeaseRequest(1, "app", "orders", "me", 1, [], False)), Right.SHARE),
    _block("block_publish", "open a session", Right.BLOCK_PUBLISH, PUBLISH.encode_request(OpenSession(b"t"))),
    _block("block_publish", "open one with roots", Right.BLOCK_PUBLISH, PUBLISH.encode_request(OpenRootSession(b"t"))),
    _block(
        "block_subscribe", "subscribe", Right.BLOCK_READ, SUBSCRIBE.encode_request(Subscribe(1, None, None, False, 10))
    ),
    _block("block_get", "get a block", Right.BLOCK_READ, GET.encode_request(GetBlock(1, None, True, 0))),
    _block(
        "block_status",
        "ask for the status",
        Right.BLOCK_READ | Right.BLOCK_PUBLISH | Right.OPERATE,
        STATUS.encode_request(StatusRequest(1, True)),
    ),
    Act(
        "node_status",
        "ask how the node is",
        Right.OPERATE | Right.ADMIN,
        EVERY_NAME,
        local("node_status"),
        NODE_STATUS.encode_request(NodeStatusRequest(1)),
    ),
    Act(
        "node_troubles",
        "ask what is wrong",
        Right.OPERATE | Right.ADMIN,
        EVERY_NAME,
        local("node_troubles"),
        TROUBLES.encode_request(TroublesRequest(1)),
    ),
    Act(
        "node_own_workers",
        "see the operator's workers",
        Right.OPERATE | Right.ADMIN,
        EVERY_NAME,
        local("node_own_workers"),
        OWN_WORKERS.encode_request(OwnWorkersRequest(1)),
    ),
    Act(
        "node_connections",
        "list connections",
        Right.OPERATE | Right.ADMIN,
        EVERY_NAME,
        local("node_connections"),
        CONNECTIONS.encode_request(ConnectionsRequest(1, 10)),
    ),
    Act(
        "node_connections",
        "close connections",
        Right.ADMIN,
        EVERY_NAME,
        local("node_connections"),
        CLOSE.encode_request(CloseRequest(1, "10.0.0.1:1")),
    ),
    _block(
        "block_backfill", "see", Right.OPERATE | Right.BLOCK_READ, BACKFILL.encode_request(BackfillAsk(1, run=False))
    ),
    _block("block_backfill", "start a search", Right.OPERATE, BACKFILL.encode_request(BackfillAsk(1, run=True))),
    _mirrors("see all mirrors", Right.OPERATE | Right.ADMIN, MirrorAction.STATUS, None),
    _mirrors("see the mirror of a stream", Right.OPERATE | Right.ADMIN, MirrorAction.STATUS),
    *_each(_mirrors("add a mirror", Right.ADMIN, MirrorAction.ADD)),
    _mirrors("promote a mirror", Right.ADMIN, MirrorAction.PROMOTE),
    _mirrors("remove a mirror", Right.ADMIN, MirrorAction.REMOVE),
    Act("forwarding_service", "get a random address", Right.REGISTER, PREFIX, local("forwarding_service"), b"register"),
    Act(
        "forwarding_service",
        "get the address of a name",
        Right.REGISTER,
        STATIC_PREFIX + "app",
        local("static_forwarding_service"),
        bare.encode("app", str),
    ),
    Act(
        "forwarding address",
        "send a message",
        Right.ROUTE,
        STATIC_PREFIX + STORED,
        local(STATIC_PREFIX + STORED),
        FORWARD.encode_request(ForwardRequest(1, b"x")),
    ),
    Act(
        "stream_bidirectional",
        "get a publisher",
        Right.WRITE,
        "orders routed",
        local("stream_bidirectional"),
        ENSURE_PUBLISHER.encode_request(PublisherRequest("orders routed", "answers", "app")),
        "orders routed",
    ),
    Act("own worker", "send a message", Right.ROUTE, "echo", local("echo"), b"x"),
    Act("forwarding", "send to another node", Right.FORWARD, FAR, tcp(FAR), b"x", None, NOTHING),
)


def table() -> str:
    """The table of docs/security.md."""
    rows = ["| Worker | Request | Right that is needed | On the name |", "|---|---|---|---|"]
    on = {
        None: "any",
        EVERY_NAME: "every name",
        FAR: "of the address",
        f"{FAR}/{SOURCE}": "`HOST:PORT/STREAM` of the source",
        SOURCE: "of the source",
        CHAIN: "of the chain",
        "app": "of the client",
        "echo": "of the worker's address",
        GENERATED_PREFIX: f"`{GENERATED_PREFIX}`",
        PREFIX: f"`{PREFIX}`",
        STATIC_PREFIX + "app": "of the address",
        STATIC_PREFIX + STORED: "of the address",
    }
    for act in ACTS:
        rights = "any on streams" if act.rights == STREAM_RIGHTS else rights_text(act.rights)
        rows.append(f"| {act.worker} | {act.does} | {rights} | {on.get(act.name, 'of the stream')} |")
    return "\n".join(rows) + "\n"


def rights_table() -> str:
    """The table of docs/security.md by right: the acts, and the endpoints of HTTP, that one right is enough for."""
    demands = [
        (f"{act.worker}: {act.does}" + " (with others)" * bool(act.beside), act.rights)
        for act in ACTS
        if act.rights != STREAM_RIGHTS
    ]
    demands += [(f"`{each.method} {each.path}`", each.demand.rights) for each in ENDPOINTS if each.demand is not None]
    rows = ["| Right | Is enough for |", "|---|---|"]
    for right in Right:
        enough = [text for text, rights in demands if right & rights]
        assert enough, f"no act needs the right {rights_text(right)}"
        rows.append(f"| `{rights_text(right)}` | {'; '.join(enough)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table())
    print(rights_table(), end="")
