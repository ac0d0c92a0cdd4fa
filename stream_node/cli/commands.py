"""All commands, in the order of `stream-node --help`: their names and the functions that carry them out."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from stream_node.cli.groups import Command, Prepare, with_block_options, with_options, with_tls_options


class CommandGroup(NamedTuple):
    """Commands below one name, such as `stream create`. commands: the path of each function (`load_command`).
    below: the name of the group that this one is in."""

    name: str
    text: str
    commands: dict[str, str]
    below: str = ""
    prepare: Prepare = with_options


def load_command(path: str) -> Command:
    """Returns the function with this path below `stream_node.cli`. Only modules of shown or run commands are imported:
    all of them take more than 1 MB, and a twelfth of the start of a node."""
    module, _, name = path.rpartition(".")
    command: Command = getattr(import_module(f"stream_node.cli.{module}"), name)
    return command


def _of(module: str, names: str) -> dict[str, str]:
    """Returns the paths of commands of one module. A function has the name of its command, unless Python has it."""
    functions = {"list": "list_all", "set": "set_to"}
    return {name: f"{module}.{functions.get(name, name)}" for name in names.split()}


COMMANDS: dict[str, str] = {
    "serve": "node.serve.serve",
    "push": "streams.push.push",
    "pull": "streams.pull.pull",
    **_of("streams.consume", "consume tail"),
    "top": "node.top.top",
    **_of("node.maintenance", "verify backup restore doctor"),
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
        {
            "create": "streams.stream_admin.create",
            "copy": "streams.stream_copy.copy",
            **_of("streams.stream_admin", "list info delete truncate retention"),
        },
    ),
    CommandGroup("index", "See and set the positions of consumers.", _of("streams.index_admin", "get set list")),
    CommandGroup(
        "mirror",
        "Follow streams of another node, and take their place if it is lost.",
        _of("node.mirror", "add status promote remove"),
    ),
    CommandGroup(
        "bench",
        "Measure the rates and latencies of a node. Without --node and without a context, the run starts a node of "
        "its own, with its data below the working directory, and removes it at the end. The test stream is "
        "deleted.",
        _of("node.bench", "push pull latency fanout"),
    ),
    CommandGroup(
        "export",
        "Export messages to a table, each message exactly once.",
        _of("exports.export", "run daemon history verify compact forget migrate files"),
        prepare=with_tls_options,
    ),
    CommandGroup(
        "pipeline",
        "Keep silver and gold tables of an export, made by PySpark.",
        _of("exports.pipeline", "run daemon"),
    ),
    CommandGroup(
        "config",
        "Check and show a node's settings, and where each comes from.",
        {"check": "node.settings.config_check", "show": "node.settings.config_show"},
    ),
    CommandGroup(
        "context",
        "Names for nodes, so that you need not type addresses.",
        _of("node.settings", "add list use remove"),
    ),
    CommandGroup("cert", "Make certificates for trying TLS.", _of("rights.cert", "show")),
    CommandGroup(
        "create",
        "Make an authority, or a certificate that it signs.",
        {
            "ca": "rights.cert.create_ca",
            "server": "rights.cert.create_server",
            "client": "rights.cert.create_client",
        },
        below="cert",
    ),
    CommandGroup("rule", "Say who may do what on a node.", _of("rights.rule", "add list remove check")),
    CommandGroup(
        "token",
        "Make and revoke tokens, by which clients prove who they are.",
        _of("rights.token", "create list revoke"),
    ),
    CommandGroup("identity", "Make and show identities for secure channels.", _of("rights.identity", "create show")),
    CommandGroup(
        "trust",
        "Say whose secure channels a node accepts. Without anybody: nobody's.",
        _of("rights.identity", "add list remove"),
    ),
    CommandGroup(
        "cardinal",
        "Send and read blocks as Cardinal Streams; inspect files of them; simulate a chain.",
        _of("chains.cardinal", "produce consume") | _of("chains.cardinal_files", "inspect simulate"),
    ),
    CommandGroup(
        "block",
        "Publish, subscribe to, fetch and generate blocks.",
        _of("chains.block", "publish subscribe get status generate"),
        prepare=with_block_options,
    ),
    CommandGroup(
        "backfill",
        "Show how missing blocks are fetched from other nodes, and start a search for them.",
        _of("chains.block_backfill", "status run sources"),
        below="block",
        prepare=with_block_options,
    ),
    CommandGroup(
        "cluster", "See the members of a cluster, and empty one of them.", _of("node.cluster", "status drain")
    ),
)
