"""The command `stream-node`: registers all subcommands, and turns an error into a line on stderr and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from stream_node import __version__
from stream_node.cli.output import say_text, tell, wants_json
from stream_node.cli.values import CommandFailed

FAILED, WRONG_USAGE, UNREACHABLE = 1, 2, 3
UNKNOWN = 3
"""The exit code of `status --check` after any error: monitoring programs read 1 and 2 as the state of the node."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells use it."""

CLIENT_ALONE = Path(__file__).parents[2] / "stream_client/installed_alone.txt"
"""Only the distribution stream-node-client has this file: the error text for an installation of it alone."""

GC_OBJECTS = 200_000
"""How many new objects Python makes before each garbage collection, by default 700. The imports of a command make
more than 100,000 objects that stay; visiting them takes an eighth of a node's start."""

EXTRAS = {
    "export": {"pyarrow", "aiosqlite", "greenlet", "adbc_driver_sqlite"},
    "spark": {"pyspark", "py4j"},
    "delta": {"deltalake"},
}


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.util import find_spec

        is_compiled = find_spec("stream_node__mypyc") is not None
        say_text(f"stream-node {__version__}" + (", compiled by mypyc" if is_compiled else ""))
        raise typer.Exit


def build(first: str | None = None) -> typer.Typer:
    """Returns the command with all its subcommands, or only with the one that `first` names: typer takes long to read
    the signature of each. If `first` is another word, all subcommands are there with their help, without options."""
    from stream_node.cli.commands import COMMANDS, GROUPS, load_command, load_help, with_options

    app = typer.Typer(name="stream-node", rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(about)
    names = {*COMMANDS, *(group.name for group in GROUPS if not group.below)}
    wanted = {first} if first in names else names
    is_list = first not in (None, *names)

    def prepared(path: str, left_out: tuple[str, ...] = ()) -> Callable[..., None]:
        return load_help(path) if is_list else with_options(load_command(path), left_out=left_out)

    for name in (name for name in COMMANDS if name in wanted):
        app.command(name)(prepared(COMMANDS[name]))
    made = {"": app}
    for group in GROUPS:
        # An outer group comes before its inner groups in the list.
        if group.below not in made or (not group.below and group.name not in wanted):
            continue
        made[group.name] = typer.Typer(help=group.text, no_args_is_help=True)
        for name, path in group.commands.items():
            made[group.name].command(name)(prepared(path, group.left_out))
        made[group.below].add_typer(made[group.name], name=group.name)
    return app


def about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """A self-hosted node of durable, ordered streams."""


def main() -> NoReturn:
    gc.set_threshold(GC_OBJECTS)
    # Python sets a standard stream to None if the process was started with it closed. A file or a socket that is opened
    # later would get the number of the closed stream, and prints would go into it.
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY))  # noqa: SIM115  (for the whole process)
    if sys.stderr is None:
        sys.stderr = open(os.open(os.devnull, os.O_WRONLY), "w")  # noqa: SIM115  (likewise)
    if sys.stdout is None:
        tell("standard output is closed; to discard what the command prints, write > /dev/null", FAILED)
        sys.exit(FAILED)
    if CLIENT_ALONE.exists():
        tell(CLIENT_ALONE.read_text().strip(), FAILED)
        sys.exit(FAILED)
    # A shell that completes a line passes it in one of these variables, and no arguments.
    completed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    sys.exit(run(build(_first_word(sys.argv[1:] or completed.split()[1:]))))


def _first_word(words: Sequence[str]) -> str:
    """Returns the name of the command, before which `--` may stand; "" without words."""
    return next((word for word in words if word != "--"), "")


def run(command: Callable[..., object]) -> int:
    """Runs a command and returns its exit code. An error that a user can cause is a line on stderr, or with `--json` an
    object with `error` and `exit_code`. `status --check` prints its error on stdout, as monitoring plug-ins do."""
    is_check = _first_word(sys.argv[1:]) == "status" and any(each.partition("=")[0] == "--check" for each in sys.argv)
    try:
        # typer prints its own errors (arguments that it cannot read) as text, and ends the process. With `--json` and
        # `--check` it raises these errors instead, and returns the exit code.
        ended_with = command(standalone_mode=not (wants_json() or is_check))
        return ended_with if isinstance(ended_with, int) else 0
    except SystemExit as ended:
        # typer exits with 1 when the reader of a pipe closes it, which is normal with `… | head`.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _discard_output()
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(cause, BrokenPipeError):
            _discard_output()
            return 0
        if isinstance(cause, ModuleNotFoundError):
            cause = _name_extra(cause)
        code = exit_code(cause)
        if code is None:
            raise
        # Errors of the command line itself have format_message.
        told = getattr(cause, "format_message", cause.__str__)
        if is_check:
            code, text = UNKNOWN, " ".join(told().split())
            # A bar would begin the performance data.
            tell(text, code) if wants_json() else say_text(f"UNKNOWN: {text}".replace("|", "¦"))
            return code
        for text in getattr(cause, "mistakes", (told(),)):
            tell(explain_system_error(" ".join(text.split())), code)
        return code
    return 0


def _name_extra(error: ModuleNotFoundError) -> Exception:
    """Returns an error that names the optional extra with the missing module; the given error if no extra has it."""
    extra = next((extra for extra, parts in EXTRAS.items() if (error.name or "").partition(".")[0] in parts), None)
    if extra is None:
        return error
    return CommandFailed(
        f"this command needs the extra `{extra}`, and {error.name} is not installed in {sys.prefix}: "
        f"{os.path.relpath(sys.executable)} -m pip install -e '.[{extra}]' in a checkout, or the same extra of the "
        "wheel"
    )


def _discard_output() -> None:
    """Discards the buffered output: its reader is gone, and a flush would fail at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: BaseException) -> int | None:
    """Returns the exit code for an error that a user can cause; None for any other error, which is a bug."""
    cause = first_cause(error)
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(cause).__mro__}
    return next((code for code, kinds in CODES.items() if not names.isdisjoint(kinds)), None)


# Exit codes, each with the errors (and their subclasses) that end a command with it; the first match wins. The
# errors are given by name, because importing the packages that raise them takes a second: a user who mistyped an
# address should not wait for the database and the block node to load.
CODES: dict[int, frozenset[str]] = {
    UNREACHABLE: frozenset({"stream_client.errors.NodeUnreachable", "stream_client.errors.NotAStreamNode"}),
    WRONG_USAGE: frozenset(
        {
            "ockam.identity.rules.rule_file.RulesError",
            "ockam.identity.rules.tokens.TokenFileError",
            "cardinal_streams.errors.ApplicationError",
            "cardinal_streams.errors.PrefixError",
            "cardinal_streams.errors.SimulationError",
            "ockam.errors.InvalidAddress",
            "ockam.identity.channel.errors.InvalidIdentifier",
            "stream_node.cli.values.UsageError",
            "stream_node.node.config.ConfigError",
            "stream_node.cli.contexts.ContextError",
            "stream_client.errors.InvalidArgument",
            "typer._click.exceptions.UsageError",
        }
    ),
    FAILED: frozenset(
        {
            "block_node.blocks.errors.BlockError",
            "builtins.OSError",
            "cardinal_streams.errors.CardinalError",
            "ockam.protocol.ProtocolError",
            "ockam.identity.channel.errors.SecureChannelError",
            "stream_storage.errors.StorageError",
            "stream_storage.sqlite.backup.BackupError",
            "stream_node.care.certificates.CertificateError",
            "stream_node.cli.values.CommandFailed",
            "stream_node.demo.parts.DemoFailed",
            "stream_client.errors.ClientError",
            "spark_export.errors.SourceError",
            "spark_export.tables.errors.ExportError",
        }
    ),
}


def first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


ERRORS = {
    errno.ECONNREFUSED: "nothing listens there; `stream-node serve` starts a node, --node says where one is",
    errno.EADDRINUSE: "it is in use by another program; stop that, or choose another port (0 picks a free one)",
    errno.EADDRNOTAVAIL: "this machine does not have that address; 127.0.0.1 is always there, 0.0.0.0 means all",
    errno.EHOSTUNREACH: "there is no way to that host",
    errno.ENETUNREACH: "there is no way to that network",
    errno.ETIMEDOUT: "it does not answer",
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "this is a folder, and a file is wanted",
    errno.ENOTDIR: "a part of this path is a file, and a folder is wanted",
    errno.EACCES: "this user may not do that",
    errno.EROFS: "the disk is mounted for reading only",
    errno.ENOSPC: "the disk is full",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    socket.EAI_NONAME: "there is no host of that name",
    socket.EAI_AGAIN: "the host's name cannot be looked up just now",
}
"""Explanations by error number, of the system and of the resolver of host names (EAI_…, negative on Linux)."""
_NUMBERED = re.compile(r"\[Errno (-?\d+)\] (.*?)(?:: ['\"](.*)['\"])?$")


def explain_system_error(text: str) -> str:
    """Returns the text, with a system error number at its end replaced by words. Returns any other text unchanged."""
    found = _NUMBERED.search(text)
    if found is None:
        return text
    number, said, file = found.groups()
    words = ERRORS.get(int(number), said[:1].lower() + said[1:])
    return text[: found.start()] + (words if file is None else f"{file}: {words}")
