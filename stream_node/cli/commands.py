"""All commands, in the order of `stream-node --help`: their names and the functions that carry them out."""

from __future__ import annotations

from typing import NamedTuple

from stream_node.cli.chains import block, block_backfill, cardinal, cardinal_files
from stream_node.cli.exports import export, pipeline
from stream_node.cli.groups import Command, Prepare
from stream_node.cli.node import (
    bench,
    cluster,
    connections,
    demo,
    health,
    maintenance,
    mirror,
    repair,
    serve,
    settings,
    status,
    top,
)
from stream_node.cli.request_options import with_block_options, with_options, with_tls_options
from stream_node.cli.rights import cert, identity, rule, token
from stream_node.cli.streams import consume, index_admin, pull, push, stream_admin, stream_copy, stream_retention


class CommandGroup(NamedTuple):
    """Commands below one name, such as `stream create`. text: what they are for. below: the name of the group that this
    one is in. prepare: makes of a function what typer takes."""

    name: str
    text: str
    commands: dict[str, Command]
    below: str = ""
    prepare: Prepare = with_options


COMMANDS: dict[str, Command] = {
    "serve": serve.serve,
    "push": push.push,
    "pull": pull.pull,
    "consume": consume.consume,
    "tail": consume.tail,
    "top": top.top,
    "verify": maintenance.verify,
    "backup": maintenance.backup,
    "restore": maintenance.restore,
    "doctor": maintenance.doctor,
    "health": health.health,
    "status": status.status,
    "connections": connections.connections,
    "repair": repair.repair,
    "demo": demo.demo,
}
GROUPS = (
    CommandGroup(
        "stream",
        "Create, copy, list, truncate and delete streams, and set their retention.",
        {
            "create": stream_admin.create,
            "copy": stream_copy.copy,
            "list": stream_admin.list_all,
            "info": stream_admin.info,
            "delete": stream_admin.delete,
            "truncate": stream_admin.truncate,
            "retention": stream_retention.retention,
        },
    ),
    CommandGroup(
        "index",
        "See and set the positions of consumers.",
        {"get": index_admin.get, "set": index_admin.set_to, "list": index_admin.list_all},
    ),
    CommandGroup(
        "mirror",
        "Follow streams of another node, and take their place if it is lost.",
        {"add": mirror.add, "status": mirror.status, "promote": mirror.promote, "remove": mirror.remove},
    ),
    CommandGroup(
        "bench",
        "Measure the rates and latencies of a node. Without --node and without a context, the run starts a node of "
        "its own, with its data below the working directory, and removes it at the end. The test stream is "
        "deleted.",
        {"push": bench.push, "pull": bench.pull, "latency": bench.latency, "fanout": bench.fanout},
    ),
    CommandGroup(
        "export",
        "Export messages to a table, each message exactly once.",
        {
            "run": export.run,
            "daemon": export.daemon,
            "history": export.history,
            "verify": export.verify,
            "compact": export.compact,
            "forget": export.forget,
            "migrate": export.migrate,
            "files": export.files,
        },
        prepare=with_tls_options,
    ),
    CommandGroup(
        "pipeline",
        "Keep silver and gold tables of an export, made by PySpark.",
        {"run": pipeline.run, "daemon": pipeline.daemon},
    ),
    CommandGroup(
        "config",
        "Check and show a node's settings, and where each comes from.",
        {"check": settings.config_check, "show": settings.config_show},
    ),
    CommandGroup(
        "context",
        "Names for nodes, so that you need not type addresses.",
        {"add": settings.add, "list": settings.list_all, "use": settings.use, "remove": settings.remove},
    ),
    CommandGroup("cert", "Make certificates for trying TLS.", {"show": cert.show}),
    CommandGroup(
        "create",
        "Make an authority, or a certificate that it signs.",
        {"ca": cert.create_ca, "server": cert.create_server, "client": cert.create_client},
        below="cert",
    ),
    CommandGroup(
        "rule",
        "Say who may do what on a node.",
        {"add": rule.add, "list": rule.list_all, "remove": rule.remove, "check": rule.check},
    ),
    CommandGroup(
        "token",
        "Make and revoke tokens, by which clients prove who they are.",
        {"create": token.create, "list": token.list_all, "revoke": token.revoke},
    ),
    CommandGroup(
        "identity", "Make and show identities for secure channels.", {"create": identity.create, "show": identity.show}
    ),
    CommandGroup(
        "trust",
        "Say whose secure channels a node accepts. Without anybody: nobody's.",
        {"add": identity.add, "list": identity.list_all, "remove": identity.remove},
    ),
    CommandGroup(
        "cardinal",
        "Send and read blocks as Cardinal Streams; inspect files of them; simulate a chain.",
        {
            "produce": cardinal.produce,
            "consume": cardinal.consume,
            "inspect": cardinal_files.inspect,
            "simulate": cardinal_files.simulate,
        },
    ),
    CommandGroup(
        "block",
        "Publish, subscribe to, fetch and generate blocks.",
        {
            "publish": block.publish,
            "subscribe": block.subscribe,
            "get": block.get,
            "status": block.status,
            "generate": block.generate,
        },
        prepare=with_block_options,
    ),
    CommandGroup(
        "backfill",
        "Show how missing blocks are fetched from other nodes, and start a search for them.",
        {"status": block_backfill.status, "run": block_backfill.run, "sources": block_backfill.sources},
        below="block",
        prepare=with_block_options,
    ),
    CommandGroup(
        "cluster",
        "See the members of a cluster, and empty one of them.",
        {"status": cluster.status, "drain": cluster.drain},
    ),
)
