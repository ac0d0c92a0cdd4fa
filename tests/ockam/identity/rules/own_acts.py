"""Everything that a node does at another node under its own name, with who may cause it: the table of docs/security.md.

`python -m tests.ockam.identity.rules.own_acts` prints it. `test_own_acts` tries the acts of mirrors without each of
their rights, and compares the modules with all that call another node in the source.
"""

from __future__ import annotations

from typing import NamedTuple

FOLLOWS = (
    "`mirror add` and `node/stream_role/1`: `admin` and `create` on the stream, `forward` on `HOST:PORT/STREAM` of the "
    "source, `read` on the name of the source"
)
REPLACES = (
    "`mirror promote` and `node/stream_role/1`: `admin` on the stream, `forward` on `HOST:PORT/STREAM` of the source, "
    "`admin` on the name of the source"
)


class OwnAct(NamedTuple):
    """does: the act. module: what does it. caused_by: who may cause it."""

    does: str
    module: str
    caused_by: str


OWN_ACTS = (
    OwnAct("looks for a source that is to be followed", "stream_node/fleet/mirror/service.py", FOLLOWS),
    OwnAct("reads the messages of a source", "stream_node/fleet/mirror/message_copier.py", FOLLOWS),
    OwnAct(
        "reads the partitions, retention and positions of a source",
        "stream_node/fleet/mirror/stream_copier.py",
        FOLLOWS,
    ),
    OwnAct("makes a source its mirror, and gives it its role back", "stream_node/fleet/mirror/promotion.py", REPLACES),
    OwnAct("makes a former source its mirror", "stream_node/fleet/mirror/tasks.py", REPLACES),
    OwnAct(
        "passes a push to a mirror on to its source",
        "stream_node/fleet/mirror/tasks.py",
        "with the setting `mirror_passes_pushes`: `write` on the stream, and on the name of the source",
    ),
    OwnAct(
        "asks a mirror after a start whether it has taken its place",
        "stream_node/fleet/mirror/followers.py",
        "a mirror that has read the stream and said where it is: the rights of `mirror add`, with the mirror as source",
    ),
    OwnAct(
        "fetches missing blocks",
        "block_node/backfill/state.py",
        "the settings name the nodes; `operate` on the chain begins a search",
    ),
    OwnAct(
        "carries a message of a client to the member or worker that serves it",
        "stream_node/fleet/cluster_services.py",
        "any client; the message keeps the identity of its client, and the member that serves it decides",
    ),
)
CARRIERS = {
    "ockam/transport/calling.py": "makes every connection; one for messages of others proves nothing",
    "ockam/transport/tcp.py": "opens each connection, and those for messages that it may forward",
    "ockam/actors/address.py": "reads a route from text",
    "block_node/grpc/client/channel.py": "connects to a source of blocks that speaks gRPC",
    "stream_node/fleet/mirror/mirror.py": "asks the source of a mirror, and sends the requests of all acts of mirrors",
}
"""The modules that call other nodes for these acts, and cause none themselves."""


def table() -> str:
    """The table of docs/security.md."""
    rows = [f"| {act.does} | `{act.module}` | {act.caused_by} |" for act in OWN_ACTS]
    return "\n".join(["| The node … | In | Who may cause it |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
