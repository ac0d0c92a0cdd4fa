"""All commands, in the order of `stream-node --help`: their names and the functions that carry them out."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from stream_node.cli.groups import Command, Prepare, with_block_options, with_options, with_tls_options


class CommandGroup(NamedTuple):
    """Commands below one name, such as `stream create`. text: what they are for. folder, commands: where their
    functions are, see `load_command`. below: the name of the group that this one is in. prepare: turns a function into
    one that typer accepts."""

    name: str
    text: str
    folder: str
    commands: dict[str, str]
    below: str = ""
    prepare: Prepare = with_options


def load_command(path: str) -> Command:
    """Returns the function with this path below `stream_node.cli`. A process imports only the modules of the commands
    that it shows or runs. The modules of all commands take more than 1 MB, and a twelfth of the start of a node."""
    module, _, name = path.rpartition(".")
    command: Command = getattr(import_module(f"stream_node.cli.{module}"), name)
    return command


COMMANDS: dict[str, str] = {
    "serve": "node.serve.serve",
    "push": "streams.push.push",
    "pull": "streams.pull.pull",
    "consume": "streams.consume.consume",
    "tail": "streams.consume.tail",
    "top": "node.top.top",
    "verify": "node.maintenance.verify",
    "backup": "node.maintenance.backup",
    "restore": "node.maintenance.restore",
    "doctor": "node.maintenance.doctor",
    "health": "node.health.health",
    "status": "node.status.status",
    "connections": "node.connections.connections",
    "repair": "node.repair.repair",
    "demo": "node.demo.demo",
}
GROUPS = (
    CommandGroup(
        "stream",
        "Create, copy, list, truncate and delete streams, and set their retention.",
        "streams",
        {
            "create": "stream_admin.create",
            "copy": "stream_copy.copy",
            "list": "stream_admin.list_all",
            "info": "stream_admin.info",
            "delete": "stream_admin.delete",
            "truncate": "stream_admin.truncate",
            "retention": "stream_admin.retention",
        },
    ),
    CommandGroup(
        "index",
        "See and set the positions of consumers.",
        "streams",
        {"get": "index_admin.get", "set": "index_admin.set_to", "list": "index_admin.list_all"},
    ),
    CommandGroup(
        "mirror",
        "Follow streams of another node, and take their place if it is lost.",
        "node",
        {"add": "mirror.add", "status": "mirror.status", "promote": "mirror.promote", "remove": "mirror.remove"},
    ),
    CommandGroup(
        "bench",
        "Measure the rates and latencies of a node. Without --node and without a context, the run starts a node of "
        "its own, with its data below the working directory, and removes it at the end. The test stream is "
        "deleted.",
        "node",
        {"push": "bench.push", "pull": "bench.pull", "latency": "bench.latency", "fanout": "bench.fanout"},
    ),
    CommandGroup(
        "export",
        "Export messages to a table, each message exactly once.",
        "exports",
        {
            "run": "export.run",
            "daemon": "export.daemon",
            "history": "export.history",
            "verify": "export.verify",
            "compact": "export.compact",
            "forget": "export.forget",
            "migrate": "export.migrate",
            "files": "export.files",
        },
        prepare=with_tls_options,
    ),
    CommandGroup(
        "pipeline",
        "Keep silver and gold tables of an export, made by PySpark.",
        "exports",
        {"run": "pipeline.run", "daemon": "pipeline.daemon"},
    ),
    CommandGroup(
        "config",
        "Check and show a node's settings, and where each comes from.",
        "node",
        {"check": "settings.config_check", "show": "settings.config_show"},
    ),
    CommandGroup(
        "context",
        "Names for nodes, so that you need not type addresses.",
        "node",
        {"add": "settings.add", "list": "settings.list_all", "use": "settings.use", "remove": "settings.remove"},
    ),
    CommandGroup("cert", "Make certificates for trying TLS.", "rights", {"show": "cert.show"}),
    CommandGroup(
        "create",
        "Make an authority, or a certificate that it signs.",
        "rights",
        {"ca": "cert.create_ca", "server": "cert.create_server", "client": "cert.create_client"},
        below="cert",
    ),
    CommandGroup(
        "rule",
        "Say who may do what on a node.",
        "rights",
        {"add": "rule.add", "list": "rule.list_all", "remove": "rule.remove", "check": "rule.check"},
    ),
    CommandGroup(
        "token",
        "Make and revoke tokens, by which clients prove who they are.",
        "rights",
        {"create": "token.create", "list": "token.list_all", "revoke": "token.revoke"},
    ),
    CommandGroup(
        "identity",
        "Make and show identities for secure channels.",
        "rights",
        {"create": "identity.create", "show": "identity.show"},
    ),
    CommandGroup(
        "trust",
        "Say whose secure channels a node accepts. Without anybody: nobody's.",
        "rights",
        {"add": "identity.add", "list": "identity.list_all", "remove": "identity.remove"},
    ),
    CommandGroup(
        "cardinal",
        "Send and read blocks as Cardinal Streams; inspect files of them; simulate a chain.",
        "chains",
        {
            "produce": "cardinal.produce",
            "consume": "cardinal.consume",
            "inspect": "cardinal_files.inspect",
            "simulate": "cardinal_files.simulate",
        },
    ),
    CommandGroup(
        "block",
        "Publish, subscribe to, fetch and generate blocks.",
        "chains",
        {
            "publish": "block.publish",
            "subscribe": "block.subscribe",
            "get": "block.get",
            "status": "block.status",
            "generate": "block.generate",
        },
        prepare=with_block_options,
    ),
    CommandGroup(
        "backfill",
        "Show how missing blocks are fetched from other nodes, and start a search for them.",
        "chains",
        {"status": "block_backfill.status", "run": "block_backfill.run", "sources": "block_backfill.sources"},
        below="block",
        prepare=with_block_options,
    ),
    CommandGroup(
        "cluster",
        "See the members of a cluster, and empty one of them.",
        "node",
        {"status": "cluster.status", "drain": "cluster.drain"},
    ),
)
